"""Pipelines: a run file's steps as the tokenizers library's, and the decoder that follows from them."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given, strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.normalizers import Normalizer

from auth.errors import ConfigError
from peer.config.tokenizer import Tokenizer as TokenizerConfig
from peer.data.tokenization.pipelines import build_normalizer, build_pipeline
from tests.support.many_scripts import COMPOSED, ENGLISH, SPACES


def pipeline(**config: Any) -> Tokenizer:
    """A tokenizer with these settings and no vocabulary."""
    return build_pipeline(models.Unigram(), TokenizerConfig(**config))


def normalizer(**config: Any) -> Normalizer:
    """Its normalizer."""
    built = build_normalizer(TokenizerConfig(**config))
    assert built is not None
    return built


def pieces(text: str, **config: Any) -> list[str]:
    """How the pre-tokenizers cut a text."""
    pre_tokenizer = pipeline(**config).pre_tokenizer
    assert pre_tokenizer is not None
    return [piece for piece, _ in pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("step", "text", "result"),
    [
        ("nmt", "a\tb\x01c", "a bc"),
        ("nfc", "e\u0301", "é"),
        ("nfd", "é", "e\u0301"),
        ("nfkc", "ﬁ", "fi"),
        ("nfkd", "½", "1⁄2"),
        ("lowercase", "ÀB", "àb"),
        ("strip-accents", "e\u0301", "e"),
        ("strip", " a ", "a"),
        ({"name": "strip", "right": False}, " a ", "a "),
        ({"name": "replace", "pattern": ".", "content": "-"}, "a.b", "a-b"),
        ({"name": "replace", "pattern": "a+", "regex": True, "content": "b"}, "aaa", "b"),
        ({"name": "prepend", "prepend": ">"}, "a", ">a"),
        ("bert", "É\x00中", "É 中 "),
        ({"name": "bert", "strip_accents": True, "lowercase": True, "handle_chinese_chars": False}, "É中", "e中"),
    ],
)
def test_every_normalizer_does_what_its_name_says(step: Any, text: str, result: str) -> None:
    """With its parameters."""
    assert normalizer(normalizers=[step]).normalize_str(text) == result


@pytest.mark.parametrize(
    ("step", "text", "result"),
    [
        ("bert", "a b,c", ["a", "b", ",", "c"]),
        ("whitespace", "a b,,c", ["a", "b", ",,", "c"]),
        ("whitespace-split", "a b,c", ["a", "b,c"]),
        ("unicode-scripts", "abcвгд", ["abc", "вгд"]),
        ("unicode-words", "I'm  র‍্যাব, 1️⃣2 ❤️x\n", ["I", "'m", " ", " র‍্যাব", ",", " 1️⃣2", " ❤️", "x", "\n"]),
        ("metaspace", "a b", ["▁a", "▁b"]),
        ({"name": "metaspace", "prepend_scheme": "never"}, "a b", ["a", "▁b"]),
        ("byte-level", "é b", ["Ã©", "Ġb"]),
        ({"name": "byte-level", "add_prefix_space": True}, "a", ["Ġa"]),
        ("digits", "a12", ["a", "1", "2"]),
        ({"name": "digits", "individual_digits": False}, "a12", ["a", "12"]),
        ("punctuation", "a,,b", ["a", ",", ",", "b"]),
        ({"name": "punctuation", "behavior": "contiguous"}, "a,,b", ["a", ",,", "b"]),
        ({"name": "split", "pattern": "x"}, "axb", ["a", "x", "b"]),
        ({"name": "split", "pattern": "[0-9]+", "regex": True, "behavior": "removed"}, "a12b", ["a", "b"]),
        ({"name": "split", "pattern": "b", "invert": True, "behavior": "removed"}, "abc", ["b"]),
        ({"name": "char-delimiter", "delimiter": "|"}, "a|b", ["a", "b"]),
        ({"name": "fixed-length", "length": 2}, "abc", ["ab", "c"]),
    ],
)
def test_every_pre_tokenizer_does_what_its_name_says(step: Any, text: str, result: list[str]) -> None:
    """With its parameters."""
    assert pieces(text, algorithm="bpe", pre_tokenizers=[step]) == result


@given(st.text(st.characters(codec="utf-8", exclude_categories=("M",), exclude_characters="\u200c\u200d")))
def test_text_without_marks_is_cut_as_gpt2_cuts_it(text: str) -> None:
    """So a vocabulary of English is the same as before."""
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    assert pieces(text, preset="byte-level") == [piece for piece, _ in cut]


@given(st.text(st.sampled_from("কি্রাংঁ‌‍ั้กé́ ")))
def test_a_mark_stays_with_the_character_before_it(text: str) -> None:
    """In every script; only behind a space, or at the beginning, a mark has none."""
    pre_tokenizer = pipeline(preset="byte-level").pre_tokenizer
    assert pre_tokenizer is not None
    for _, (start, _) in pre_tokenizer.pre_tokenize_str(text):
        assert not start or not unicodedata.category(text[start]).startswith("M") or text[start - 1] == " "


def test_a_wrong_regular_expression_is_one_sentence() -> None:
    """The step and the pattern are named."""
    with pytest.raises(ConfigError, match=r"replace: '\(' is not a regular expression: .*parenthesis"):
        normalizer(normalizers=[{"name": "replace", "pattern": "(", "regex": True, "content": ""}])


# sahajBERT's, as its published tokenizer has them; the marks that are unified are written by their code points.
SAHAJBERT_NORMALIZERS = [
    {"type": "Nmt"},
    {"type": "NFKC"},
    {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
    {"type": "Replace", "pattern": {"String": "\u09e4"}, "content": "\u0964"},
    {"type": "Replace", "pattern": {"String": "\u09e5"}, "content": "\u0965"},
    {"type": "Replace", "pattern": {"String": "|"}, "content": "\u0964"},
    {"type": "Replace", "pattern": {"String": "\u09f7"}, "content": "\u0964"},
    {"type": "Replace", "pattern": {"Regex": "(?<=[\\u0980-\\u09ff]):"}, "content": "\u0983"},
    {"type": "Lowercase"},
]


def sahajbert_normalizer() -> Normalizer:
    """Read by the library from its JSON form."""
    content = json.loads(Tokenizer(models.Unigram()).to_str())
    content["normalizer"] = {"type": "Sequence", "normalizers": SAHAJBERT_NORMALIZERS}
    read = Tokenizer.from_str(json.dumps(content)).normalizer
    assert read is not None
    return read


@given(
    st.text(
        st.one_of(st.characters(codec="utf-8"), st.sampled_from("\u09e4\u09e5|\u09f7\u0964: কিA\u0301\u09be\u09c7"))
    )
)
def test_the_bengali_preset_changes_text_as_sahajbert_does(text: str) -> None:
    """Any text, and much of what the marks are made of."""
    assert normalizer(preset="bengali").normalize_str(text) == sahajbert_normalizer().normalize_str(text)


def test_bengali_keeps_its_vowel_signs_and_unifies_its_marks() -> None:
    """The danda and the visarga, however they are typed."""
    assert normalizer(preset="bengali").normalize_str("দু:খ ৷ আমি | তুমি\u09e4 A:B") == "দুঃখ । আমি । তুমি। a:b"
    assert pieces("দুঃখ, ১৯", preset="bengali") == ["▁দুঃখ", ",", "▁", "১", "৯"]


def test_multilingual_cased_keeps_case_and_accents_and_sets_chinese_apart() -> None:
    """As multilingual BERT's does."""
    assert normalizer(preset="multilingual-cased").normalize_str("É\x07 我们\u00a0b") == "É  我  们  b"
    assert pieces("É, b", preset="multilingual-cased") == ["É", ",", "b"]


