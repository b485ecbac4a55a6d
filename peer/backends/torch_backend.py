"""Gradients with PyTorch, on the CPU or one accelerator.

The gradients of a microbatch are computed apart and added to the parameters' `.grad` when all of them are there and
finite. So a microbatch that runs out of memory, or overflows in half precision, takes nothing with it and is computed
again: in smaller parts, or with a smaller loss scale.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import PreTrainedModel

from auth.errors import MemoryLimitError
from peer.backends import MicrobatchResult
from peer.backends.memory import is_out_of_memory, largest_fitting
from peer.data.parts import parts_of
from peer.hardware import describe_device
from peer.models import save_memory
from peer.objectives import compute_losses
from peer.optim import gradient_norm
from peer.precision import LossScale, Precision
from peer.run_config import RunConfig

if TYPE_CHECKING:
    from peer.data.batches import Batch

DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PROBED_SHARE = 0.9  # of an accelerator's memory: the rest is for what training needs beside the microbatch


@dataclass(frozen=True)
class _Computed:
    """A microbatch's mean losses, and for each parameter the gradient of (mean total * samples)."""

    mlm_loss: float
    sop_loss: float | None
    gradients: list[Tensor | None]
    finite: bool

    @property
    def total(self) -> float:
        return self.mlm_loss + (self.sop_loss or 0.0)


class TorchBackend:
    """Runs forward and backward passes; gradients are added in place to the parameters' `.grad`."""

    def __init__(
        self,
        config: RunConfig,
        model: PreTrainedModel,
        device: torch.device | str = "cpu",
        precision: Precision = "fp32",
    ) -> None:
        self.device = torch.device(device)
        self._config = config
        self._model = model
        model.to(self.device)  # type: ignore[arg-type]  # transformers' decorator hides torch's signature
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._precision: Precision = precision
        self._scale = LossScale(precision)
        self._at_once: int | None = None  # samples in one pass, since memory ran out; None: as many as come
        self._shortage = ""  # what was said when memory ran out last

    @property
    def description(self) -> str:
        """The device, the threads where it is the CPU, and the precision where it is not the usual one."""
        device = describe_device(self.device, torch.get_num_threads())
        return device if self._precision == "fp32" else f"{device}, {self._precision}"

    def microbatch_size(self, usual: int, limit: int, make_batch: Callable[[int], Batch]) -> int:
        """On a GPU as many samples as fit; elsewhere the usual number, as more would be no faster."""
        if self.device.type != "cuda":
            return usual
        torch.cuda.set_per_process_memory_fraction(PROBED_SHARE, self.device)
        try:
            return self.find_microbatch_size(limit, make_batch)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, self.device)

    def find_microbatch_size(self, limit: int, make_batch: Callable[[int], Batch]) -> int:
        """The largest number of samples that fit, found by trying; with gradient checkpointing if one does not fit."""

        def fits(samples: int) -> bool:
            return self._try(to_device(make_batch(samples), self.device)) is not None

        size = largest_fitting(fits, limit)
        if size == 0 and save_memory(self._model):
            size = largest_fitting(fits, limit)
        if size == 0:
            raise self._no_memory()
        return size

    def accumulate(self, batch: Batch) -> MicrobatchResult:
        """Add the gradient of (mean loss * samples), all of it or nothing."""
        computed = self._compute(to_device(batch, self.device))
        if computed.finite:
            self._add(computed.gradients)
        return MicrobatchResult(
            samples=batch.samples,
            loss=computed.total,
            mlm_loss=computed.mlm_loss,
            sop_loss=computed.sop_loss,
            finite=computed.finite,
        )

    def collect(self) -> None:
        """Nothing to do: `.grad` is where everything was added."""

    def synchronize(self) -> None:
        """Nothing to do: the swarm changes these very parameters and gradients."""

    def _compute(self, batch: Batch) -> _Computed:
        """The microbatch, computed again in smaller parts or with a smaller scale for as long as that may help."""
        while True:
            computed = self._try(batch)
            if computed is None:
                self._take_less(batch.samples)
            elif computed.finite:
                self._scale.succeeded()
                return computed
            elif not self._scale.lower():
                return computed

    def _try(self, batch: Batch) -> _Computed | None:
        """The microbatch; None if memory was not enough, with everything given back that it had taken."""
        try:
            return self._in_parts(batch)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self._shortage = str(error).partition("\n")[0]
        gc.collect()  # outside the handler, whose traceback held what was computed so far
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return None

    def _in_parts(self, batch: Batch) -> _Computed:
        """Each part's means count by its share of the labels and of the samples, so that the sums are the whole's."""
        mlm = order = 0.0
        sums: list[Tensor | None] = [None] * len(self._parameters)
        ordered = False
        for part in parts_of(batch, self._at_once or batch.samples):
            with torch.autocast(self.device.type, DTYPES[self._precision], enabled=self._precision != "fp32"):
                losses = compute_losses(self._model, part, self._config)
            of_labels = len(part.labels) / max(1, len(batch.labels))
            of_samples = part.samples / batch.samples
            objective = losses.mlm * of_labels
            if losses.sop is not None:
                objective, ordered = objective + losses.sop * of_samples, True
            factor = batch.samples * self._scale.value
            gradients = torch.autograd.grad(objective * factor, self._parameters, allow_unused=True)
            sums = [_plus(total, gradient) for total, gradient in zip(sums, gradients, strict=True)]
            mlm += float(losses.mlm.detach()) * of_labels  # waits for the accelerator
            order += 0.0 if losses.sop is None else float(losses.sop.detach()) * of_samples
        present = [gradient for gradient in sums if gradient is not None]
        if self._scale.value != 1.0:
            torch._foreach_mul_(present, 1 / self._scale.value)
        finite = math.isfinite(mlm + order) and math.isfinite(gradient_norm(present))
        return _Computed(mlm, order if ordered else None, sums, finite)

    def _add(self, gradients: list[Tensor | None]) -> None:
        """Into the buffers that the swarm holds."""
        buffers, additions = [], []
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            if gradient is None:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            buffers.append(parameter.grad)
            additions.append(gradient)
        if buffers:
            torch._foreach_add_(buffers, additions)

    def _take_less(self, samples: int) -> None:
        """After memory ran out: half as many samples at once, then gradient checkpointing, then give up."""
        at_once = min(samples, self._at_once or samples)
        if at_once > 1:
            self._at_once = at_once // 2
        elif not save_memory(self._model):
            raise self._no_memory()

    def _no_memory(self) -> MemoryLimitError:
        return MemoryLimitError(
            f"Not even one sample of this run's model fits into the memory of {self.device}, nor does it with gradient "
            f"checkpointing ({self._shortage:.200}): close what else uses it, or join with another `--device`."
        )


def _plus(total: Tensor | None, addition: Tensor | None) -> Tensor | None:
    if total is None or addition is None:
        return addition if total is None else total
    return total.add_(addition)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with its tensors on `device`; on the CPU the batch itself."""
    if device.type == "cpu":
        return batch
    tensors = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return replace(
        batch,
        **{
            name: value.to(device, non_blocking=True)
            for name, value in tensors.items()
            if isinstance(value, torch.Tensor)
        },
    )
