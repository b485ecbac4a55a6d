"""Gradients with PyTorch on accelerators; all GPUs of a machine form one peer.

The swarm's parameters are on the host, where hivemind averages and the optimizer steps; each
accelerator has a replica. A microbatch is divided among the replicas by samples. Replicas
compute in threads that mostly release the GIL (the forked swarm node rules out processes and NCCL). Each
replica accumulates its own gradients. These are summed on the host once per averaging round
(`collect`), and new parameters are copied to the replicas once per global step (`synchronize`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from auth.errors import MemoryLimitError
from peer.backends import MicrobatchResult
from peer.backends.compiled import CompiledLayers
from peer.backends.hardware import describe_devices
from peer.backends.memory import is_out_of_memory
from peer.backends.passes import Counts, MicrobatchShare, Passes, add_gradients, pin_batch, result_of
from peer.config.run import RunConfig
from peer.data.batching.batches import parts_of
from peer.models.build import copy_model
from peer.models.packing import use_flash_attention
from peer.runtime.devices import Precision

if TYPE_CHECKING:
    from peer.data.batching.batches import Batch

Pin = Callable[[Tensor], Tensor]  # copies a tensor to pinned memory
T = TypeVar("T")


class ReplicaBackend:
    """A backend for forward and backward passes on one or more devices of this machine."""

    def __init__(
        self,
        config: RunConfig,
        model: PreTrainedModel,
        devices: Sequence[torch.device],
        precision: Precision = "fp32",
        pin: Pin | None = None,
    ) -> None:
        """Set up the replicas; by default, host memory is pinned for CUDA devices."""
        self._devices = tuple(devices)
        self._precision = precision
        if pin is None and self.on_gpus:
            pin = Tensor.pin_memory
        self._pin = pin
        self._host: list[Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
        zeros = (torch.zeros_like(parameter, requires_grad=False) for parameter in self._host)
        self._staging = list(zeros if pin is None else map(pin, zeros))
        copies: list[PreTrainedModel] = []
        self.layers = CompiledLayers(copies)
        self._replicas = []
        for device in self._devices:  # one by one, because main memory may not hold all copies
            copies.append(copy_model(model))
            self._replicas.append(_place(config, copies[-1], device, precision, self.layers))
        self._threads = ThreadPoolExecutor(len(self._replicas), thread_name_prefix="replica")
        self._holds_sums = False

    @property
    def description(self) -> str:
        """The devices, and the precision if it is not fp32."""
        devices = describe_devices(self._devices, torch.get_num_threads())
        return devices if self._precision == "fp32" else f"{devices}, {self._precision}"

    def microbatch_size(self, usual: int, limit: int, make_batch: Callable[[int], Batch]) -> int:
        """Return the number of replicas times the largest size that fits on each (`usual` without CUDA)."""
        replicas = len(self._replicas)
        most = max(1, limit // replicas)
        calls = [partial(replica.fitting_size, min(usual, most), most, make_batch) for replica in self._replicas]
        sizes = self._side_by_side(calls)
        return min(sizes) * replicas

    def stage(self, batch: Batch) -> Batch:
        """Copy the batch to pinned memory if there is a CUDA device."""
        return batch if self._pin is None else pin_batch(batch, self._pin)

    def accumulate(self, batch: Batch) -> MicrobatchResult:
        """Add the gradient of the loss, summed over samples, if loss and gradient are finite.

        A replica that runs out of memory or overflows repeats its part. No replica adds its part
        unless all results are finite. Raises `MemoryLimitError` if not even one sample fits.
        """
        busy = self._divide(batch)
        shares = self._side_by_side([partial(replica.compute, part, Counts.of(batch)) for replica, part in busy])
        result = result_of(batch, shares)
        if result.finite:
            self._holds_sums = True
            for (replica, _), share in zip(busy, shares, strict=True):
                replica.add(share)
        return result

    @property
    def on_gpus(self) -> bool:
        """Whether replicas are on GPUs, where compilation is tried by default."""
        return any(device.type == "cuda" for device in self._devices)

    def rehearse(self, batch: Batch) -> None:
        """Compute and discard a microbatch's parts in turn, as PyTorch compiles in one thread."""
        for replica, part in self._divide(batch):
            replica.compute(part, Counts.of(batch))

    def _divide(self, batch: Batch) -> list[tuple[_Replica, Batch]]:
        return list(zip(self._replicas, parts_of(batch, -(-batch.samples // len(self._replicas))), strict=False))

    def collect(self) -> None:
        """Add all replicas' sums to the `.grad` of the host's parameters, in place."""
        if not self._holds_sums:
            return
        for replica in self._replicas:
            replica.read_sums(self._staging)
            add_gradients(self._host, self._staging)
        self._clear()

    @torch.no_grad()
    def synchronize(self) -> None:
        """Copy the host's parameters to the replicas and clear their sums."""
        _copy(self._staging, self._host)
        for replica in self._replicas:
            replica.take_parameters(self._staging)
        for replica in self._replicas:
            replica.wait()  # complete the copies before the buffers are reused
        self._clear()

    def _clear(self) -> None:
        self._holds_sums = False
        for replica in self._replicas:
            replica.clear()

    def _side_by_side(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Run the calls in threads and return all results. Raises the error of the first failed call."""
        if len(calls) == 1:
            return [calls[0]()]
        futures = [self._threads.submit(call) for call in calls]
        wait(futures)
        return [future.result() for future in futures]


class _Replica:
    """A copy of the model on one device, with accumulated gradients."""

    def __init__(
        self,
        config: RunConfig,
        model: PreTrainedModel,
        device: torch.device,
        precision: Precision,
        layers: CompiledLayers,
    ) -> None:
        self._device = device
        model.to(device)  # type: ignore[arg-type]  # transformers' decorator hides torch's signature
        use_flash_attention(model, device, precision)
        self._passes = Passes(config, model, device, precision, layers)
        self._parameters: list[Tensor] = [*self._passes.parameters]
        for parameter in self._parameters:  # allocated early, while memory is available
            parameter.grad = torch.zeros_like(parameter)
        if device.type == "cuda":
            with self._here():
                torch.cuda.seed()  # otherwise all GPUs would use the same dropout masks

    def fitting_size(self, usual: int, limit: int, make_batch: Callable[[int], Batch]) -> int:
        with self._here():
            return self._passes.fitting_size(usual, limit, make_batch)

    def compute(self, part: Batch, whole: Counts) -> MicrobatchShare:
        with self._here():
            return self._passes.compute(part, whole)

    def add(self, share: MicrobatchShare) -> None:
        add_gradients(self._parameters, share.gradients)

    def read_sums(self, buffers: list[Tensor]) -> None:
        _copy(buffers, self._sums, beside=self._device.type == "cuda")
        self.wait()

    def take_parameters(self, buffers: list[Tensor]) -> None:
        _copy(self._parameters, buffers, beside=self._device.type == "cuda")

    def clear(self) -> None:
        torch._foreach_zero_(self._sums)

    def wait(self) -> None:
        """Wait until the device has completed all operations."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        elif self._device.type == "mps":
            torch.mps.synchronize()

    @property
    def _sums(self) -> list[Tensor]:
        return [parameter.grad for parameter in self._parameters if parameter.grad is not None]

    def _here(self) -> AbstractContextManager[object]:
        """Make the device current for this thread, for allocations that name no device."""
        return torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()


def _place(
    config: RunConfig, model: PreTrainedModel, device: torch.device, precision: Precision, layers: CompiledLayers
) -> _Replica:
    try:
        return _Replica(config, model, device, precision, layers)
    except Exception as error:  # allocators raise errors of arbitrary types; other errors are raised again
        if not is_out_of_memory(error):
            raise
        raise MemoryLimitError(
            f"This run's model does not even fit into the memory of {device}: close other programs, or join with "
            "another `--device`."
        ) from error


def _copy(into: Sequence[Tensor], values: Sequence[Tensor], *, beside: bool = False) -> None:
    """Copy tensor by tensor, because devices differ; with `beside`, copy asynchronously."""
    for tensor, value in zip(into, values, strict=True):
        tensor.copy_(value, non_blocking=beside)
