"""Sparse gradients with error feedback: values that are not sent are added to later gradients.

Sarfi et al. 2025 (SparseLoCo, arXiv 2508.15706): the largest values of each chunk are sent, in 2
bits each (`peer.reduction.top_k`). The remainder, times 0.95, is added to the peer's gradient of
the next step. Reducers return the dense average in half a byte per value, 18 times the bytes sent.

A gradient is made sparse when it is loaded into the averaged tensors, before a group is formed.
Guard, screen and audit therefore process only decoded values, and a peer's own parts are rounded
like its sent parts. The remainder is computed from the values sent and the gradient's sums, which
are kept until the step. A failed or repeated round changes no remainder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from peer.gradients.gradient_codes import GradientCode
from peer.reduction.top_k import SparseValues

DECAY = 0.95  # factor of a remainder per step, because the parameters change


class ErrorFeedback(GradientCode):
    """The sparse gradient encoding, with one peer's remainders as sums over samples."""

    def __init__(self, decay: float = DECAY) -> None:
        self._decay = decay
        self._lost: list[torch.Tensor] = []  # remainders; empty before the first round, and without samples
        self._sent: list[SparseValues] = []  # sparse values of the last `load`
        self._samples = 0  # number of samples of the last `load`

    @property
    def remainders(self) -> Mapping[int, torch.Tensor]:
        """The remainders of earlier steps (sums over samples) by tensor index."""
        return dict(enumerate(self._lost))

    def remainder_shapes(self, shapes: Sequence[torch.Size]) -> dict[int, torch.Size]:
        """Return the shapes of the remainders, by tensor index, if the gradients have these shapes."""
        return dict(enumerate(shapes))

    def resume(self, remainders: Mapping[int, torch.Tensor]) -> None:
        """Load an earlier session's remainders of all tensors; an empty mapping means none."""
        self._lost = [remainders[index] for index in sorted(remainders)]

    @torch.no_grad()
    def load(self, tensors: Sequence[torch.Tensor], samples: int) -> None:
        """Replace mean gradients with the sparse values to send, including the remainders.

        Without samples nothing is sent, and the remainders are kept. Remainders are sums, so they
        are independent of the peer's share of the batch.
        """
        self._samples, self._sent = samples, []
        if not samples:
            return
        for lost, tensor in zip(self._lost, tensors, strict=False):  # either no tensor or every tensor has a remainder
            tensor.add_(lost, alpha=self._decay / samples)
        for tensor in tensors:
            self._sent.append(SparseValues.largest_of(tensor))
            tensor.copy_(self._sent[-1].dense().view_as(tensor))

    @torch.no_grad()
    def settle(self, tensors: Sequence[torch.Tensor], sums: Sequence[torch.Tensor], *, averaged: bool) -> None:
        """Update the remainders after a step; `sums` are the gradient sums whose means were loaded.

        A peer without a round (`averaged` is False) uses its whole gradient and has no remainders.
        """
        if not averaged:
            for index, (tensor, gradient) in enumerate(zip(tensors, sums, strict=True)):
                tensor.copy_(gradient)
                if self._lost:
                    tensor.add_(self._lost[index], alpha=self._decay)
                tensor.mul_(1 / self._samples if self._samples else 0.0)
            self.forget()
            return
        if not self._samples:
            return
        self._lost = self._lost or [torch.zeros_like(gradient) for gradient in sums]
        for lost, gradient, sent in zip(self._lost, sums, self._sent, strict=True):
            lost.mul_(self._decay).add_(gradient).sub_(sent.dense().view_as(lost), alpha=self._samples)
            if not bool(torch.isfinite(lost).all()):
                lost.zero_()  # an infinite remainder would corrupt every later round

    def forget(self) -> None:
        """Drop the remainders: they no longer apply, or other peers may have counted them."""
        self._lost, self._sent = [], []
