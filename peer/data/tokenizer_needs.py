"""What a run's objective and family of models need of its tokenizer; asked once, when the run is made."""

from __future__ import annotations

from tokenizers import Tokenizer

from peer.data.special_tokens import SpecialIds, missing_token
from peer.data.word_starts import WordStarts
from peer.run_config import RunConfig


def check_tokenizer(config: RunConfig, tokenizer: Tokenizer, special: SpecialIds) -> None:
    """Raises `ConfigError` with one sentence if this tokenizer cannot serve the run."""
    if config.model.architecture == "roberta" and special.pad == special.sep:
        raise missing_token("pad")  # it gives padding no position: that must not be the separator
    if config.objective.name != "clm" and special.mask is None:
        raise missing_token("mask")
    if config.objective.whole_words:
        WordStarts(tokenizer, special)
