"""Words of a text: tokenized separately with a cache, and their starts among token ids.

Nearly every tokenizer treats words independently, so the encoder tokenizes each word once
(`find_cut`, `WordMemory`). Most tokenizers first split at white space and ignore its amount;
byte-level ones (RoBERTa, GPT-2) attach white space to the next word. A trial detects the kind.

For whole-word masking, `WordStarts` finds the starts of words. Nearly every tokenizer marks them in
its tokens: "▁" or "Ġ" is the space before a word (sentencepiece, byte level), and "##" a
continuation (WordPiece). Without spaces a tokenizer cuts between kinds of characters, such as
letters, punctuation and digits. A table of the tokens' first and last kinds is therefore
sufficient, and masking needs no text. Scripts without spaces (Chinese, Japanese, Thai, Lao, Khmer,
Burmese, Tibetan) do not mark words: each token, or character of several tokens, is treated as a
word.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from auth.errors import ConfigError
from peer.data.tokenization.special_tokens import SpecialIds

GAPS = ("  ", "\n", "\t", "\r")  # possible separators of words besides a space
GAPPED_SENTENCES = 20  # sentences tried with each separator
FEW_WORDS = 3  # fewer words per sentence indicate a script without spaces
WORD_WITH_SPACE = re.compile(r"\s*\S+")
# A printable symbol that normalizers turn into a space, which changes the words.
REPLACEMENT = "\ufffd"
Tokens = NDArray[np.int32]
Ints = NDArray[np.int64]
MAX_WORDS = 300_000  # maximum number of cached words, of about a hundred bytes each
MAX_CHARACTERS = 16_000_000  # total length of the cached words
METASPACE = "▁"
JOINERS = "\u200c\u200d"  # invisible, but part of words in many scripts
FALLBACK_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
UNSPACED_SCRIPTS = (
    (0x0E00, 0x10A0),  # Thai, Lao, Tibetan, Burmese
    (0x1780, 0x1800),  # Khmer
    (0x3040, 0x3100),  # kana
    (0x3400, 0xA000),  # Han
    (0xF900, 0xFB00),
    (0x20000, 0x40000),
)


@dataclass(frozen=True)
class Cut:
    """A rule for splitting sentences into words; sentences that do not fit it are not split."""

    takes_space: bool  # whether a word includes the white space before it
    any_gap: bool  # whether any white space may separate words, or only one space

    def words(self, sentences: list[str]) -> list[list[str]]:
        """Return each sentence's words; fastest for similar sentences, such as those of one document."""
        split = WORD_WITH_SPACE.findall if self.takes_space else str.split
        if self._is_plain("".join(sentences)):
            return [split(sentence) for sentence in sentences]
        return [split(sentence) if self._is_plain(sentence) else [sentence] for sentence in sentences]

    def _is_plain(self, text: str) -> bool:
        """Return whether this rule finds all spaces that a tokenizer would see in the text."""
        if self.any_gap:
            text = text.replace("\n", " ").replace("\r", " ").replace("\t", " ")
        elif "  " in text:
            return False
        return text.isprintable() and METASPACE not in text and REPLACEMENT not in text


CUTS = tuple(Cut(takes_space, any_gap) for any_gap in (True, False) for takes_space in (False, True))


def find_cut(tokenizer: Tokenizer, sentences: list[str]) -> Cut | None:
    """Return the first cut whose words, tokenized separately, yield the sentences' tokens.

    Returns None if there is no such cut, or if the sentences have hardly any spaces.
    """
    if sum(len(sentence.split()) for sentence in sentences) < FEW_WORDS * len(sentences):
        return None
    sentences = [*sentences, *(gap.join(sentence.split()) for gap in GAPS for sentence in sentences[:GAPPED_SENTENCES])]
    whole = encode_texts(tokenizer, sentences)
    return next((cut for cut in CUTS if _fits(cut, tokenizer, sentences, whole)), None)


def _fits(cut: Cut, tokenizer: Tokenizer, sentences: list[str], whole: tuple[Tokens, Ints]) -> bool:
    """Return whether tokenizing this cut's words separately gives the sentences' tokens."""
    by_sentence = cut.words(sentences)
    words = list(chain.from_iterable(by_sentence))
    tokens, lengths = encode_texts(tokenizer, words)
    return np.array_equal(tokens, whole[0]) and np.array_equal(sums(lengths, by_sentence), whole[1])


def sums(values: Ints, groups: Sequence[Sequence[object]]) -> Ints:
    """Return the sum of each group's values; a group has one value per item."""
    so_far = np.concatenate([[0], np.cumsum(values)])
    ends = np.cumsum(np.fromiter(map(len, groups), np.int64, len(groups)))
    return np.diff(so_far[ends], prepend=0)


