"""Training objectives: prediction of masked tokens or of next tokens.

ALBERT also predicts the order of segments; ELECTRA's discriminator detects replaced tokens.
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

ROWS = 64  # multiple to which numbers of rows are rounded up
MAX_LOGITS = 1 << 26  # maximum number of logits in memory at once (256 MiB); more are computed in parts


@dataclass(frozen=True)
class Losses:
    """The losses of a batch as scalar tensors; `total` has the autograd graph."""

    total: Tensor
    mlm: Tensor  # mean over labelled positions: masked tokens, or all with a next token
    sop: Tensor | None  # sum over the samples with an order label, divided by all samples
    detection: Tensor | None = None  # mean over all tokens, times the objective's weight

    @property
    def by_sample(self) -> Tensor | None:
        """Return the component of the total that is a mean over samples, or None."""
        return self.detection if self.sop is None else self.sop


def compute_losses(model: PreTrainedModel, batch: Batch, config: RunConfig) -> Losses:
    """Return the losses, equal to transformers' for the same batch and labels.

    A batch without labels has a loss of 0 (NaN in transformers). A sample without an order label
    counts as 0 in the mean order loss, so the size of microbatches has no effect.
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
    """Sample replacements from the generator's output at masked positions, (m + padding, hidden).

    Returns the same tensors as `put_in_place`.
    """
    if batch.draws is None:
        raise ValueError("the objective `rtd` needs batches with `draws`")
    to_logits = partial(family_of(model).token_logits, model)
    tokens = draw_tokens(to_logits, hidden[: len(batch.draws)].detach(), batch.draws, logits_at_once(model))
    return put_in_place(batch, tokens)


def label_rows(batch: Batch, firsts: int) -> tuple[Tensor, Tensor]:
    """Return the rows of hidden states to compute, (firsts + m + padding,), and the labels.

    The rows of [CLS] come first, then the rows of the labels. Their number is padded to a multiple
    of `ROWS`, because oneDNN compiles and caches code for each shape.
    """
    padding = -(firsts + len(batch.label_positions)) % ROWS
    first = torch.arange(firsts, device=batch.label_positions.device) * batch.input_ids.shape[1]
    wanted = functional.pad(torch.cat([first, batch.label_positions]), (0, padding))
    return wanted, functional.pad(batch.labels, (0, padding), value=IGNORED)


def logits_at_once(model: PreTrainedModel) -> int:
    """Return the maximum number of rows of vocabulary logits in memory at once."""
    vocabulary: int = model.config.vocab_size
    return max(1, MAX_LOGITS // vocabulary // ROWS) * ROWS


def summed_cross_entropy(
    to_logits: Callable[[Tensor], Tensor], hidden: Tensor, labels: Tensor, rows_at_once: int
) -> Tensor:
    """Return the summed cross entropy of hidden (n, hidden) and labels (n,) except `IGNORED`.

    At most `rows_at_once` rows of logits are in memory; with more rows, each part recomputes its
    logits for the gradient.
    """

    def loss_of(hidden: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(to_logits(hidden), labels, ignore_index=IGNORED, reduction="sum")

    if len(labels) <= rows_at_once:
        return loss_of(hidden, labels)
    parts = zip(torch.split(hidden, rows_at_once), torch.split(labels, rows_at_once), strict=True)
    losses = [checkpoint(loss_of, *part, use_reentrant=False, preserve_rng_state=False) for part in parts]
    return torch.stack(losses).sum()
