"""Words of a sentence and their tokens, remembered; word starts by token ids agree with each kind of tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tokenizers import Encoding, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from auth.errors import ConfigError
from peer.config.tokenizer import Tokenizer as TokenizerConfig
from peer.data.tokenization.pipelines import build_pipeline
from peer.data.tokenization.special_tokens import SpecialIds
from peer.data.tokenization.words import Cut, WordMemory, WordStarts, find_cut, sums
from tests.support.small_tokenizers import (
    PROSE,
    byte_tokenizer,
    marked_space_tokenizer,
    phrase_tokenizer,
    word_tokenizer,
)

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)

NAMES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

TEXTS = [
    "Nineteen unbelievable mountaineers (and 1 photographer) climbed 8848 metres in 1953!",
    "Costs: $20.50, or 19,99 € -- nobody's counting; it's 100%...",
    "বাংলা ভাষা বিশ্বের একটি প্রধান ভাষা। এর বর্ণমালা ১১টি স্বরবর্ণ নিয়ে গঠিত।",
    "El niño pingüino comió 3 piñas; ¿cuántas quedan?",
]
JOINED = "র‍্যাব ও র‍্যালি।"  # conjuncts that are written with an invisible joiner


def trained(tokenizer: Tokenizer, trainer: trainers.Trainer) -> Tokenizer:
    """The tokenizer with a vocabulary so small that words take several tokens."""
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return tokenizer


def metaspace() -> Tokenizer:
    """Unigram as ALBERT's and sahajBERT's: digits one by one, punctuation apart."""
    tokenizer = Tokenizer(models.Unigram())
    steps = [pre_tokenizers.Metaspace(), pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Punctuation()]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return trained(tokenizer, trainers.UnigramTrainer(vocab_size=140, special_tokens=NAMES, unk_token="[UNK]"))


def plain_metaspace() -> Tokenizer:
    """sentencepiece as Reformer's: only spaces separate words."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return trained(tokenizer, trainers.UnigramTrainer(vocab_size=140, special_tokens=NAMES, unk_token="[UNK]"))


def word_piece() -> Tokenizer:
    """WordPiece as BERT's."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return trained(tokenizer, trainers.WordPieceTrainer(vocab_size=200, special_tokens=NAMES))


def byte_level() -> Tokenizer:
    """Byte-level BPE as RoBERTa's and GPT-2's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return trained(tokenizer, trainers.BpeTrainer(vocab_size=330, special_tokens=NAMES, initial_alphabet=alphabet))


def whole_words_of_bytes(*more: str) -> Tokenizer:
    """Byte-level BPE that keeps marks with their letters, as the preset trains it; `more` words become tokens."""
    tokenizer = build_pipeline(models.BPE(), TokenizerConfig(preset="byte-level"))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=NAMES, initial_alphabet=alphabet)
    tokenizer.train_from_iterator([*TEXTS * 3, *more * 99], trainer)
    return tokenizer


KINDS = [metaspace, plain_metaspace, word_piece, byte_level, whole_words_of_bytes]


def starts_of(tokenizer: Tokenizer, text: str) -> list[bool]:
    """Where words begin in a text's tokens, by the table."""
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return WordStarts(tokenizer, SPECIAL)(np.array([ids], np.int32))[0].tolist()


def words_of(tokenizer: Tokenizer, text: str) -> list[str]:
    """The words by the table, each as the characters of the text that it covers."""
    encoding = tokenizer.encode(text, add_special_tokens=False)
    words: list[tuple[int, int]] = []
    for begins, (start, end) in zip(starts_of(tokenizer, text), encoding.offsets, strict=True):
        if begins:
            words.append((start, end))
        else:
            words[-1] = words[-1][0], end
    return [text[start:end].strip() for start, end in words]


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("text", [TEXTS[0], TEXTS[1], TEXTS[3]])
def test_words_are_what_the_tokenizer_takes_apart(make: Callable[[], Tokenizer], text: str) -> None:
    """A word begins where the tokenizer begins another piece of text, and nowhere else."""
    tokenizer = make()
    pieces = tokenizer.encode(text, add_special_tokens=False).word_ids
    assert len(set(pieces)) < len(pieces)  # some words take several tokens
    expected = [True, *(now != before for before, now in pairwise(pieces))]
    lone_spaces = [tokenizer.id_to_token(i) == "▁" for i in tokenizer.encode(text, add_special_tokens=False).ids]
    # A sign for the space that stands alone belongs to what follows, though the tokenizer cut it off.
    expected = [e and not alone for e, alone in zip(expected, [False, *lone_spaces], strict=False)]
    assert starts_of(tokenizer, text) == expected


