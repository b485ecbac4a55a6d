"""Gradients with PyTorch on the CPU, computed on the swarm's parameters and not on a replica.

`peer.backends.passes` runs forward and backward passes; `peer.backends.replicas` uses accelerators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel

from peer.backends import MicrobatchResult
from peer.backends.compiled import CompiledLayers
from peer.backends.hardware import describe_device
from peer.backends.passes import Counts, Passes, add_gradients, result_of
from peer.config.run import RunConfig
from peer.runtime.devices import Precision

if TYPE_CHECKING:
    from peer.data.batching.batches import Batch

CPU = torch.device("cpu")


class TorchBackend:
    """A backend for the CPU, which adds gradients in place to the parameters' `.grad`."""

    def __init__(self, config: RunConfig, model: PreTrainedModel, precision: Precision = "fp32") -> None:
        self._precision = precision
        self.layers = CompiledLayers([model])
        self._passes = Passes(config, model, CPU, precision, self.layers)

    @property
    def description(self) -> str:
        """The number of threads, and the precision if it is not fp32."""
        device = describe_device(CPU, torch.get_num_threads())
        return device if self._precision == "fp32" else f"{device}, {self._precision}"

    def microbatch_size(self, usual: int, limit: int, make_batch: Callable[[int], Batch]) -> int:
        """Return `usual`, because more samples per microbatch would be no faster."""
        return self._passes.fitting_size(usual, limit, make_batch)

    def stage(self, batch: Batch) -> Batch:
        """Return the batch unchanged, because it needs no transfer."""
        return batch

    @property
    def on_gpus(self) -> bool:
        """Always False, because compilation is tried by default only on GPUs."""
        return False

    def rehearse(self, batch: Batch) -> None:
        """Compute a microbatch and discard the result."""
        self._passes.compute(batch, Counts.of(batch))

    def accumulate(self, batch: Batch) -> MicrobatchResult:
        """Add the gradient of the loss, summed over samples, if loss and gradient are finite."""
        computed = self._passes.compute(batch, Counts.of(batch))
        if computed.finite:
            add_gradients(self._passes.parameters, computed.gradients)
        return result_of(batch, [computed])

    def collect(self) -> None:
        """Do nothing: gradients are already in `.grad`."""

    def synchronize(self) -> None:
        """Do nothing: the swarm changes the same parameters and gradients."""
