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

import multiprocessing as mp
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from hivemind.averaging.group_info import GroupInfo

from peer.averaging.averager import AveragedGroup, SwarmGradientAverager
from peer.averaging.shares import part_size
from peer.reduction.sizes import AVERAGE_BYTES, CHUNK, CHUNK_BYTES, RoundBytes
from peer.reduction.top_k import SparseValues

DECAY = 0.95  # of a remainder at each step: old gradients are of other parameters


class ErrorFeedback:
    """One peer's remainders: sums over samples, as gradients are."""

    def __init__(self, decay: float = DECAY) -> None:
        self._decay = decay
        self._averaged = mp.Value("b", False)  # whether a round has averaged the numbers last loaded
        self._lost: list[torch.Tensor] = []  # none before the first round, and on a peer without samples
        self._sent: list[SparseValues] = []  # of the numbers last loaded
        self._samples = 0  # behind the numbers last loaded

    @torch.no_grad()
    def load(self, tensors: Sequence[torch.Tensor], samples: int) -> None:
        """Replace mean gradients over so many samples by what is sent of them and of the remainders.

        Without samples nothing is sent, and the remainders go on waiting. A remainder counts as a sum, so that nothing
        grows or shrinks when a peer's share of the batch changes.
        """
        self._averaged.value, self._samples, self._sent = False, samples, []
        if not samples:
            return
        for lost, tensor in zip(self._lost, tensors, strict=False):  # no remainders, or all
            tensor.add_(lost, alpha=self._decay / samples)
        for tensor in tensors:
            self._sent.append(SparseValues.largest_of(tensor))
            tensor.copy_(self._sent[-1].dense().view_as(tensor))

    def averaged(self) -> None:
        """Take in that a round has put the averages in place of the numbers last loaded."""
        self._averaged.value = True

    @torch.no_grad()
    def settle(self, tensors: Sequence[torch.Tensor], sums: Sequence[torch.Tensor]) -> None:
        """Keep the remainders of the numbers last loaded, which are mean gradients with these sums, for a step.

        A peer that was alone takes its step from all that it has, and has no remainders.
        """
        if not self._averaged.value:
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


class SparseAverager(SwarmGradientAverager):
    """An averager of gradients like `SwarmGradientAverager` that sends them sparse and keeps what it did not send."""

    averages_of_own = RoundBytes.of("topk-2bit").averages_of_own

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._feedback = ErrorFeedback()
        super().__init__(*args, **kwargs)

    def load_accumulators_into_averager_(self) -> None:
        """Put what is sent of the mean gradient and of earlier remainders into the averaged tensors."""
        super().load_accumulators_into_averager_()
        with self.get_tensors() as averaged:
            self._feedback.load(averaged, self.due_samples)

    @contextmanager
    def making_room(self) -> Iterator[None]:
        """Keep the remainders of the round's gradient, then lend `.grad` to its average for a step."""
        with self.get_tensors() as averaged:
            self._feedback.settle(averaged, self._held or list(self._grad_accumulators()))
        with super().making_room():
            yield

    def forget_remainders(self) -> None:
        """Drop what was not sent in earlier rounds."""
        self._feedback.forget()

    async def _run_allreduce_inplace_(
        self, tensors: Sequence[torch.Tensor], group_info: GroupInfo, group_id: bytes | None = None, **kwargs: Any
    ) -> AveragedGroup:
        """Average in place, in parts of whole chunks; raises if a value is missing."""
        averages_bytes = round(AVERAGE_BYTES["topk-2bit"] * self.total_size)
        part_bytes = part_size(averages_bytes, group_info.group_size)
        chunks = round(part_bytes / (AVERAGE_BYTES["topk-2bit"] * CHUNK))
        options = kwargs | {"part_size_bytes": CHUNK_BYTES * chunks, "is_sparse": True}
        group = await super()._run_allreduce_inplace_(tensors, group_info, group_id, **options)
        self._feedback.averaged()
        return group
