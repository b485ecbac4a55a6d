"""Detection of compression and text encoding from a file's first bytes, never from its name.

A wrong guess would corrupt the training text unnoticed, so a file with other content or with an
ambiguous encoding is rejected.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import charset_normalizer

from auth.errors import ConfigError

HEAD_BYTES = 1 << 16  # bytes read from a file for the detection
PACKINGS: Mapping[bytes, str] = MappingProxyType(
    {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip"}
    | {bytes([number]) + b"\x2a\x4d\x18": "zstd" for number in range(0x50, 0x60)}  # a skippable frame, as in pzstd
)
TO_TEXT = "extract its text first"
UNPACK = "unpack it first"
NOT_TEXT = "name files of text only"
NOT_A_PAGE = "check whether its address asks for a login; else extract its text first"
# First bytes -> kind of file, and the remedy.
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
# First characters of a text, stripped and in lower case -> kind of file, and the remedy.
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
MARKS = (  # longer marks first, because UTF-32's begins with UTF-16's
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
UNMARKED = {"utf-32-le": 4, "utf-32-be": 4, "utf-16-le": 2, "utf-16-be": 2}  # encoding -> bytes per code unit
CONTROLS = frozenset(map(chr, range(32))) - frozenset("\t\n\v\f\r\x1a\x1b\x1c\x1d\x1e\x1f")
MOST_CONTROLS = 0.01  # largest share of control characters in a text
FEW = 3  # invalid bytes tolerated in UTF-8 text
LEAST_COHERENCE, LEAST_LEAD = 0.2, 0.03  # thresholds for charset-normalizer's guesses
REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class TextForm:
    """The encoding and the line endings of a file's text."""

    encoding: str = "utf-8"
    ends_with_cr: bool = False  # whether lines end as in old Macintosh files
    is_guess: bool = False  # whether the encoding is guessed from letter frequencies

    @property
    def is_plain(self) -> bool:
        """Return whether the file can be read from the start of any line without conversion."""
        return self == TextForm()


def packing_of(head: bytes) -> str | None:
    """Return the compression of a file with these first bytes, or None if it is not compressed."""
    return next((name for magic, name in PACKINGS.items() if head.startswith(magic)), None)


def text_form(head: bytes, name: str, encoding: str | None) -> TextForm:
    """Detect a text's encoding and line ends from its first bytes; `encoding` overrides detection.

    Raises `ConfigError`, with the file and a remedy, if the file is not text or is ambiguous.
    """
    if found := _foreign(head):
        raise _refusal(name, *found)
    is_guess, is_given = False, encoding is not None
    if encoding is not None:
        encoding = codecs.lookup(encoding).name  # `utf8` is `utf-8`, which needs no conversion
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
    """Return whether decoding has replaced only a small part of the text."""
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
    """Detect unmarked UTF-16 or UTF-32: decoding gives white space but no control characters."""
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
    """Return whether the bytes are nearly valid UTF-8, which other encodings hardly ever are."""
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
