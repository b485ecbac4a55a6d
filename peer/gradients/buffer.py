"""The trainer's side of averaging: one peer's gradient sums, and the tensors that a group averages.

Gradients accumulate in `.grad` as sums over samples. The node (`peer.swarm.node_loop`), forked
later, averages the tensors in shared memory.
"""

from __future__ import annotations

import asyncio
import multiprocessing as mp
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import torch

from peer.config.training import Averaging
from peer.gradients.gradient_codes import Factors, GradientCode
from peer.gradients.power_sgd import LowRank
from peer.gradients.remainders import RemainderFile, RemainderOrigin
from peer.reduction.sizes import round_bytes, values_sent
from peer.runtime.processes import raise_descriptor_limit


def code_of(averaging: Averaging, shapes: Sequence[torch.Size]) -> GradientCode:
    """Return the encoding that these settings name, for gradients of these shapes."""
    return LowRank(shapes, averaging.powersgd_rank) if averaging.powersgd_rank else GradientCode()


# Shared memory without names in the file system needs no `torch_shm_manager` (60 MB), and none is left by a
# killed process. Each process needs a few descriptors per parameter of the model.
BY_DESCRIPTOR, DESCRIPTORS = "file_descriptor", 2**16


class SharedTensors:
    """The tensors that are averaged, in memory that the trainer's process and its node share."""

    def __init__(self, shapes: Sequence[torch.Size]) -> None:
        self.shapes = shapes
        memory: Any = torch.multiprocessing
        if BY_DESCRIPTOR in memory.get_all_sharing_strategies():  # hivemind chooses files
            memory.set_sharing_strategy(BY_DESCRIPTOR)
            raise_descriptor_limit(DESCRIPTORS)
        self._tensors = [torch.zeros(shape).share_memory_() for shape in shapes]  # type: ignore[no-untyped-call]
        self._lock = mp.Lock()

    def size_in(self, averaging: Averaging) -> int:
        """Return the bytes that a peer sends per round with these settings."""
        return round(round_bytes(averaging, values_sent(self.shapes, averaging.powersgd_rank)))

    @contextmanager
    def used(self) -> Iterator[list[torch.Tensor]]:
        """Use the tensors; the other process waits."""
        with self._lock:
            yield self._tensors

    @asynccontextmanager
    async def used_in_loop(self) -> AsyncIterator[list[torch.Tensor]]:
        """Use the tensors, without blocking the event loop until the other process has finished."""
        # A task would be cancelled when the loop ends, and its lock released although it may be the other process's.
        acquiring = asyncio.get_running_loop().run_in_executor(None, self._lock.acquire)
        try:
            await asyncio.shield(acquiring)
        except asyncio.CancelledError:
            acquiring.add_done_callback(lambda _: self._lock.release())
            raise
        try:
            yield self._tensors
        finally:
            self._lock.release()