def encode_texts(tokenizer: Tokenizer, texts: list[str]) -> tuple[Tokens, Ints]:
    """Return all tokens (tokens,) and the number of tokens of each text (texts,)."""
    ids = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    return np.fromiter(chain.from_iterable(ids), np.int32, int(lengths.sum())), lengths


class _Numbers(dict[str, int]):
    """A dictionary that numbers words in the order of first use."""

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        return number


class WordMemory:
    """A cache that tokenizes each word once.

    Its tables are arrays, so a text of known words costs one look-up per word.
    """

    def __init__(self, tokenizer: Tokenizer, max_words: int = MAX_WORDS, max_characters: int = MAX_CHARACTERS) -> None:
        self._tokenizer, self._max_words, self._max_characters = tokenizer, max_words, max_characters
        self._numbers = _Numbers()
        self._characters = 0  # total length of the cached words
        self._tokens: Tokens = np.empty(0, np.int32)  # tokens of all cached words, in order of word number
        self._ends: Ints = np.zeros(1, np.int64)  # (words + 1,): word i has the tokens from entry i up to entry i + 1

    def encode(self, words: Sequence[str]) -> tuple[Tokens, Ints]:
        """Return all tokens (tokens,) and the number of tokens of each word (words,)."""
        known = len(self._numbers)
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))
        self._learn(list(islice(self._numbers, known, None)))
        starts = self._ends[numbers]
        lengths = self._ends[numbers + 1] - starts
        ends = np.cumsum(lengths)
        tokens = self._tokens[np.repeat(starts - (ends - lengths), lengths) + np.arange(lengths.sum())]
        self._forget()
        return tokens, lengths

    def _learn(self, words: list[str]) -> None:
        if words:
            tokens, lengths = encode_texts(self._tokenizer, words)
            self._characters += sum(map(len, words))
            self._tokens = np.concatenate([self._tokens, tokens])
            self._ends = np.concatenate([self._ends, self._ends[-1] + np.cumsum(lengths)])

    def _forget(self) -> None:
        """If the cache is full, drop the newer half of its words; frequent words appear early."""
        if len(self._numbers) <= self._max_words and self._characters <= self._max_characters:
            return
        kept = min(len(self._numbers), self._max_words) // 2
        self._numbers = _Numbers(islice(self._numbers.items(), kept))
        self._characters = sum(map(len, self._numbers))
        self._ends = self._ends[: kept + 1].copy()
        self._tokens = self._tokens[: self._ends[-1]].copy()


class CharacterKind(IntEnum):
    """The kind of character at a token's beginning or end."""

    SPACE = 0
    LETTER = 1
    DIGIT = 2
    PUNCTUATION = 3
    SYMBOL = 4
    UNSPACED = 5  # a character of a script without spaces
    INSIDE = 6  # the token continues a word or a character of an earlier token
    SPECIAL = 7


# Two characters of each kind, because cuts within a kind are tried too.
TRIED = {
    CharacterKind.LETTER: "ab",
    CharacterKind.DIGIT: "12",
    CharacterKind.PUNCTUATION: ",!",
    CharacterKind.SYMBOL: "€£",
}


