"""Sparse gradients with error feedback: a sender sends little of its gradient, and keeps the rest for later steps.

Sarfi et al. 2025 (SparseLoCo, arXiv 2508.15706): of each chunk of the gradient the largest values are sent, in 2 bits
(`peer.reduction.top_k`). The remainder, times 0.95, is added to the peer's own gradient of the next step. Reducers
return the average of all values, dense, in half a byte each: so a line passes 18 times as many bytes down as up.

A gradient is made sparse when it is put into the averaged tensors, before a group is known. So guard, screen and audit
see decoded values only, and the parts that a peer reduces itself are rounded like those that it sends. The remainder
follows from the gradient's sums, which stay until the step, and from the values sent: a round that fails, or is tried
again with more samples or other reducers, changes no remainder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from peer.averaging.gradient_codes import GradientCode
from peer.reduction.top_k import SparseValues

DECAY = 0.95  # of a remainder at each step: old gradients are of other parameters


class ErrorFeedback(GradientCode):
    """The sparse code of gradients, with one peer's remainders: sums over samples, as gradients are."""

    def __init__(self, decay: float = DECAY) -> None:
        self._decay = decay
        self._lost: list[torch.Tensor] = []  # none before the first round, and on a peer without samples
        self._sent: list[SparseValues] = []  # of the numbers last loaded
        self._samples = 0  # behind the numbers last loaded

    @property
    def remainders(self) -> Mapping[int, torch.Tensor]:
        """The remainders of earlier steps, sums over samples, by the tensors' index."""
        return dict(enumerate(self._lost))

    def remainder_shapes(self, shapes: Sequence[torch.Size]) -> dict[int, torch.Size]:
        """Return the shapes of the remainders of tensors of these shapes."""
        return dict(enumerate(shapes))

    def resume(self, remainders: Mapping[int, torch.Tensor]) -> None:
        """Go on with the remainders of an earlier session, of all tensors that have one; none: begin without."""
        self._lost = [remainders[index] for index in sorted(remainders)]

    @torch.no_grad()
    def load(self, tensors: Sequence[torch.Tensor], samples: int) -> None:
        """Replace mean gradients over so many samples by what is sent of them and of the remainders.

        Without samples nothing is sent, and the remainders go on waiting. A remainder counts as a sum, so that nothing
        grows or shrinks when a peer's share of the batch changes.
        """
        self._samples, self._sent = samples, []
        if not samples:
            return
        for lost, tensor in zip(self._lost, tensors, strict=False):  # no remainders, or all
            tensor.add_(lost, alpha=self._decay / samples)
        for tensor in tensors:
            self._sent.append(SparseValues.largest_of(tensor))
            tensor.copy_(self._sent[-1].dense().view_as(tensor))

    @torch.no_grad()
    def settle(self, tensors: Sequence[torch.Tensor], sums: Sequence[torch.Tensor], *, averaged: bool) -> None:
        """Keep the remainders of the numbers last loaded, which are mean gradients with these sums, for a step.

        A peer that was alone takes its step from all that it has, and has no remainders.
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
                lost.zero_()  # kept, it would spoil every later round

    def forget(self) -> None:
        """Drop the remainders: they belong to a state that this peer no longer has, or others may have counted them."""
        self._lost, self._sent = [], []
