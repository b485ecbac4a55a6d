"""Evaluation of a model on text that it was not trained on: losses and accuracies, summed over microbatches.

The forward is the one that training uses (`peer.models.objectives`). The coordinator's validator evaluates each
checkpoint so. `unigram_loss` is the loss of guessing each token by its frequency alone: a model that has learned
anything loses less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from peer.data.batching.batches import Batch, parts_of
from peer.data.tokenization.special_tokens import SpecialIds
from peer.models.build import evaluating, family_of
from peer.models.objectives import IGNORED, label_rows, logits_at_once

TOKENS_AT_ONCE = 4096  # in one forward pass, whatever the run's microbatch: it must fit beside the keeper


@dataclass(frozen=True)
class HeldOutMetrics:
    """Means over all samples; perplexity is the exponential of `mlm_loss`."""

    samples: int
    predicted_tokens: int
    mlm_loss: float  # over the positions that have a label, masked or followed by another
    accuracy: float  # share of these whose likeliest token is the label
    sop_loss: float | None  # None, like the next: the objective has no sentence order
    sop_accuracy: float | None


@dataclass(frozen=True)
class Sums:
    """The sums of losses and hits over one or more microbatches."""

    samples: int = 0
    tokens: int = 0
    token_loss: float = 0.0
    token_hits: int = 0
    orders: int = 0  # samples with a sentence-order label
    order_loss: float = 0.0
    order_hits: int = 0

    def __add__(self, other: Sums) -> Sums:
        return Sums(*(one + another for one, another in zip(astuple(self), astuple(other), strict=True)))

    def means(self) -> HeldOutMetrics:
        """Divide the sums by their counts."""
        tokens = max(1, self.tokens)
        return HeldOutMetrics(
            samples=self.samples,
            predicted_tokens=self.tokens,
            mlm_loss=self.token_loss / tokens,
            accuracy=self.token_hits / tokens,
            sop_loss=self.order_loss / self.orders if self.orders else None,
            sop_accuracy=self.order_hits / self.orders if self.orders else None,
        )


def evaluate(
    model: PreTrainedModel, samples: Batch, should_stop: Callable[[], bool] = lambda: False
) -> HeldOutMetrics | None:
    """Compute the model's means over all samples, dropout off; None if told to stop before the end."""
    sums = Sums()
    with evaluating(model):
        for batch in parts_of(samples, max(1, TOKENS_AT_ONCE // samples.input_ids.shape[1])):
            if should_stop():
                return None
            sums += summed(model, batch)
    return sums.means()


def summed(model: PreTrainedModel, batch: Batch) -> Sums:
    """Compute one microbatch's sums; the caller switches off the gradient's graph."""
    family = family_of(model)
    firsts = 0 if batch.sop_labels is None else batch.samples
    wanted, labels = label_rows(batch, firsts)
    hidden = family.encode(model, batch, wanted)  # (firsts + m + padding, hidden)
    sums = Sums(samples=batch.samples, tokens=len(batch.labels))
    rows = logits_at_once(model)
    for part, ids in zip(torch.split(hidden[firsts:], rows), torch.split(labels, rows), strict=True):
        loss, hits = _loss_and_hits(family.token_logits(model, part), ids)
        sums += Sums(token_loss=loss, token_hits=hits)
    if family.order_logits is None or batch.sop_labels is None:
        return sums
    loss, hits = _loss_and_hits(family.order_logits(model, hidden[:firsts]), batch.sop_labels)
    return sums + Sums(orders=firsts, order_loss=loss, order_hits=hits)


def _loss_and_hits(logits: Tensor, labels: Tensor) -> tuple[float, int]:
    """Sum the cross entropy of logits (n, classes) and labels (n,), and the times that the label's is the largest."""
    loss = functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    return float(loss), int((logits.argmax(-1) == labels).sum())


def unigram_loss(samples: Batch, vocab_size: int, special: SpecialIds) -> float:
    """Return nats for each predicted token, by frequencies of the samples' own tokens (special ones aside), plus one.

    These frequencies know the text that they are tried on, so an honest unigram is a little worse.
    """
    counts = torch.bincount(samples.input_ids.flatten(), minlength=vocab_size).double()
    counts += torch.bincount(samples.labels, minlength=vocab_size)
    for token in (special.pad, special.unk, special.cls, special.sep, special.mask):
        if token is not None:
            counts[token] = 0
    frequencies = (counts + 1) / (counts + 1).sum()
    return float(-frequencies[samples.labels].log().mean())
