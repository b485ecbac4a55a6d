"""Where words begin among token ids, for masking whole words.

Nearly every tokenizer says so in the tokens themselves: "▁" or "Ġ" stands for the space before a word (sentencepiece,
byte level), "##" for a token that goes on (WordPiece). What a tokenizer cuts off without a space, such as punctuation
and digits, it cuts between kinds of characters; between which, it is asked once. So a table of the tokens' first and
last kinds of characters is enough, and masking needs no text.

Scripts without spaces (Chinese, Japanese, Thai, Lao, Khmer, Burmese, Tibetan) do not show where their words begin:
there each token counts as a word, or each character where it is several tokens.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from auth.errors import ConfigError
from peer.data.special_tokens import SpecialIds

METASPACE = "▁"
FALLBACK_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
UNSPACED_SCRIPTS = (
    (0x0E00, 0x10A0),  # Thai, Lao, Tibetan, Burmese
    (0x1780, 0x1800),  # Khmer
    (0x3040, 0x3100),  # kana
    (0x3400, 0xA000),  # Han
    (0xF900, 0xFB00),
    (0x20000, 0x40000),
)


class Kind(IntEnum):
    """What stands at a token's beginning or end."""

    SPACE = 0
    LETTER = 1
    DIGIT = 2
    PUNCTUATION = 3
    SYMBOL = 4
    UNSPACED = 5  # a character of a script that is written without spaces
    INSIDE = 6  # the token goes on with a word, or with a character, that another began
    SPECIAL = 7


# Two characters of each kind that tokenizers may tell apart: whether the kind is cut within itself has to be tried too.
TRIED = {Kind.LETTER: "ab", Kind.DIGIT: "12", Kind.PUNCTUATION: ",!", Kind.SYMBOL: "€£"}


class WordStarts:
    """Says of each token id whether it begins a word, given the ones before it."""

    def __init__(self, tokenizer: Tokenizer, special: SpecialIds) -> None:
        """Raises `ConfigError` for a tokenizer that does not show where words begin."""
        kinds_of = _reading(tokenizer)
        size = tokenizer.get_vocab_size()
        self._first, self._last = (np.full(size, Kind.SPECIAL, np.int8) for _ in range(2))
        specials = {special.pad, special.unk, special.cls, special.sep, special.mask}
        for token, token_id in tokenizer.get_vocab().items():
            if token and token_id not in specials:
                self._first[token_id], self._last[token_id] = kinds_of(token)
        self._begins = _boundaries(tokenizer)

    def __call__(self, input_ids: NDArray[np.int32]) -> NDArray[np.bool_]:
        """(samples, length) ids -> whether a word begins there; one always does at a sample's first place."""
        last, column = self._last[input_ids], np.arange(input_ids.shape[1])
        # A token of a character's later bytes ends as the character does that an earlier token began.
        known = np.maximum.accumulate(np.where(last == Kind.INSIDE, 0, column), axis=1)
        last = np.take_along_axis(last, known, axis=1)
        starts = np.ones(input_ids.shape, np.bool_)
        starts[:, 1:] = self._begins[last[:, :-1], self._first[input_ids[:, 1:]]]
        return starts


Kinds = tuple[Kind, Kind]  # of a token's first and last character


def _reading(tokenizer: Tokenizer) -> Callable[[str], Kinds]:
    """How this tokenizer's tokens are to be read."""
    state = json.loads(tokenizer.to_str())
    prefix = state["model"].get("continuing_subword_prefix")
    if prefix:
        return lambda token: _kinds_of_piece(token, prefix)
    if "ByteLevel" in {*_types(state["pre_tokenizer"]), *_types(state["decoder"])}:
        alphabet = _byte_alphabet()
        return lambda token: _kinds_of_bytes(bytes(alphabet.get(letter, 0x20) for letter in token))
    if any(token.startswith(METASPACE) for token in tokenizer.get_vocab()):
        return _kinds_of_text
    raise ConfigError(
        "`objective.whole_words` needs a tokenizer whose tokens show where words begin "
        "(by `▁`, `Ġ` or `##`), and the run's does not: set it to false."
    )


