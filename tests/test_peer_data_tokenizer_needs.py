"""A tokenizer that cannot serve the run is refused when the run is made."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models

from auth.errors import ConfigError
from peer.data.special_tokens import SpecialIds
from peer.data.tokenizer_needs import check_tokenizer
from peer.run_config import RunConfig

FULL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
GPT2 = SpecialIds(pad=0, unk=0, cls=0, sep=0, mask=None)


def words(*names: str) -> Tokenizer:
    """A WordPiece tokenizer with this vocabulary, or one without a sign for where words begin."""
    vocabulary = {name: index for index, name in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *names])}
    kind = models.WordPiece if names else models.WordLevel
    return Tokenizer(kind(vocabulary, unk_token="[UNK]"))


def run(architecture: str, objective: str, whole_words: bool = False) -> RunConfig:
    """A run of this family."""
    sections = {"model": {"architecture": architecture}, "objective": {"name": objective, "whole_words": whole_words}}
    return RunConfig.from_mapping(sections)


def test_other_encoders_do_without_padding() -> None:
    """Nothing is ever padded; where a tokenizer has no padding its separator stands for it, and is trained."""
    check_tokenizer(run("bert", "mlm"), words(), SpecialIds(pad=3, unk=1, cls=2, sep=3, mask=4))


def test_every_family_takes_a_tokenizer_with_all_tokens() -> None:
    """Nothing is asked for that is not needed."""
    for architecture, objective in ("albert", "mlm+sop"), ("roberta", "mlm"), ("gpt2", "clm"):
        check_tokenizer(run(architecture, objective), words(), FULL)


def test_gpt2_needs_nothing_but_a_separator() -> None:
    """Its own tokenizer has one special token."""
    check_tokenizer(run("gpt2", "clm"), words(), GPT2)


@pytest.mark.parametrize(
    ("special", "missing"),
    [(GPT2, "pad"), (SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=None), "mask")],
)
def test_roberta_needs_padding_and_every_encoder_a_mask(special: SpecialIds, missing: str) -> None:
    """RoBERTa gives padding no position, so a separator cannot stand for it; and what masks needs a mask."""
    with pytest.raises(ConfigError, match=f"has no {missing} token"):
        check_tokenizer(run("roberta", "mlm"), words(), special)


def test_whole_words_need_word_starts() -> None:
    """A tokenizer that hides where words begin is refused, and only where it matters."""
    check_tokenizer(run("bert", "mlm", whole_words=True), words("a", "##b"), FULL)
    check_tokenizer(run("bert", "mlm"), words(), FULL)
    with pytest.raises(ConfigError, match="whole_words"):
        check_tokenizer(run("bert", "mlm", whole_words=True), words(), FULL)