@pytest.mark.parametrize("make", KINDS)
def test_bengali_words_stay_whole(make: Callable[[], Tokenizer]) -> None:
    """Vowel signs do not end a word, though the byte-level pattern takes them for no letters; the danda is apart."""
    words = words_of(make(), TEXTS[2])
    assert words[:2] == ["বাংলা", "ভাষা"]
    assert ("ভাষা।" if make is plain_metaspace else "।") in words


@pytest.mark.parametrize("make", KINDS)
def test_scripts_without_spaces_count_by_token(make: Callable[[], Tokenizer]) -> None:
    """Chinese has no word starts to see: no two characters hang together, and one of several tokens is one word."""
    if make in (byte_level, whole_words_of_bytes):
        assert words_of(make(), "我们 学习中文") == ["我", "们", "学", "习", "中", "文"]
    tokenizer = make()
    tokenizer.add_tokens(["我们", "学"])
    assert starts_of(tokenizer, "我们学") == [True] * len(starts_of(tokenizer, "我们学"))


def test_words_with_vowel_signs_are_found_whole() -> None:
    """Each piece that the tokenizer takes apart is one word, conjuncts with joiners as well."""
    tokenizer = whole_words_of_bytes("র‍্যাব")
    assert tokenizer.pre_tokenizer is not None
    for text in (TEXTS[2], JOINED):
        pieces = [text[start:end].strip() for _, (start, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
        assert words_of(tokenizer, text) == pieces


def test_a_mark_of_a_script_without_spaces_begins_no_word() -> None:
    """A Thai vowel sign that is a token stands upon the letter before it."""
    assert starts_of(whole_words_of_bytes(*"กิน"), "กิน") == [True, False, True]


@pytest.mark.parametrize("make", KINDS)
def test_special_tokens_stand_alone(make: Callable[[], Tokenizer]) -> None:
    """A separator ends the word before it, and what follows begins another."""
    tokenizer = make()
    inside = tokenizer.encode("unbelievable", add_special_tokens=False).ids[-1]
    ids = np.array([[SPECIAL.cls, inside, inside, SPECIAL.sep, inside, SPECIAL.sep]], np.int32)
    assert WordStarts(tokenizer, SPECIAL)(ids).tolist() == [[True, True, False, True, True, True]]


def test_bytes_of_rare_characters_count_as_the_character() -> None:
    """A sentencepiece vocabulary that falls back on bytes keeps a character's bytes together."""
    vocabulary = {token: index for index, token in enumerate([*NAMES, "▁snow", "<0xE2>", "<0x98>", "<0x83>", "man"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()])
    assert WordStarts(tokenizer, SPECIAL)(np.array([[5, 6, 7, 8, 9]], np.int32))[0, 2:4].tolist() == [False, False]


def test_a_tokenizer_that_hides_word_starts_is_refused() -> None:
    """Without a sign for spaces in its tokens there is nothing to go by, and the remedy is said."""
    tokenizer = Tokenizer(models.WordLevel({name: index for index, name in enumerate(NAMES)}, unk_token="[UNK]"))
    with pytest.raises(ConfigError, match=r"whole_words.*set it to false"):
        WordStarts(tokenizer, SPECIAL)


AT_SPACES = Cut(takes_space=False, any_gap=True)

BEFORE_SPACES = Cut(takes_space=True, any_gap=True)


@pytest.mark.parametrize(
    ("tokenizer", "cut"),
    [
        (word_tokenizer(), AT_SPACES),
        (marked_space_tokenizer(), Cut(takes_space=False, any_gap=False)),
        (byte_tokenizer(), BEFORE_SPACES),
        (byte_tokenizer(add_prefix_space=True), Cut(takes_space=False, any_gap=False)),
        (phrase_tokenizer(), None),
    ],
)
def test_the_cut_is_found_by_trying(tokenizer: Tokenizer, cut: Cut | None) -> None:
    """Whether spaces belong to words, and whether one is as good as two, follows from the tokens; some have no cut."""
    assert find_cut(tokenizer, [*PROSE, "the cat sat on the mat"]) == cut


def test_a_script_without_spaces_is_not_cut() -> None:
    """Its sentences would be words that never come twice."""
    assert find_cut(word_tokenizer(), ["我喜欢猫。", "你好吗？", "第二 句话。"]) is None


@pytest.mark.parametrize(
    ("cut", "sentence", "words"),
    [
        (AT_SPACES, "one  two\nthree", ["one", "two", "three"]),
        (BEFORE_SPACES, "one  two\nthree", ["one", "  two", "\nthree"]),
        (Cut(takes_space=False, any_gap=False), "one two", ["one", "two"]),
        (Cut(takes_space=False, any_gap=False), "one  two", ["one  two"]),
        (Cut(takes_space=True, any_gap=False), "one\ntwo", ["one\ntwo"]),
        (AT_SPACES, "one\u00a0two three", ["one\u00a0two three"]),
        (BEFORE_SPACES, "one\u2581two three", ["one\u2581two three"]),
    ],
)
def test_sentences_are_cut_where_the_tokenizer_allows(cut: Cut, sentence: str, words: list[str]) -> None:
    """A sentence with other spaces than those that were tried stays whole, and does not keep its neighbours so."""
    assert cut.words([sentence]) == [words]
    assert cut.words(["a b", sentence])[1] == words
    assert list(map(len, cut.words(["a b", sentence]))) == [2, len(words)]


@given(st.lists(st.lists(st.integers(0, 5))))
def test_sums_are_by_group(groups: list[list[int]]) -> None:
    """Each group's own, empty ones included."""
    values = np.array(list(chain.from_iterable(groups)), np.int64)
    assert sums(values, groups).tolist() == list(map(sum, groups))


class Counting:
    """A tokenizer that notes how many words it was given."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.words = 0

    def encode_batch_fast(self, texts: Sequence[str], **options: Any) -> list[Encoding]:
        """The tokenizer's own, counted."""
        self.words += sum(len(text.split()) for text in texts)
        return self._tokenizer.encode_batch_fast(texts, **options)


def test_a_word_is_tokenized_once() -> None:
    """A text of known words costs the tokenizer nothing."""
    counting = Counting(word_tokenizer())
    memory = WordMemory(counting)  # type: ignore[arg-type]
    tokens, lengths = memory.encode(["the", "cat", "the", "cat", "sat"])
    assert counting.words == 3
    again, _ = memory.encode(["the", "cat", "the", "cat", "sat"])
    assert counting.words == 3
    assert again.tolist() == tokens.tolist()
    assert lengths.sum() == len(tokens)


@pytest.mark.parametrize("limit", [{"max_words": 4}, {"max_characters": 12}])
def test_the_memory_stays_small_and_keeps_what_came_first(limit: dict[str, int]) -> None:
    """Past its limit it forgets the newer half of its words, and still knows the older ones' tokens."""
    counting = Counting(word_tokenizer())
    memory = WordMemory(counting, **limit)  # type: ignore[arg-type]
    first, _ = memory.encode(["the", "cat"])
    memory.encode(["sat", "on", "mat"])
    counting.words = 0
    again, _ = memory.encode(["the", "cat"])
    assert counting.words == 0
    assert again.tolist() == first.tolist()
    memory.encode(["sat"])
    assert counting.words == 1
