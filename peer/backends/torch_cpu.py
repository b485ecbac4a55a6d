"""Gradients with PyTorch, with the swarm's own parameters where they are: on the CPU.

What loses no sample is in `peer.backends.passes`; accelerators get replicas (`peer.backends.replicas`).
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
    """Runs forward and backward passes; gradients are added in place to the parameters' `.grad`."""

    def __init__(self, config: RunConfig, model: PreTrainedModel, precision: Precision = "fp32") -> None:
        self._precision = precision
        self.layers = CompiledLayers([model])
        self._passes = Passes(config, model, CPU, precision, self.layers)

    @property
    def description(self) -> str:
        """The threads, and the precision where it is not the usual one."""
        device = describe_device(CPU, torch.get_num_threads())
        return device if self._precision == "fp32" else f"{device}, {self._precision}"

    def microbatch_size(self, usual: int, limit: int, make_batch: Callable[[int], Batch]) -> int:
        """The usual number: more would be no faster."""
        return self._passes.fitting_size(usual, limit, make_batch)

    def stage(self, batch: Batch) -> Batch:
        """The batch: it is where it is needed."""
        return batch

    @property
    def on_gpus(self) -> bool:
        """Return whether the model is on GPUs, where compiled layers are tried without a request."""
        return False

    def rehearse(self, batch: Batch) -> None:
        """Compute a microbatch and keep nothing of it."""
        self._passes.compute(batch, Counts.of(batch))

    def accumulate(self, batch: Batch) -> MicrobatchResult:
        """Add the gradient of (mean loss * samples), all of it or nothing."""
        computed = self._passes.compute(batch, Counts.of(batch))
        if computed.finite:
            add_gradients(self._passes.parameters, computed.gradients)
        return result_of(batch, [computed])

    def collect(self) -> None:
        """Do nothing: `.grad` is where everything was added."""

    def synchronize(self) -> None:
        """Do nothing: the swarm changes these very parameters and gradients."""
