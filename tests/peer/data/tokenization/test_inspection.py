"""Looking at a tokenizer: its parts, its tokens in a text, those that look wrong, and figures counted by hand."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel

from peer.config.run import RunConfig
from peer.data.tokenization.inspection import (
    ALL,
    STRANGE,
    Fit,
    TracedToken,
    describe,
    has_inner_space,
    has_invisible_characters,
    is_long,
    is_row,
    measure_fit,
    mixes_scripts,
    telling_tokens,
    trace,
)
from peer.data.tokenization.training import train_tokenizer
from tests.support.many_scripts import PROSE


def tokenizer_of(*tokens: str) -> Tokenizer:
    """A tokenizer with these tokens, whose spaces are `▁`."""
    tokenizer = Tokenizer(models.Unigram([("[UNK]", 0.0), *((token, -1.0) for token in tokens)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["[UNK]"])
    return tokenizer


@pytest.mark.parametrize(
    ("is_strange", "strange", "ordinary"),
    [
        (
            has_invisible_characters,
            ["\x07", "a\u00adb", "\ue000", "\u09e4", "\ufeffa"],
            ["a b", "\n", "ক্\u200dষ", "\u200c", "é"],
        ),
        (mixes_scripts, ["раypal", "नিa", "中a"], ["word,", "2nd", "カタかな中", "১৯৭১", " cat", "আমি"]),
        (has_inner_space, ["of the", "the ", " a b", "a\nb"], [" the", "the", " ", "   ", "\n"]),
        (is_long, ["a" * 21], ["a" * 20]),
        (is_row, [".....", "হহহহহ"], ["....", "abcde", "....a"]),
    ],
)
def test_what_is_strange(is_strange: object, strange: list[str], ordinary: list[str]) -> None:
    """What is a trace of broken text, and what only looks like one."""
    assert is_strange in STRANGE.values()
    assert callable(is_strange)
    assert [text for text in strange if not is_strange(text)] == []
    assert [text for text in ordinary if is_strange(text)] == []


def test_strange_tokens_are_found_by_what_they_stand_for() -> None:
    """A `▁` before a word is its space and nothing strange; special tokens are not learnt."""
    found = telling_tokens(tokenizer_of("▁the", "▁of▁the", "a\u00adb", "▁раypal", ".......", "▁" + "x" * 30))
    assert found[ALL].count == 6
    assert found[ALL].examples[0] == "▁" + "x" * 30
    examples = {kind: found[kind].examples for kind in STRANGE}
    assert examples == {
        "invisible characters": ["a\u00adb"],
        "mixed scripts": ["▁раypal"],
        "space inside or behind": ["▁of▁the"],
        "very long": ["▁" + "x" * 30],
        "one character repeated": [".......", "▁" + "x" * 30][:1],
    }


def test_examples_are_few_and_the_count_is_whole() -> None:
    """A page shows them."""
    found = telling_tokens(tokenizer_of(*(f"a\u00ad{number}" for number in range(50))))["invisible characters"]
    assert found.count == 50
    assert len(found.examples) < 10


@pytest.mark.parametrize(
    "settings",
    [{"preset": "byte-level"}, {"preset": "byte-level", "algorithm": "sentencepiece"}, {"preset": "albert"}],
)
def test_bytes_are_not_strange(settings: dict[str, str]) -> None:
    """A vocabulary of bytes holds all of them, controls too, whatever they were learnt from."""
    run = RunConfig.from_mapping({"tokenizer": {"vocab_size": 500, **settings}})
    found = telling_tokens(train_tokenizer(run, iter(PROSE * 3)))
    assert found["invisible characters"].count == 0


def test_tokens_are_traced_to_their_text() -> None:
    """Special tokens stand for nothing."""
    tokenizer = tokenizer_of("▁the", "▁cat", "s")
    assert trace(tokenizer, "the  cats!") == [
        TracedToken("▁the", 1, 0, 3, "the"),
        TracedToken("▁", 0, 3, 4, " "),
        TracedToken("▁cat", 2, 4, 8, " cat"),
        TracedToken("s", 3, 8, 9, "s"),
        TracedToken("!", 0, 9, 10, "!"),
    ]


def test_the_parts_are_listed_in_order() -> None:
    """However deep the sequences are nested; as JSON."""
    tokenizer = tokenizer_of("▁the", "</s>")
    steps = normalizers.Sequence([normalizers.NFC(), normalizers.Sequence([normalizers.Strip()])])
    tokenizer.normalizer = steps
    content = json.loads(json.dumps(describe(tokenizer)))
    assert content["model"] == "Unigram"
    assert content["vocabulary"] == 3
    assert content["normalizers"] == [{"type": "NFC"}, {"type": "Strip", "strip_left": True, "strip_right": True}]
    assert [step["type"] for step in content["pre_tokenizers"]] == ["Metaspace"]
    assert content["special_tokens"] == {"unk": {"token": "[UNK]", "id": 0}, "sep": {"token": "</s>", "id": 2}}


def test_a_tokenizer_of_nothing_but_a_model_can_be_looked_at() -> None:
    """Without steps and without a decoder."""
    content = describe(Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")))
    assert (content["normalizers"], content["pre_tokenizers"], content["special_tokens"]) == ([], [], {})
    assert content["tokens"][ALL]["count"] == 2


def word_piece_of(*tokens: str) -> Tokenizer:
    """A WordPiece tokenizer of these tokens; 0 is the unknown one."""
    vocabulary = {token: number for number, token in enumerate(("[UNK]", *tokens))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def test_counts_are_right() -> None:
    """Unknown tokens, characters, words and the words that were cut; marks are no words."""
    tokenizer = word_piece_of("the", "cat", "##s", "sat", ".")
    fit = measure_fit(tokenizer, ["the cats sat.", "", "the dog ."], "en", unknown_id=0)
    assert fit == Fit(documents=2, characters=22, tokens=8, unknown=1, words=5, word_tokens=6, split_words=1)
    assert fit.summary() == {
        "unknown_rate": 1 / 8,
        "characters_per_token": 22 / 8,
        "tokens_per_word": 6 / 5,
        "split_words": 1 / 5,
        "words_cut_at_marks": 0.0,
    }


def test_a_word_of_one_token_with_its_space_is_not_split() -> None:
    """Tokens that begin with the space before a word, or with a mark, still hold that word alone."""
    tokenizer = Tokenizer(models.WordLevel({"▁the": 0, "▁cat": 1, "▁sat!": 2}, unk_token="▁the"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    fit = measure_fit(tokenizer, ["the cat sat!"], "en", unknown_id=None)
    assert (fit.tokens, fit.words, fit.word_tokens, fit.split_words, fit.unknown) == (3, 3, 3, 0, 0)


def test_vowel_signs_belong_to_their_words() -> None:
    """A Bengali word is one word, though its vowels are marks."""
    tokenizer = word_piece_of("আমি", "ভাত", "খাই", "।")
    assert measure_fit(tokenizer, ["আমি ভাত খাই।"], "bn", unknown_id=0).words == 3


def test_words_that_a_byte_level_tokenizer_cuts_at_their_vowel_signs_are_counted() -> None:
    """GPT-2's pattern cuts such a word, whatever tokens there are; a word without marks stays whole."""
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(ByteLevel.alphabet())}, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    fit = measure_fit(tokenizer, ["আমি ভাত খাই, বল।"], "bn", unknown_id=None)
    assert (fit.words, fit.words_cut_at_marks) == (4, 3)


def test_no_text_has_no_figures() -> None:
    """Rather than figures that mean nothing."""
    assert set(measure_fit(word_piece_of("a"), [""], "en", unknown_id=0).summary().values()) == {None}
