"""The model to train: built alike on every machine, evaluated alike everywhere, described for its checkpoints.

Which families there are and what is particular about each stands in `peer/models/families.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from fnmatch import fnmatch
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel

from auth.errors import ConfigError
from peer.config.run import RunConfig
from peer.data.tokenization.special_tokens import SpecialIds
from peer.models.families import FAMILIES, Family

HASH_SEED = 0  # of Reformer's random hashing where a loss has to be the same everywhere


def build_model(config: RunConfig, vocab_size: int, special: SpecialIds) -> PreTrainedModel:
    """The run's model in training mode; every machine gets the same initial weights, drawn from the run's seed.

    Weights that the objective never uses are frozen, so that weight decay does not wear them away. Raises `ConfigError`
    for what transformers refuses.
    """
    family = FAMILIES[config.model.architecture]
    kind = getattr(transformers, family.model)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.run.seed)
            settings = kind.config_class(vocab_size=vocab_size, **family.settings(config.model, special))
            model: PreTrainedModel = kind(settings)
    except Exception as error:  # whatever transformers and torch raise for sizes that do not fit
        reason = " ".join(str(error).split()).rstrip(".")
        raise ConfigError(f"This `model` cannot be built as a `{config.model.architecture}`: {reason:.300}.") from error
    _freeze(model, (*family.untrained(config.model), *_unused_heads(config)))
    family.prepare(model)
    model.train()
    return model


def copy_model(model: PreTrainedModel) -> PreTrainedModel:
    """A copy that trains alike; what its family does to a new module is done again, as hooks are not copied."""
    copied = deepcopy(model)
    family_of(model).prepare(copied)
    return copied


def family_of(model: PreTrainedModel) -> Family:
    """The family that a model was built from."""
    return FAMILIES[model.config.model_type]


def checkpoint_config(model: PreTrainedModel) -> dict[str, Any]:
    """The `config.json` by which transformers makes this model again, and computes the same."""
    content = model.config.to_dict() | {"architectures": [type(model).__name__]}
    return content | ({"hash_seed": HASH_SEED} if _hashing(model) else {})


def save_memory(model: PreTrainedModel) -> bool:
    """Compute each layer's activations twice instead of keeping them (Chen et al. 2016, arXiv 1604.06174).

    False if that is done already, or transformers does not know how for this family.
    """
    if _saves_memory(model):
        return False
    if family_of(model).own_checkpointing:
        model.base_model.get_submodule("encoder").gradient_checkpointing = True  # type: ignore[assignment]
    elif model.supports_gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[no-untyped-call]
    return _saves_memory(model)


def _saves_memory(model: PreTrainedModel) -> bool:
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Dropout off, no gradients, hashing as in a checkpoint: the same loss for the same weights, again and again."""
    was_training, hashing = model.training, _hashing(model)
    devices = [model.device] if model.device.type == "cuda" else []
    model.train(False)
    for layer in hashing:
        layer.hash_seed = HASH_SEED
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            yield
    finally:
        for layer in hashing:
            layer.hash_seed = None
        model.train(was_training)


def _hashing(model: PreTrainedModel) -> list[Any]:
    """Reformer's layers that hash at random, anew in each pass: so they are to be trained, but not compared."""
    return [module for module in model.modules() if hasattr(module, "hash_seed")]


def _unused_heads(config: RunConfig) -> tuple[str, ...]:
    without_order = config.model.architecture == "albert" and config.objective.name == "mlm"
    return ("albert.pooler.*", "sop_classifier.*") if without_order else ()


def _freeze(model: nn.Module, patterns: tuple[str, ...]) -> None:
    for name, parameter in model.named_parameters():
        if any(fnmatch(name, pattern) for pattern in patterns):
            parameter.requires_grad_(False)