class WordStarts:
    """A detector of word starts among token ids, which also considers the preceding ids."""

    def __init__(self, tokenizer: Tokenizer, special: SpecialIds) -> None:
        """Build the tables. Raises `ConfigError` for a tokenizer whose tokens do not show word starts."""
        kinds_of = _reading(tokenizer)
        size = tokenizer.get_vocab_size()
        self._first, self._last = (np.full(size, CharacterKind.SPECIAL, np.int8) for _ in range(2))
        specials = {special.pad, special.unk, special.cls, special.sep, special.mask}
        for token, token_id in tokenizer.get_vocab().items():
            if token and token_id not in specials:
                self._first[token_id], self._last[token_id] = kinds_of(token)
        self._begins = _boundaries(tokenizer)

    def __call__(self, input_ids: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return a mask of word starts for ids (samples, length); each sample begins with one."""
        last, column = self._last[input_ids], np.arange(input_ids.shape[1])
        # A token with only a character's later bytes takes that character's kind from an earlier
        # token.
        known = np.maximum.accumulate(np.where(last == CharacterKind.INSIDE, 0, column), axis=1)
        last = np.take_along_axis(last, known, axis=1)
        starts = np.ones(input_ids.shape, np.bool_)
        starts[:, 1:] = self._begins[last[:, :-1], self._first[input_ids[:, 1:]]]
        return starts


Kinds = tuple[CharacterKind, CharacterKind]  # kinds of a token's first and last character


def _reading(tokenizer: Tokenizer) -> Callable[[str], Kinds]:
    """Return a function from tokens to kinds. Raises `ConfigError` if tokens do not show word starts."""
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
    """Yield the types of all steps in a part of a tokenizer's state."""
    if isinstance(state, dict):
        yield str(state.get("type"))
        for value in state.values():
            yield from _types(value)
    elif isinstance(state, list):
        for value in state:
            yield from _types(value)


def _kinds_of_piece(token: str, prefix: str) -> Kinds:
    """Return the kinds of a WordPiece token; a token with the prefix continues a word."""
    goes_on = token.startswith(prefix) and token != prefix
    return CharacterKind.INSIDE if goes_on else CharacterKind.SPACE, _kind(token[-1])


def _kinds_of_text(token: str) -> Kinds:
    """Return the kinds of the ends of a sentencepiece token, which is text or a single byte."""
    byte = FALLBACK_BYTE.fullmatch(token)
    return _kinds_of_bytes(bytes.fromhex(byte[1])) if byte else _kinds_of_characters(token)


def _kinds_of_characters(text: str) -> Kinds:
    """Return the kinds of a text's ends; a combining mark belongs to the character before it."""
    last = next((_kind(character) for character in reversed(text) if not _is_mark(character)), CharacterKind.INSIDE)
    return CharacterKind.INSIDE if _is_mark(text[0]) else _kind(text[0]), last


def _is_mark(character: str) -> bool:
    return character in JOINERS or unicodedata.category(character).startswith("M")


def _kinds_of_bytes(token: bytes) -> Kinds:
    """Return the kinds of UTF-8 bytes, which may begin or end within a character."""
    begun = token.lstrip(bytes(range(0x80, 0xC0)))
    if not begun:
        return CharacterKind.INSIDE, CharacterKind.INSIDE
    whole = begun.decode(errors="ignore")
    cut = begun[len(whole.encode()) :]
    first, last = _kinds_of_characters(whole) if whole else (_kind_of_cut(cut),) * 2
    return first if begun == token else CharacterKind.INSIDE, _kind_of_cut(cut) if cut else last


def _kind_of_cut(character: bytes) -> CharacterKind:
    """Guess a cut character's kind: that of the first character with the same first bytes.

    Nearly all characters that share a first byte with spaces and controls (C2, E2) are punctuation.
    """
    for lowest in (b"\x80", b"\x90", b"\xa0"):  # lowest second byte: usual, after F0, after E0
        for missing in range(1, 4):
            first = (character + (lowest + b"\x80\x80")[:missing]).decode(errors="ignore")
            if first:
                return (
                    CharacterKind.PUNCTUATION
                    if first.isspace() or unicodedata.category(first) == "Cc"
                    else _kind(first)
                )
    return CharacterKind.LETTER


def _kind(character: str) -> CharacterKind:
    code = ord(character)
    if character == METASPACE or character.isspace():
        return CharacterKind.SPACE
    if any(first <= code < end for first, end in UNSPACED_SCRIPTS):
        return CharacterKind.UNSPACED
    kinds = {
        "N": CharacterKind.DIGIT,
        "P": CharacterKind.PUNCTUATION,
        "S": CharacterKind.SYMBOL,
        "Z": CharacterKind.SPACE,
    }
    return kinds.get(unicodedata.category(character)[0], CharacterKind.LETTER)


def _boundaries(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """Build the table (last kind, first kind) -> whether a word begins between two such tokens."""
    begins = np.zeros((len(CharacterKind), len(CharacterKind)), np.bool_)
    for last, before in TRIED.items():
        for first, after in TRIED.items():
            begins[last, first] = _cuts(tokenizer, before[0] + after[1])
    begins[CharacterKind.INSIDE] = begins[CharacterKind.LETTER]
    begins[:, CharacterKind.UNSPACED] = begins[CharacterKind.UNSPACED] = True
    begins[CharacterKind.SPACE] = False  # a separate space token belongs to the next token's word
    begins[:, CharacterKind.INSIDE] = False
    begins[:, CharacterKind.SPACE] = True
    begins[:, CharacterKind.SPECIAL] = begins[CharacterKind.SPECIAL] = True
    return begins


def _cuts(tokenizer: Tokenizer, text: str) -> bool:
    """Return whether the pre-tokenizer separates these two characters."""
    if tokenizer.normalizer is not None:
        text = tokenizer.normalizer.normalize_str(text)
    return tokenizer.pre_tokenizer is not None and len(tokenizer.pre_tokenizer.pre_tokenize_str(text)) > 1


def _byte_alphabet() -> dict[str, int]:
    """Return the byte of each letter of the byte-level alphabet; printable bytes represent themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}
