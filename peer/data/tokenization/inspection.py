"""Inspection of a tokenizer: its treatment of text, its vocabulary, suspicious tokens, and its fit.

The fit to a text consists of the rate of unknown tokens and the numbers of tokens per character and
word. `manyhands tokenizer inspect` displays the results.
"""

from __future__ import annotations

import json
import logging
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer
from tokenizers.pre_tokenizers import ByteLevel, UnicodeScripts, Whitespace

from peer.data.tokenization.sentences import split_sentences
from peer.data.tokenization.special_tokens import special_names
from peer.data.tokenization.words import JOINERS

logger = logging.getLogger(__name__)

BATCH = 256  # documents tokenized per call
NOTICEABLE = 0.02  # share of cut words above which to warn; texts with few marks stay below it
_WORDS = Whitespace()  # runs of letters, marks and digits, and runs of anything else
ALL = "all, longest first"
CUT_WORDS = (
    "The run's tokenizer cuts %.0f %% of words at vowel signs or other combining marks before it looks for tokens: a "
    "text has more tokens than it needs. Tokenizers that the preset `byte-level` trains now keep these words whole: "
    "train one for the next run."
)
EXAMPLES = 8  # tokens shown per kind
LONG = 20  # length in characters above which a token is reported
ROW = 5  # number of repetitions above which a token is reported
BYTES = {f"<0x{byte:02X}>" for byte in range(256)}  # sentencepiece's byte tokens
_SCRIPTS = UnicodeScripts()
_NO_JOINERS = dict.fromkeys(map(ord, JOINERS))


@dataclass(frozen=True)
class TracedToken:
    """A token and the part of the text that it represents."""

    token: str
    id: int
    start: int  # offset in the text, in characters
    end: int
    text: str


@dataclass(frozen=True)
class Found:
    """The number of tokens of one kind, and examples."""

    count: int
    examples: list[str]


def trace(tokenizer: Tokenizer, text: str) -> list[TracedToken]:
    """Return every token of a text, including special ones."""
    encoding = tokenizer.encode(text)
    return [
        TracedToken(token, number, start, end, text[start:end])
        for token, number, (start, end) in zip(encoding.tokens, encoding.ids, encoding.offsets, strict=True)
    ]


