"""A table of the memory for training several models on one sample, computed without weights.

The models are built at full size from fake PyTorch tensors, which have no data. The bytes that the
forward pass saves for the backward pass are counted, with and without gradient checkpointing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from transformers import PreTrainedModel

from peer.backends.passes import PROBED_SHARE
from peer.config.run import RunConfig
from peer.data.batching.batches import Batch
from peer.data.batching.synthetic import random_batch
from peer.data.tokenization.special_tokens import SpecialIds
from peer.doctor.machine import GIB, VALUE_BYTES, swarm_bytes
from peer.models.build import build_model, save_memory
from peer.models.objectives import MAX_LOGITS, compute_losses
from peer.models.optimizer_setup import state_size
from peer.reduction.sizes import gradient_bytes

LENGTH = 512
CARDS_GIB = (8, 16, 24)
# copies on the card: parameters, gradient sum of this step, gradient of the latest microbatch
CARD_COPIES = 3
LOGITS_COPIES = 2  # the logits of the head, and their gradient
SPECIAL = SpecialIds(pad=3, unk=1, cls=2, sep=3, mask=4)
SOP, MLM, CLM = "mlm+sop", "mlm", "clm"


def _sizes(width: int, layers: int, heads: int) -> dict[str, int]:
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
    }


MODELS: Mapping[str, tuple[str, str, int, dict[str, int]]] = {  # architecture, objective, vocabulary, sizes
    "ALBERT-large": ("albert", SOP, 32_000, _sizes(1024, 24, 16)),
    "BERT-base": ("bert", MLM, 32_000, _sizes(768, 12, 12)),
    "BERT-large": ("bert", MLM, 32_000, _sizes(1024, 24, 16)),
    "GPT-2 large": ("gpt2", CLM, 50_257, _sizes(1280, 36, 20)),
    "GPT-2 XL": ("gpt2", CLM, 50_257, _sizes(1600, 48, 25)),
}


@dataclass(frozen=True)
class Need:
    """The amounts of memory for training a model on one sample."""

    parameters: int
    states: int  # bytes on the card, regardless of the sample
    kept: int  # bytes of activations for the sample, if all are kept
    checkpointed: int  # bytes with gradient checkpointing: each layer's input, and one recomputed layer
    gradients: int  # bytes that a peer sends in each round
    moments: int  # number of values in the optimizer's statistics

    @property
    def main_memory(self) -> int:
        return swarm_bytes(self.parameters, self.moments)

    def card(self, gib: int) -> str:
        """Return whether one sample fits on a card: yes, no, or only with checkpointing."""
        room = PROBED_SHARE * gib * GIB
        if self.states + self.kept <= room:
            return "yes"
        return "checkpointing" if self.states + self.checkpointed <= room else "no"


def memory_table() -> str:
    """Return the table as Markdown."""
    columns = ["model", "parameters", "states on the card", "one sample, kept", "one sample, checkpointing"]
    columns += [*(f"{gib} GB" for gib in CARDS_GIB), "main memory", "sent each round"]
    rows = [columns, ["---"] * len(columns)]
    for name, model in MODELS.items():
        need = need_of(*model)
        amounts = (need.states, need.kept, need.checkpointed)
        cards = [need.card(gib) for gib in CARDS_GIB]
        more = (need.main_memory, need.gradients)
        rows.append([name, f"{need.parameters / 1e6:,.0f} M", *map(_gib, amounts), *cards, *map(_gib, more)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def need_of(architecture: str, objective: str, vocabulary: int, sizes: Mapping[str, int]) -> Need:
    """Compute the memory for training a model on one sample in 32-bit floating point."""
    config = RunConfig.from_mapping(
        {
            "model": {"architecture": architecture, "max_position_embeddings": LENGTH, **sizes},
            "objective": {"name": objective},
            "data": {"sequence_length": LENGTH},
        }
    )
    batch = random_batch(config, vocabulary, SPECIAL, 1, np.random.default_rng(0))
    with FakeTensorMode() as shapes_only:
        model = build_model(config, vocabulary, SPECIAL)
        tensors = {name: value for name, value in vars(batch).items() if isinstance(value, Tensor)}
        batch = replace(batch, **{name: shapes_only.from_tensor(value) for name, value in tensors.items()})
        kept = _saved_bytes(model, batch, config)
        assert save_memory(model)
        checkpointed = _saved_bytes(model, batch, config)
        moments = state_size(config, model).moments
    parameters = sum(parameter.numel() for parameter in model.parameters())
    layer = (kept - checkpointed) // config.model.num_hidden_layers
    logits = LOGITS_COPIES * min(MAX_LOGITS, LENGTH * vocabulary) * VALUE_BYTES
    return Need(
        parameters,
        CARD_COPIES * VALUE_BYTES * parameters,
        kept + logits,
        checkpointed + layer + logits,
        gradient_bytes(config.averaging, model),
        moments,
    )


def _saved_bytes(model: PreTrainedModel, batch: Batch, config: RunConfig) -> int:
    """Count the bytes that a batch's forward pass saves, excluding the parameters."""
    saved = {}  # address -> storage; the reference prevents reuse of the address

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage._cdata] = storage
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        compute_losses(model, batch, config)
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    return sum(storage.nbytes() for number, storage in saved.items() if number not in weights)


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB / 10 else f"{size / (1 << 20):.0f} MiB"
