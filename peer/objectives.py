"""What the model is asked to learn: masked tokens and, in ALBERT's own objective, the order of two segments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn import functional
from transformers import AlbertForPreTraining

from peer.models import IGNORED, run_heads
from peer.run_config import RunConfig

if TYPE_CHECKING:
    from peer.data.batches import Batch


@dataclass(frozen=True)
class Losses:
    """Scalar tensors; `total` carries the gradient's graph."""

    total: Tensor
    mlm: Tensor  # mean over the masked positions
    sop: Tensor | None  # mean over the samples


def compute_losses(model: AlbertForPreTraining, batch: Batch, config: RunConfig) -> Losses:
    """The losses that transformers' `AlbertForPreTraining` gives for the same batch and labels.

    A batch without a masked position has a masked-LM loss of 0 (transformers' is NaN).
    """
    if config.objective.name == "mlm+sop" and batch.sop_labels is None:
        raise ValueError("the objective `mlm+sop` needs batches with `sop_labels`")
    heads = run_heads(model, batch)
    mlm = functional.cross_entropy(heads.logits, heads.labels, ignore_index=IGNORED, reduction="sum")
    mlm = mlm / max(1, len(batch.labels))
    if heads.sop_logits is None or batch.sop_labels is None:
        return Losses(total=mlm, mlm=mlm, sop=None)
    sop = functional.cross_entropy(heads.sop_logits, batch.sop_labels)
    return Losses(total=mlm + sop, mlm=mlm, sop=sop)