class GradientBuffer:
    """One peer's gradients towards the next global step, and those held for a round meanwhile."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], averaging: Averaging, run: str = "") -> None:
        """Set up the buffer; `averaging`: initial settings; `run`: identifies the run to which remainders belong."""
        self._parameters, self._run = tuple(parameters), run
        shapes = [parameter.shape for parameter in self._parameters]
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.shared = SharedTensors(shapes)
        self.averaging = averaging  # the current gradient encoding
        self._code = code_of(averaging, shapes)
        self.samples = 0  # accumulated in `.grad`
        self._held: list[torch.Tensor] = []  # gradient sums of a round, while newer sums accumulate
        self._held_samples = 0
        self._is_averaged = False  # whether the tensors loaded last have been averaged

    @property
    def _sums(self) -> Iterator[torch.Tensor]:
        for parameter in self._parameters:
            assert parameter.grad is not None
            yield parameter.grad

    def size_in(self, averaging: Averaging) -> int:
        """Return the bytes of gradients that a peer sends per round with these settings."""
        return self.shared.size_in(averaging)

    def change(self, averaging: Averaging) -> bool:
        """Use these settings' gradient encoding from the next round on; return whether it changed.

        Call this method while no round runs, before the next gradients are loaded. A change of
        PowerSGD's rank drops the remainders.
        """
        if averaging.code == self.averaging.code:
            return False
        if averaging.powersgd_rank != self.averaging.powersgd_rank:
            self._code = code_of(averaging, self.shared.shapes)
        self.averaging = averaging
        return True

    @property
    def holds(self) -> bool:
        """Whether gradients are held for a round while newer gradients accumulate separately."""
        return bool(self._held)

    @property
    def due_samples(self) -> int:
        """This peer's samples towards the next global step."""
        return self._held_samples if self.holds else self.samples

    @property
    def all_samples(self) -> int:
        """This peer's samples towards the next two global steps."""
        return self.samples + self._held_samples

    def add(self, samples: int) -> None:
        """Note a microbatch whose gradient, summed over its samples, was added to `.grad`."""
        self.samples += samples

    @torch.no_grad()
    def hold(self) -> None:
        """Move accumulated gradients to a buffer; `.grad` then accumulates for the next step."""
        self._held, self._held_samples = [gradient.clone() for gradient in self._sums], self.samples
        self.drop()

    @torch.no_grad()
    def take_back(self) -> None:
        """Add the held gradients back to `.grad`, so that all gradients belong to the same step."""
        for gradient, held in zip(self._sums, self._held, strict=True):
            gradient.add_(held)
        self.samples += self._held_samples
        self._held, self._held_samples = [], 0

    @torch.no_grad()
    def drop(self) -> None:
        """Drop the gradients that are not held."""
        self.samples = 0
        for gradient in self._sums:
            gradient.zero_()

    def drop_all(self) -> int:
        """Drop all accumulated and held gradients; return their number of samples."""
        lost = self.all_samples
        self._held, self._held_samples = [], 0
        self.drop()
        return lost

    @torch.no_grad()
    def load(self) -> None:
        """Load the mean gradient (zero if no samples are due) into the tensors that are averaged."""
        scale = 1.0 / self.due_samples if self.due_samples else 0.0
        with self.shared.used() as averaged:
            for gradient, target in zip(self._held or self._sums, averaged, strict=True):
                target.copy_(gradient).mul_(scale)
            self._is_averaged = False
            self._code.load(averaged, self.due_samples)

    def round_succeeded(self) -> None:
        """Note that a group has averaged the loaded gradients."""
        self._is_averaged = True

    @torch.no_grad()
    def load_average(self, tensors: Iterable[torch.Tensor]) -> None:
        """Load an average that others have made into the averaged tensors."""
        with self.shared.used() as averaged:
            for ours, theirs in zip(averaged, tensors, strict=True):
                ours.copy_(theirs)

    @contextmanager
    def making_room(self) -> Iterator[None]:
        """Use `.grad` for the averaged gradient during a step, then restore the newer gradients.

        The averaged tensors then hold the step's gradient; remainders are kept for later steps.
        """
        with self.shared.used() as averaged:
            self._code.settle(averaged, self._held or list(self._sums), averaged=self._is_averaged)
        newer = [parameter.grad for parameter in self._parameters]
        for parameter, spare in zip(self._parameters, self._held, strict=False):  # no effect if none are held
            parameter.grad = spare
        yield
        if not self.holds:
            self.drop()
        for parameter, gradient in zip(self._parameters, newer, strict=True):
            parameter.grad = gradient
        self._held, self._held_samples = [], 0

    @property
    def factors(self) -> Mapping[int, Factors]:
        """The PowerSGD factors of the last averaged matrices, by tensor index; empty without PowerSGD."""
        return self._code.factors

    def keep_remainders(self, file: RemainderFile, era: int, step: int) -> None:
        """Save the remainders, which belong to the state after `step`, for the next session."""
        file.keep(self._origin(era, step), self._code.remainders)

    def resume_remainders(self, file: RemainderFile, era: int, step: int) -> None:
        """Load an earlier session's remainders of this encoding, for use after `step`."""
        self._code.resume(file.take(self._origin(era, step), self._code.remainder_shapes(self.shared.shapes)))

    def _origin(self, era: int, step: int) -> RemainderOrigin:
        return RemainderOrigin(self._run, era, step, repr(self.averaging.code))

    def forget_remainders(self) -> None:
        """Drop the remainders of earlier rounds."""
        self._code.forget()