def test_byte_level_changes_nothing() -> None:
    """Case, accents and spaces stay; every byte has a letter."""
    assert build_normalizer(TokenizerConfig(preset="byte-level")) is None
    assert pieces("The  é", preset="byte-level") == ["The", "Ġ", "ĠÃ©"]


@pytest.mark.parametrize(
    ("config", "tokens", "text"),
    [
        ({"preset": "albert"}, ["▁a", "b", "▁c"], "ab c"),
        ({"preset": "albert", "algorithm": "wordpiece"}, ["▁a", "##b", "▁c"], "ab c"),
        ({"preset": "byte-level"}, ["a", "Ã©", "Ġc"], "aé c"),
        ({"preset": "byte-level", "algorithm": "wordpiece"}, ["a", "##Ã©", "Ġc"], "aé c"),
        ({"preset": "multilingual-cased"}, ["a", "##b", "c"], "ab c"),
        ({"preset": "multilingual-cased", "algorithm": "bpe"}, ["a", "##b", "c"], "ab c"),
        ({"preset": "multilingual-cased", "algorithm": "unigram"}, ["▁a", "b", "▁c"], "ab c"),
        ({"pre_tokenizers": ["unicode-scripts"]}, ["ab", " c"], "ab c"),
        ({"pre_tokenizers": [{"name": "metaspace", "prepend_scheme": "never"}]}, ["a", "▁c"], "a c"),
    ],
)
def test_tokens_become_text_again(config: dict[str, Any], tokens: list[str], text: str) -> None:
    """The decoder undoes what the pre-tokenizers and the algorithm did to spaces."""
    decoder = pipeline(**config).decoder
    assert decoder is not None
    assert decoder.decode(tokens) == text


@pytest.mark.parametrize("preset", ["albert", "bengali", "byte-level", "multilingual-cased"])
def test_cutting_loses_nothing_but_spaces(preset: str) -> None:
    """What goes into the vocabulary is the text."""
    for text in (ENGLISH, SPACES, COMPOSED):
        kept = pipeline(preset=preset).pre_tokenizer
        assert kept is not None
        spans = [span for _, span in kept.pre_tokenize_str(text)]
        covered = {index for start, end in spans for index in range(start, end)}
        assert all(text[index].isspace() for index in set(range(len(text))) - covered)
