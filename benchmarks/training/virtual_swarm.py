"""Virtual workers that take turns in one process, and the common model that they train.

A worker's numbers go over a wire of `benchmarks.training.virtual_wires`. There is no network, and a delayed round takes
as long as the training until the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.training.one_bit_lamb import OneBitLamb, OneBits
from benchmarks.training.virtual_wires import Wire, wire_of
from peer.backends.local_steps import LocalSteps, own_model
from peer.backends.torch_cpu import TorchBackend
from peer.config.run import RunConfig
from peer.data.batching.batches import Batch
from peer.models.optimizers import build_optimizer, build_scheduler, parameter_groups
from peer.models.update_rules import SharedOptimizer


class VirtualWorker(Protocol):
    """One worker, beside others with the same common model: it stands for the copies that are equal on all peers."""

    def train(self, batches: Iterable[Batch]) -> None:
        """Compute microbatches."""
        ...

    def sums(self) -> tuple[list[Tensor], int]:
        """Return what is to be averaged, as sums, and over how many samples; the worker trains on beside it."""
        ...

    def stepped(self) -> None:
        """Take in that the common model has taken the step of the sums that were last returned."""
        ...


class CommonSteps:
    """A worker that computes gradients of the common parameters."""

    def __init__(self, config: RunConfig, model: PreTrainedModel, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._backend, self._parameters = TorchBackend(config, model), parameters
        self._samples = 0
        self._sums: list[Tensor] = []

    def train(self, batches: Iterable[Batch]) -> None:
        """Compute microbatches, and take the gradients out of the parameters, where other workers' come."""
        self._samples = sum(self._backend.accumulate(batch).samples for batch in batches)
        self._sums = take_gradients(self._parameters)

    def sums(self) -> tuple[list[Tensor], int]:
        """Return the sums of gradients over the last samples."""
        return self._sums, self._samples

    def stepped(self) -> None:
        """Do nothing: the gradients to come are those of the new parameters."""


@dataclass
class Standing:
    """The part of a swarm that one worker's local steps see (`peer.backends.local_steps.OuterSteps`)."""

    optimizer: torch.optim.Optimizer
    step: int = 0
    own_samples: int = 0
    set_aside_samples: int = 0


class OwnSteps:
    """A worker that takes local steps with a copy of the model."""

    def __init__(
        self,
        config: RunConfig,
        model: PreTrainedModel,
        parameters: Sequence[torch.nn.Parameter],
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self._parameters, self._standing, own = parameters, Standing(optimizer), own_model(config, model)
        self._is_delayed = config.averaging.delay
        self._backend = LocalSteps(config, TorchBackend(config, own), own, model, self._standing)

    def train(self, batches: Iterable[Batch]) -> None:
        """Take a local step on each microbatch."""
        for batch in batches:
            self._standing.own_samples += self._backend.accumulate(batch).samples

    def sums(self) -> tuple[list[Tensor], int]:
        """Return the pseudo-gradient times the samples; with delay these are set aside for the round."""
        self._backend.collect()
        samples = self._standing.own_samples
        self._standing.set_aside_samples = samples if self._is_delayed else 0
        return take_gradients(self._parameters), samples

    def stepped(self) -> None:
        """Go on from the common parameters, with the progress since the round began."""
        standing = self._standing
        standing.own_samples -= standing.set_aside_samples or standing.own_samples
        standing.set_aside_samples = 0
        standing.step += 1
        self._backend.synchronize()


def take_gradients(parameters: Iterable[torch.nn.Parameter]) -> list[Tensor]:
    """Return the gradients, and leave none."""
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
    for each in parameters:
        each.grad = None
    return gradients


class VirtualSwarm:
    """The common model, its optimizer, and the workers."""

    def __init__(
        self, config: RunConfig, model: PreTrainedModel, batches: Sequence[Iterator[Batch]], *, is_one_bit: bool = False
    ) -> None:
        """Begin with this model and one stream of microbatches for each worker."""
        self._batches = batches
        self._microbatches = config.averaging.target_batch_size // (config.data.microbatch_size * len(batches))
        groups = parameter_groups(model, config)
        self._parameters: list[torch.nn.Parameter] = [each for group in groups for each in group["params"]]
        shapes = [each.shape for each in self._parameters]
        if is_one_bit and config.averaging.compression != "none":
            one_bit = OneBitLamb(config, groups)
            self._optimizer: SharedOptimizer = one_bit
            self.wire: Wire = OneBits(len(batches), self._parameters, one_bit)
        else:
            self._optimizer = OneBitLamb(config, groups) if is_one_bit else build_optimizer(config, groups)
            self.wire = wire_of(config, len(batches), shapes)
        self._scheduler = build_scheduler(config, self._optimizer)
        self._workers: list[VirtualWorker] = [
            OwnSteps(config, model, self._parameters, self._optimizer)
            if config.averaging.local_steps > 1
            else CommonSteps(config, model, self._parameters)
            for _ in batches
        ]

    def train(self, rounds: int, *, delay: bool) -> None:
        """Average so often; with delay the step of a round is taken when the training for the next one has ended."""
        late: list[Tensor] | None = None
        for _ in range(rounds):
            for worker, batches in zip(self._workers, self._batches, strict=True):
                worker.train(islice(batches, self._microbatches))
            if late is not None:
                self._step(late)
            sums, samples = zip(*(worker.sums() for worker in self._workers), strict=True)
            late = self.wire.average(sums, samples)
            if not delay:
                self._step(late)
                late = None
        if late is not None:
            self._step(late)

    def _step(self, average: Sequence[Tensor]) -> None:
        for parameter, gradient in zip(self._parameters, average, strict=True):
            parameter.grad = gradient
        self._optimizer.step()
        self._scheduler.step()
        take_gradients(self._parameters)
        for worker in self._workers:
            worker.stepped()
