"""Measuring a tokenizer by a text: every figure can be counted by hand."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel

from peer.config.run import RunConfig
from peer.data.tokenization.inspection import Fit, measure_fit
from peer.data.tokenization.training import train_tokenizer
from tests.support.many_scripts import PROSE


def tokenizer_of(*tokens: str) -> Tokenizer:
    """A WordPiece tokenizer of these tokens; 0 is the unknown one."""
    vocabulary = {token: number for number, token in enumerate(("[UNK]", *tokens))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def test_counts_are_right() -> None:
    """Unknown tokens, characters, words and the words that were cut; marks are no words."""
    tokenizer = tokenizer_of("the", "cat", "##s", "sat", ".")
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
    tokenizer = tokenizer_of("আমি", "ভাত", "খাই", "।")
    assert measure_fit(tokenizer, ["আমি ভাত খাই।"], "bn", unknown_id=0).words == 3


def test_words_that_a_byte_level_tokenizer_cuts_at_their_vowel_signs_are_counted() -> None:
    """GPT-2's pattern cuts such a word, whatever tokens there are; a word without marks stays whole."""
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(ByteLevel.alphabet())}, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    fit = measure_fit(tokenizer, ["আমি ভাত খাই, বল।"], "bn", unknown_id=None)
    assert (fit.words, fit.words_cut_at_marks) == (4, 3)


@pytest.mark.parametrize("preset", ["albert", "byte-level", "multilingual-cased"])
def test_figures_fit_together_for_every_kind(preset: str) -> None:
    """No word is without a token, and a word that is not split has exactly one."""
    run = RunConfig.from_mapping({"tokenizer": {"preset": preset, "vocab_size": 600}})
    fit = measure_fit(train_tokenizer(run, iter(PROSE * 4)), PROSE, "en", unknown_id=None)
    assert fit.documents == len(PROSE)
    assert 0 < fit.split_words <= fit.words
    assert fit.word_tokens >= fit.words + fit.split_words


def test_no_text_has_no_figures() -> None:
    """Rather than figures that mean nothing."""
    assert set(measure_fit(tokenizer_of("a"), [""], "en", unknown_id=0).summary().values()) == {None}
