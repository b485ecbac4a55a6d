"""Looking at a tokenizer: its parts, its tokens in a text, and the tokens that look wrong."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from peer.config.run import RunConfig
from peer.data.tokenization.inspection import (
    ALL,
    STRANGE,
    TracedToken,
    describe,
    has_inner_space,
    has_invisible_characters,
    is_long,
    is_row,
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
