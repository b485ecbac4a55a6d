"""Training objectives: masked tokens or the next ones.

Beside the masked tokens ALBERT learns the order of segments, and ELECTRA's discriminator finds replaced tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from peer.config.run import RunConfig
from peer.data.batching.samples import IGNORED
from peer.models.build import family_of
from peer.models.replaced_tokens import ReplacedTokens, detection_loss, draw_tokens, put_in_place

if TYPE_CHECKING:
    from peer.data.batching.batches import Batch

ROWS = 64  # what numbers of rows are rounded up to
MAX_LOGITS = 1 << 26  # held at once, 256 MiB; more are computed part by part, and once more for the gradient


@dataclass(frozen=True)
class Losses:
    """Scalar tensors; `total` carries the gradient's graph."""

    total: Tensor
    mlm: Tensor  # mean over the positions that have a label, masked or followed by another
    sop: Tensor | None  # sum over the samples whose order has a label, for each sample
    detection: Tensor | None = None  # of replaced tokens: mean over the samples' tokens, with its weight in the total

    @property
    def by_sample(self) -> Tensor | None:
        """Return the part of the total that is a mean over samples; None if there is none."""
        return self.detection if self.sop is None else self.sop


def compute_losses(model: PreTrainedModel, batch: Batch, config: RunConfig) -> Losses:
    """The losses that transformers gives for the same batch and labels.

    A batch without a label has a loss of 0 (transformers' is NaN). A sample whose order has none adds nothing to that
    loss, and counts: so microbatches of any size add up to the same.
    """
    if config.objective.name == "mlm+sop" and batch.sop_labels is None:
        raise ValueError("the objective `mlm+sop` needs batches with `sop_labels`")
    family = family_of(model)
    firsts = 0 if batch.sop_labels is None else batch.samples
    wanted, labels = label_rows(batch, firsts)
    hidden = family.encode(model, batch, wanted)  # (firsts + m + padding, hidden)
    mlm = summed_cross_entropy(partial(family.token_logits, model), hidden[firsts:], labels, logits_at_once(model))
    mlm = mlm / max(1, len(batch.labels))
    if isinstance(model, ReplacedTokens):
        input_ids, replaced = replace_tokens(model, batch, hidden)
        found = detection_loss(model.detection_logits(input_ids, batch), replaced, batch)
        found = found * config.objective.discriminator_weight
        return Losses(total=mlm + found, mlm=mlm, sop=None, detection=found)
    if family.order_logits is None or batch.sop_labels is None:
        return Losses(total=mlm, mlm=mlm, sop=None)
    orders = family.order_logits(model, hidden[:firsts])
    sop = functional.cross_entropy(orders, batch.sop_labels, ignore_index=IGNORED, reduction="sum") / firsts
    return Losses(total=mlm + sop, mlm=mlm, sop=sop)


def replace_tokens(model: ReplacedTokens, batch: Batch, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Draw tokens from the generator, whose output at the masked places is hidden (m + padding, hidden).

    Returns what `put_in_place` returns.
    """
    if batch.draws is None:
        raise ValueError("the objective `rtd` needs batches with `draws`")
    to_logits = partial(family_of(model).token_logits, model)
    tokens = draw_tokens(to_logits, hidden[: len(batch.draws)].detach(), batch.draws, logits_at_once(model))
    return put_in_place(batch, tokens)


def label_rows(batch: Batch, firsts: int) -> tuple[Tensor, Tensor]:
    """Return the rows of hidden states to compute, (firsts + m + padding,), [CLS] then labels' places; and the labels.

    The number of rows is padded to a multiple of `ROWS`, as each batch has another number of labels and oneDNN compiles
    and keeps code for each new shape.
    """
    padding = -(firsts + len(batch.label_positions)) % ROWS
    first = torch.arange(firsts, device=batch.label_positions.device) * batch.input_ids.shape[1]
    wanted = functional.pad(torch.cat([first, batch.label_positions]), (0, padding))
    return wanted, functional.pad(batch.labels, (0, padding), value=IGNORED)


def logits_at_once(model: PreTrainedModel) -> int:
    """Return the number of rows whose logits of the whole vocabulary may be held at once."""
    vocabulary: int = model.config.vocab_size
    return max(1, MAX_LOGITS // vocabulary // ROWS) * ROWS


def summed_cross_entropy(
    to_logits: Callable[[Tensor], Tensor], hidden: Tensor, labels: Tensor, rows_at_once: int
) -> Tensor:
    """The sum over all rows of hidden (n, hidden) with labels (n,); `IGNORED` ones count nothing.

    With more rows than `rows_at_once` there are never more logits than theirs in memory: each part computes its own a
    second time for the gradient.
    """

    def loss_of(hidden: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(to_logits(hidden), labels, ignore_index=IGNORED, reduction="sum")

    if len(labels) <= rows_at_once:
        return loss_of(hidden, labels)
    parts = zip(torch.split(hidden, rows_at_once), torch.split(labels, rows_at_once), strict=True)
    losses = [checkpoint(loss_of, *part, use_reentrant=False, preserve_rng_state=False) for part in parts]
    return torch.stack(losses).sum()