def describe(tokenizer: Tokenizer, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a tokenizer's parts and notable tokens as JSON; `config` may name special tokens."""
    content = json.loads(tokenizer.to_str())
    return {
        "vocabulary": tokenizer.get_vocab_size(),
        "model": content["model"].get("type", "unknown"),
        "normalizers": list(_steps(content["normalizer"], "normalizers")),
        "pre_tokenizers": list(_steps(content["pre_tokenizer"], "pretokenizers")),
        "special_tokens": {
            role: {"token": name, "id": tokenizer.token_to_id(name)}
            for role, name in special_names(tokenizer, config).items()
        },
        "tokens": {kind: vars(found) for kind, found in telling_tokens(tokenizer).items()},
    }


def telling_tokens(tokenizer: Tokenizer) -> dict[str, Found]:
    """Return the longest learned tokens, and the suspicious ones by kind."""
    texts = dict(_texts(tokenizer))
    by_length = sorted(texts, key=lambda token: -len(texts[token]))
    found = {ALL: Found(len(texts), by_length[:EXAMPLES])}
    for kind, is_strange in STRANGE.items():
        tokens = [token for token, text in texts.items() if is_strange(text)]
        found[kind] = Found(len(tokens), tokens[:EXAMPLES])
    return found


@dataclass(frozen=True)
class Fit:
    """Counts of tokens and words in a text; a word is a run of letters, marks and digits."""

    documents: int = 0
    characters: int = 0
    tokens: int = 0
    unknown: int = 0  # number of unknown tokens
    words: int = 0
    word_tokens: int = 0  # tokens with part of a word; tokens with parts of two words count twice
    split_words: int = 0  # words of more than one token
    words_cut_at_marks: int = 0  # words cut by the pre-tokenizer, which can never be a single token

    def __add__(self, other: Fit) -> Fit:
        return Fit(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def summary(self) -> dict[str, float | None]:
        """Return ratios for comparing tokenizers; a ratio is None if there is nothing to count."""
        return {
            "unknown_rate": _ratio(self.unknown, self.tokens),
            "characters_per_token": _ratio(self.characters, self.tokens),
            "tokens_per_word": _ratio(self.word_tokens, self.words),
            "split_words": _ratio(self.split_words, self.words),
            "words_cut_at_marks": _ratio(self.words_cut_at_marks, self.words),
        }


def measure_fit(tokenizer: Tokenizer, documents: Iterable[str], language: str, unknown_id: int | None) -> Fit:
    """Count tokens and words of documents, tokenized sentence by sentence as in training."""
    total = Fit()
    for batch in _batches(documents):
        by_document = [split_sentences(document, language) for document in batch]
        sentences = [sentence for document in by_document for sentence in document]
        encodings = tokenizer.encode_batch(sentences, add_special_tokens=False)
        total += Fit(documents=sum(map(bool, by_document)), words_cut_at_marks=_cut_at_marks(tokenizer, sentences)[0])
        total = sum((_count(*pair, unknown_id) for pair in zip(sentences, encodings, strict=True)), total)
    return total


def _count(sentence: str, encoding: Encoding, unknown_id: int | None) -> Fit:
    word_starts, word_ends = _word_spans(sentence)
    starts, ends = np.array(encoding.offsets, np.int64).reshape(-1, 2).T  # (tokens,) each; ascending
    # A token contains a part of a word if it begins before the word's end and ends after its start.
    parts = np.searchsorted(starts, word_ends, "left") - np.searchsorted(ends, word_starts, "right")
    return Fit(
        characters=len(sentence),
        tokens=len(encoding),
        unknown=0 if unknown_id is None else encoding.ids.count(unknown_id),
        words=len(word_starts),
        word_tokens=int(parts.sum()),
        split_words=int((parts > 1).sum()),
    )


def warn_of_cut_words(tokenizer: Tokenizer, sentences: Iterable[str]) -> None:
    """Log a warning if the tokenizer cuts many of these sentences' words at combining marks."""
    cut, words = _cut_at_marks(tokenizer, sentences)
    if cut > NOTICEABLE * words:
        logger.warning(CUT_WORDS, 100 * cut / words)


def _cut_at_marks(tokenizer: Tokenizer, sentences: Iterable[str]) -> tuple[int, int]:
    """Count the words that the pre-tokenizer cuts before a combining mark, and all words."""
    cut = words = 0
    for sentence in sentences if tokenizer.pre_tokenizer is not None else ():
        text = sentence if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(sentence)
        places = [start for _, (start, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text) if start < end]
        cuts = [place for place in places if unicodedata.category(text[place]).startswith("M")]
        starts, ends = _word_spans(text)
        cut += int((np.searchsorted(cuts, starts, "right") < np.searchsorted(cuts, ends, "left")).sum())
        words += len(starts)
    return cut, words


def _word_spans(text: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the starts and the ends of words, (words,) each."""
    words = [span for piece, span in _WORDS.pre_tokenize_str(text) if any(map(str.isalnum, piece))]
    starts, ends = np.array(words, np.int64).reshape(-1, 2).T
    return starts, ends


def _batches(documents: Iterable[str]) -> Iterator[Sequence[str]]:
    remaining = iter(documents)
    while batch := list(islice(remaining, BATCH)):
        yield batch


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def has_invisible_characters(text: str) -> bool:
    """Return whether a token has control, format, private or unassigned characters."""
    parts = text.translate(_NO_JOINERS).split()  # `split` removes harmless line ends
    return any(unicodedata.category(character) in ("Cc", "Cf", "Co", "Cn") for character in chain.from_iterable(parts))


def mixes_scripts(text: str) -> bool:
    """Return whether a token mixes scripts, such as Cyrillic look-alikes among Latin letters."""
    letters = "".join(filter(str.isalpha, text))
    return len(_SCRIPTS.pre_tokenize_str(letters)) > 1


def has_inner_space(text: str) -> bool:
    """Return whether a token has white space after its first character, within or after words."""
    return bool(text.strip()) and any(map(str.isspace, text[1:]))


def is_long(text: str) -> bool:
    """Return whether a token is longer than most words, like a URL or several unsplit words."""
    return len(text) > LONG


def is_row(text: str) -> bool:
    """Return whether one character is repeated, as in rulers and ornaments."""
    return len(text) >= ROW and len(set(text)) == 1


STRANGE: Mapping[str, Callable[[str], bool]] = {
    "invisible characters": has_invisible_characters,
    "mixed scripts": mixes_scripts,
    "space inside or behind": has_inner_space,
    "very long": is_long,
    "one character repeated": is_row,
}


def _texts(tokenizer: Tokenizer) -> Iterator[tuple[str, str]]:
    """Yield each learned token and its text, in order of token ID."""
    vocabulary = tokenizer.get_vocab()
    not_learnt = {token.content for token in tokenizer.get_added_tokens_decoder().values()} | BYTES
    if _text(tokenizer, "Ġ") == " ":  # "Ġ" encodes a space in the byte-level alphabet
        not_learnt |= set(ByteLevel.alphabet())
    for token in sorted(vocabulary.keys() - not_learnt, key=vocabulary.__getitem__):
        yield token, _text(tokenizer, token)


def _text(tokenizer: Tokenizer, token: str) -> str:
    """Return a token's text as it appears inside a sentence, with its leading space."""
    decoder = tokenizer.decoder
    return token if decoder is None else decoder.decode(["x", token])[1:]


def _steps(content: dict[str, Any] | None, parts: str) -> Iterator[dict[str, Any]]:
    """Yield the steps of a nested pipeline, without binary tables."""
    if content is None:
        return
    if content["type"] == "Sequence":
        for part in content[parts]:
            yield from _steps(part, parts)
        return
    yield {name: value for name, value in content.items() if name != "precompiled_charsmap"}