def _types(state: Any) -> Iterator[str]:
    """The names of all steps of a part of a tokenizer."""
    if isinstance(state, dict):
        yield str(state.get("type"))
        for value in state.values():
            yield from _types(value)
    elif isinstance(state, list):
        for value in state:
            yield from _types(value)


def _kinds_of_piece(token: str, prefix: str) -> Kinds:
    """WordPiece: what has the prefix goes on, everything else begins a word."""
    goes_on = token.startswith(prefix) and token != prefix
    return Kind.INSIDE if goes_on else Kind.SPACE, _kind(token[-1])


def _kinds_of_text(token: str) -> Kinds:
    """sentencepiece: a text, with the space as a sign of its own, or a byte of a rare character."""
    byte = FALLBACK_BYTE.fullmatch(token)
    return _kinds_of_bytes(bytes.fromhex(byte[1])) if byte else (_kind(token[0]), _kind(token[-1]))


def _kinds_of_bytes(token: bytes) -> Kinds:
    """Bytes of a text in UTF-8, which may begin or end within a character."""
    begun = token.lstrip(bytes(range(0x80, 0xC0)))
    if not begun:
        return Kind.INSIDE, Kind.INSIDE
    whole = begun.decode(errors="ignore")
    cut = begun[len(whole.encode()) :]
    kinds = [*map(_kind, whole), *([_kind_of_cut(cut)] if cut else [])]
    return kinds[0] if begun == token else Kind.INSIDE, kinds[-1]


def _kind_of_cut(character: bytes) -> Kind:
    """The likeliest kind of a character of which only the first bytes are known: that of the first one so written.

    Among those that begin like spaces and controls (C2, E2), nearly all that occur are punctuation.
    """
    for lowest in (b"\x80", b"\x90", b"\xa0"):  # the lowest second bytes that UTF-8 allows
        for missing in range(1, 4):
            first = (character + (lowest + b"\x80\x80")[:missing]).decode(errors="ignore")
            if first:
                return Kind.PUNCTUATION if first.isspace() or unicodedata.category(first) == "Cc" else _kind(first)
    return Kind.LETTER


def _kind(character: str) -> Kind:
    code = ord(character)
    if character == METASPACE or character.isspace():
        return Kind.SPACE
    if any(first <= code < end for first, end in UNSPACED_SCRIPTS):
        return Kind.UNSPACED
    kinds = {"N": Kind.DIGIT, "P": Kind.PUNCTUATION, "S": Kind.SYMBOL, "Z": Kind.SPACE}
    return kinds.get(unicodedata.category(character)[0], Kind.LETTER)


def _boundaries(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """(last kind, first kind) -> whether a word begins between two such tokens."""
    begins = np.zeros((len(Kind), len(Kind)), np.bool_)
    for last, before in TRIED.items():
        for first, after in TRIED.items():
            begins[last, first] = _cuts(tokenizer, before[0] + after[1])
    begins[Kind.INSIDE] = begins[Kind.LETTER]
    begins[:, Kind.UNSPACED] = begins[Kind.UNSPACED] = True
    begins[Kind.SPACE] = False  # a sign for the space that stands alone belongs to what follows
    begins[:, Kind.INSIDE] = False
    begins[:, Kind.SPACE] = True
    begins[:, Kind.SPECIAL] = begins[Kind.SPECIAL] = True
    return begins


def _cuts(tokenizer: Tokenizer, text: str) -> bool:
    """Whether the tokenizer takes these two characters apart before it looks for tokens."""
    if tokenizer.normalizer is not None:
        text = tokenizer.normalizer.normalize_str(text)
    return tokenizer.pre_tokenizer is not None and len(tokenizer.pre_tokenizer.pre_tokenize_str(text)) > 1


def _byte_alphabet() -> dict[str, int]:
    """The characters by which byte-level tokenizers write bytes: printable ones as they are, then others in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}
