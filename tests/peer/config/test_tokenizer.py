"""`tokenizer:` in a run file: presets, what overrides them, and what cannot be asked for."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from auth.errors import ConfigError
from peer.config.run import RunConfig
from peer.config.tokenizer import LOWERCASE, PRESETS, Tokenizer

SPACES: dict[str, Any] = {"name": "replace", "pattern": " {2,}", "regex": True, "content": " "}


def section(**content: Any) -> Tokenizer:
    """The section with this content."""
    return RunConfig.from_mapping({"tokenizer": content}).tokenizer


def names(steps: Any) -> list[str]:
    """The steps' names."""
    return [step.name for step in steps]


def test_nothing_said_means_alberts_unigram() -> None:
    """Lower-cased, digits and punctuation apart."""
    default = section()
    assert default.chosen_algorithm == "unigram"
    assert names(default.chosen_normalizers) == ["nmt", "nfkc", "replace", "lowercase"]
    assert names(default.chosen_pre_tokenizers) == ["metaspace", "digits", "punctuation"]


@pytest.mark.parametrize(
    ("preset", "algorithm"),
    [("albert", "unigram"), ("bengali", "unigram"), ("byte-level", "bpe"), ("multilingual-cased", "wordpiece")],
)
def test_a_preset_has_its_own_algorithm(preset: str, algorithm: str) -> None:
    """Unless the run file names another."""
    assert section(preset=preset).chosen_algorithm == algorithm
    assert section(preset=preset, algorithm="bpe").chosen_algorithm == "bpe"


def test_lower_case_overrides_the_preset_and_nothing_else_of_it() -> None:
    """True adds the step, false takes it away."""
    steps = PRESETS["bengali"].normalizers
    assert section(preset="bengali", lowercase=False).chosen_normalizers == steps[:-1]
    assert section(preset="bengali", lowercase=True).chosen_normalizers == steps
    assert section(preset="byte-level", lowercase=True).chosen_normalizers == (LOWERCASE,)


def test_steps_override_the_presets() -> None:
    """A step is its name, or an object with parameters; an empty list of normalizers leaves the text as it is."""
    own = section(normalizers=["nfc", SPACES], pre_tokenizers=["whitespace-split", {"name": "digits"}], algorithm="bpe")
    assert names(own.chosen_normalizers) == ["nfc", "replace"]
    assert names(own.chosen_pre_tokenizers) == ["whitespace-split", "digits"]
    assert section(normalizers=[]).chosen_normalizers == ()


def test_words_get_a_mark_where_neither_spaces_nor_the_algorithm_leave_one() -> None:
    """BERT's cut drops the spaces and a Unigram does not mark words."""
    assert names(section(preset="multilingual-cased").chosen_pre_tokenizers) == ["bert"]
    assert names(section(preset="multilingual-cased", algorithm="unigram").chosen_pre_tokenizers) == [
        "bert",
        "metaspace",
    ]


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"preset": "byte-level", "algorithm": "unigram", "lowercase": True},
        {"normalizers": ["nmt", SPACES, {"name": "bert", "strip_accents": True}]},
        {
            "algorithm": "bpe",
            "pre_tokenizers": ["metaspace", {"name": "split", "pattern": "x", "behavior": "contiguous"}],
        },
    ],
)
def test_a_run_file_and_what_travels_to_peers_say_the_same(content: dict[str, Any]) -> None:
    """Steps survive YAML and JSON."""
    config = RunConfig.from_mapping({"tokenizer": content})
    assert RunConfig.from_json(config.to_json()) == config
    assert RunConfig.from_mapping(yaml.safe_load(config.to_yaml())) == config


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"preset": "klingon"}, r"`tokenizer.preset` \('klingon'\)"),
        ({"normalizers": ["nfkx"]}, "'nfkx' found using 'name' does not match any of the expected"),
        ({"normalizers": [{"name": "replace", "content": " "}]}, r"normalizers.0.replace.pattern.*field required"),
        ({"normalizers": [{"name": "nfc", "form": 1}]}, r"normalizers.0.nfc.form` is not a known key"),
        ({"normalizers": [7]}, "should be a valid dictionary"),
        ({"pre_tokenizers": []}, "at least 1 item"),
        ({"pre_tokenizers": [{"name": "char-delimiter", "delimiter": "--"}]}, "at most 1 character"),
        ({"pre_tokenizers": [{"name": "punctuation", "behavior": "kept"}]}, "'isolated'"),
        ({"path": "x", "algorithm": "bpe"}, "imports a tokenizer as it is: remove `algorithm`"),
        ({"normalizers": [], "lowercase": True}, "write `lowercase` as its last step"),
        ({"pre_tokenizers": ["bert"]}, "`unigram` does not mark words: add `metaspace`"),
        ({"algorithm": "sentencepiece", "pre_tokenizers": ["metaspace"]}, "which cuts by itself: remove it"),
    ],
)
def test_a_mistake_is_one_sentence(content: dict[str, Any], message: str) -> None:
    """It names the key, the value and the remedy."""
    with pytest.raises(ConfigError, match=message):
        section(**content)
