"""Tokenizer and model of a checkpoint, whatever its folder is called: by what lies in it alone.

A checkpoint is a folder that plain transformers loads, or a model's name on the hub; weights are safetensors only.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from auth.errors import ConfigError
from coordinator.manifests import MANIFEST, verify

INITIAL_SEED = 2**32 - 17  # of a random start's body: the same for each seed of fine-tuning, as a checkpoint's is


@dataclass(frozen=True)
class Pretrained:
    """What is evaluated; `random_start`: its shape and tokenizer, but fresh weights."""

    source: str
    random_start: bool = False

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Raises `ConfigError` where there is none."""
        try:
            found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(self.source)
        except Exception as error:  # whatever transformers' layers raise
            raise ConfigError(_complaint(self.source, "tokenizer", error)) from error
        return found

    def model(self, kind: str, head_seed: int, **settings: Any) -> PreTrainedModel:
        """The checkpoint under the head of transformers' `kind`, in 32 bits; what the head lacks is drawn by the seed.

        Raises `ConfigError` if there is no such model.
        """
        auto = getattr(transformers, kind)
        try:
            torch.manual_seed(head_seed)
            if self.random_start:
                return _fresh(auto, AutoConfig.from_pretrained(self.source, **settings))
            model: PreTrainedModel = auto.from_pretrained(
                self.source, use_safetensors=True, dtype=torch.float32, **settings
            )
        except Exception as error:  # whatever transformers' layers raise
            raise ConfigError(_complaint(self.source, kind, error)) from error
        return model

    def check(self) -> None:
        """Compare a checkpoint of ours with its manifest; raises `StorageError` for one that is damaged."""
        path = Path(self.source)
        if (path / MANIFEST).is_file():
            verify(path)

    @property
    def max_length(self) -> int | None:
        """Tokens that the model can take; None if its configuration does not say."""
        found = getattr(AutoConfig.from_pretrained(self.source), "max_position_embeddings", None)
        return found if isinstance(found, int) and found > 0 else None


def be_quiet() -> None:
    """Of loading, only errors are said: that a head is new is what is wanted."""
    transformers.logging.set_verbosity(logging.ERROR)
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def _fresh(auto: Any, config: Any) -> PreTrainedModel:
    """A model as a run begins with it: its body is the same whatever the head's seed."""
    model: PreTrainedModel = auto.from_config(config, dtype=torch.float32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(INITIAL_SEED)
        body = auto.from_config(config, dtype=torch.float32).base_model
    model.base_model.load_state_dict(body.state_dict())
    return model


def _complaint(source: str, what: str, error: Exception) -> str:
    reason = " ".join(str(error).split()).rstrip(".")
    remedy = "name a checkpoint's folder or a model of the hub"
    return f"{source} cannot be loaded by transformers ({what}: {reason:.200}): {remedy}."
