"""Recognition of files by their first bytes, never by their names: packed, text in some encoding, or nothing to read.

A wrong guess is worse than none, for nobody sees what a model was trained on. So a file is refused that holds something
else, or whose encoding is not clear.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import charset_normalizer

from auth.errors import ConfigError

HEAD_BYTES = 1 << 16  # of a file, by which it is recognised
PACKINGS: Mapping[bytes, str] = MappingProxyType(
    {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip"}
    | {bytes([number]) + b"\x2a\x4d\x18": "zstd" for number in range(0x50, 0x60)}  # a frame to be skipped, as of pzstd
)
TO_TEXT = "extract its text first"
UNPACK = "unpack it first"
NOT_TEXT = "name files of text only"
NOT_A_PAGE = "check whether its address asks for a login; else extract its text first"
# What begins so -> what it is, and what to do about it.
FOREIGN: Mapping[bytes, tuple[str, str]] = MappingProxyType(
    {
        b"%PDF-": ("a PDF document", f"{TO_TEXT}, such as with `pdftotext`"),
        b"{\\rtf": ("an RTF document", TO_TEXT),
        b"\xd0\xcf\x11\xe0": ("an old Office document", TO_TEXT),
        b"WARC/": ("a WARC or WET archive of web pages", f"{TO_TEXT}, such as with `warcio`"),
        b"PAR1": ("a Parquet file", "give its source the kind `parquet`"),
        b"ARROW1": ("an Arrow file", "write it as Parquet"),
        b"SQLite format 3\0": ("an SQLite database", "write its text as JSON Lines"),
        b"7z\xbc\xaf\x27\x1c": ("a 7z archive", UNPACK),
        b"Rar!\x1a\x07": ("a RAR archive", UNPACK),
        b"\x04\x22\x4d\x18": ("an LZ4 archive", UNPACK),
        b"\x89PNG": ("an image", NOT_TEXT),
        b"\xff\xd8\xff": ("an image", NOT_TEXT),
        b"GIF8": ("an image", NOT_TEXT),
        b"\x7fELF": ("a program", NOT_TEXT),
    }
)
# The same of text without its white space and case.
FOREIGN_TEXT: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "<!doctype html": ("an HTML page", NOT_A_PAGE),
        "<html": ("an HTML page", NOT_A_PAGE),
        "<mediawiki": (
            "a wiki's XML dump",
            "use the hub's `wikimedia/wikipedia`, or extract the articles with WikiExtractor's `--json`",
        ),
    }
)
TAR_AT, TAR = 257, b"ustar"
MARKS = (  # the longer ones first: UTF-32's begins as UTF-16's
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
UNMARKED = {"utf-32-le": 4, "utf-32-be": 4, "utf-16-le": 2, "utf-16-be": 2}  # encoding -> bytes of its units
CONTROLS = frozenset(map(chr, range(32))) - frozenset("\t\n\v\f\r\x1a\x1b\x1c\x1d\x1e\x1f")
MOST_CONTROLS = 0.01  # of the characters of a text
FEW = 3  # bytes that are not UTF-8 in a text that is
LEAST_COHERENCE, LEAST_LEAD = 0.2, 0.03  # of charset-normalizer's best guess, and before the next one
REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class TextForm:
    """The encoding and the line ends of a file's text."""

    encoding: str = "utf-8"
    ends_with_cr: bool = False  # its lines, as those of old Macintosh files do
    is_guess: bool = False  # by the frequencies of its letters

    @property
    def is_plain(self) -> bool:
        """Return whether the file's bytes can be read from any line on."""
        return self == TextForm()


def packing_of(head: bytes) -> str | None:
    """Return how a file that begins so is packed; None if it is not."""
    return next((name for magic, name in PACKINGS.items() if head.startswith(magic)), None)


def text_form(head: bytes, name: str, encoding: str | None) -> TextForm:
    """Return how the text is written that begins so, in this `encoding` if it was given.

    Raises `ConfigError`, which names the file and says what to do, if it is none or its encoding is unclear.
    """
    if found := _foreign(head):
        raise _refusal(name, *found)
    is_guess, is_given = False, encoding is not None
    if encoding is not None:
        encoding = codecs.lookup(encoding).name  # `utf8` is `utf-8`, which can be read from any line on
    else:
        encoding = _marked(head) or _unmarked(head) or ("utf-8" if _is_utf8(head) else None)
    if encoding is None and (encoding := _guessed(head)):
        is_guess = True
    if encoding is None:
        raise ConfigError(
            f"The file {name} is not in UTF-8, and its encoding is not clear from its letters: name it as `encoding` "
            "of the source, or write the file in UTF-8."
        )
    text = codecs.getincrementaldecoder(encoding)("replace").decode(head).removeprefix("\ufeff")
    if sum(map(text.count, CONTROLS)) > MOST_CONTROLS * len(text):
        hint = "check the source's `encoding`" if is_given else NOT_TEXT
        raise _refusal(name, "no text but binary data", hint)
    beginning = text.lstrip()[:1000].lower()
    beginning = beginning.partition("?>")[2].lstrip() if beginning.startswith("<?xml") else beginning
    for start, (what, remedy) in FOREIGN_TEXT.items():
        if beginning.startswith(start):
            raise _refusal(name, what, remedy)
    return TextForm(encoding, "\r" in text.removesuffix("\r") and "\n" not in text, is_guess)


def is_legible(text: str) -> bool:
    """Return whether hardly anything of a text had to be replaced because it was not in its file's encoding."""
    return text.count(REPLACEMENT) <= FEW + len(text) // 50


def _refusal(name: str, what: str, remedy: str) -> ConfigError:
    return ConfigError(f"The file {name} holds {what}: {remedy}.")


def _foreign(head: bytes) -> tuple[str, str] | None:
    if head[TAR_AT:].startswith(TAR):
        return "a tar archive", UNPACK
    return next((found for magic, found in FOREIGN.items() if head.startswith(magic)), None)


def _marked(head: bytes) -> str | None:
    return next((encoding for mark, encoding in MARKS if head.startswith(mark)), None)


def _unmarked(head: bytes) -> str | None:
    """The UTF-16 or UTF-32 that text without a mark is in: the one in which it has white space, and no controls."""
    if b"\0" not in head:
        return None
    found: dict[str, int] = {}
    for encoding, size in UNMARKED.items():
        try:
            text = codecs.getincrementaldecoder(encoding)().decode(head[: len(head) // size * size])
        except UnicodeDecodeError:
            continue
        if CONTROLS.isdisjoint(text):
            found[encoding] = text.count(" ") + text.count("\n")
    best = max(found, key=found.__getitem__, default=None)
    return best if best is not None and found[best] else None


def _is_utf8(head: bytes) -> bool:
    """Return whether this is UTF-8 with little damage; text in another encoding is hardly ever valid UTF-8."""
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(head)
    wrong = text.count(REPLACEMENT)
    right = sum(character > "\x7f" for character in text) - wrong if wrong else 0
    return wrong <= FEW or wrong < right


def _guessed(head: bytes) -> str | None:
    matches = list(charset_normalizer.from_bytes(head))
    if not matches:
        return None
    best, text = matches[0], str(matches[0])
    lead = min((_merit(best) - _merit(other) for other in matches[1:] if str(other) != text), default=1.0)
    return str(best.encoding) if best.coherence >= LEAST_COHERENCE and lead >= LEAST_LEAD else None


def _merit(match: charset_normalizer.CharsetMatch) -> float:
    return float(match.coherence - 2 * match.chaos)
