"""Forward and backward passes on one device without loss of samples, for all PyTorch backends.

A microbatch's gradients are returned instead of accumulated, and only when all are complete. A
microbatch that runs out of memory, or overflows in half precision, therefore changes nothing and is
repeated in smaller parts or with a smaller loss scale.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import PreTrainedModel

from auth.errors import MemoryLimitError
from peer.backends import MicrobatchResult
from peer.backends.compiled import CompiledLayers
from peer.backends.memory import is_out_of_memory, largest_fitting
from peer.config.run import RunConfig
from peer.data.batching.batches import parts_of
from peer.models.build import save_memory
from peer.models.objectives import compute_losses
from peer.models.optimizers import gradient_norm
from peer.runtime.devices import LossScale, Precision

if TYPE_CHECKING:
    from peer.data.batching.batches import Batch

DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PROBED_SHARE = 0.9  # fraction of a GPU's memory that trials may use; training needs the rest


@dataclass(frozen=True)
class Counts:
    """The denominators of means over a microbatch, of which a device may compute only a part."""

    samples: int
    labels: int

    @classmethod
    def of(cls, batch: Batch) -> Counts:
        """Count a batch's samples and labels."""
        return cls(batch.samples, len(batch.labels))


@dataclass(frozen=True)
class MicrobatchShare:
    """A part's contribution to a microbatch's mean losses and gradients of (total * samples)."""

    total: float
    mlm_loss: float
    sop_loss: float | None
    gradients: list[Tensor | None]  # one gradient per trained parameter
    finite: bool


class Passes:
    """Forward and backward passes of a model on its device."""

    def __init__(
        self,
        config: RunConfig,
        model: PreTrainedModel,
        device: torch.device,
        precision: Precision,
        layers: CompiledLayers | None = None,
    ) -> None:
        """Set up the passes; `layers`, if given, switches compilation of `model` and its copies."""
        self.device = device
        self._layers = layers or CompiledLayers([model])
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.scale = LossScale(precision)
        self._config = config
        self._model = model
        self._precision: Precision = precision
        self._at_once: int | None = None  # maximum samples per pass, set when memory runs out; None: no limit
        self._shortage = ""  # message of the last out-of-memory error

    def compute(self, batch: Batch, whole: Counts) -> MicrobatchShare:
        """Return the batch's contribution to the microbatch `whole`.

        Retries while smaller parts or loss scales may help. If the loss itself is not finite, or
        the gradient is not finite even at a scale of 1, the loss scale is not the cause and does
        not change. Raises `MemoryLimitError` if not even one sample fits.
        """
        batch = to_device(batch, self.device)
        scale = self.scale.value
        while True:
            computed = self._try(batch, whole, scale)
            if computed is None:
                self._take_less(batch.samples)
            elif computed.finite:
                if scale < self.scale.value:
                    self.scale.lower()
                else:
                    self.scale.succeeded()
                return computed
            elif scale == 1.0 or not math.isfinite(computed.total):
                return computed
            else:
                scale = max(1.0, scale / 2)

    def fitting_size(self, usual: int, limit: int, make_batch: Callable[[int], Batch]) -> int:
        """Return the largest size that fits on a GPU; return `usual` on other devices."""
        if self.device.type != "cuda":
            return usual
        torch.cuda.set_per_process_memory_fraction(PROBED_SHARE, self.device)
        try:
            return self.find_fitting_size(limit, make_batch)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, self.device)

    def find_fitting_size(self, limit: int, make_batch: Callable[[int], Batch]) -> int:
        """Return the largest size that fits, with gradient checkpointing if one sample needs it."""

        def fits(samples: int) -> bool:
            batch = to_device(make_batch(samples), self.device)
            return self._try(batch, Counts.of(batch), self.scale.value) is not None

        size = largest_fitting(fits, limit)
        if size == 0 and save_memory(self._model):
            size = largest_fitting(fits, limit)
        if size == 0:
            raise self._no_memory()
        return size

    def _try(self, batch: Batch, whole: Counts, scale: float) -> MicrobatchShare | None:
        """Compute the batch; if memory runs out, release it and return None."""
        while True:
            compiled = self._layers.on
            try:
                return self._in_parts(batch, whole, scale)
            except Exception as error:  # compilers and allocators raise errors of arbitrary types
                if is_out_of_memory(error):
                    self._shortage = str(error).partition("\n")[0]
                    break
                # After a compiler error, retry uncompiled; another copy may already have switched
                # compilation off.
                if not (self._layers.give_up(error) or compiled):
                    raise
        gc.collect()  # after the handler: its traceback keeps intermediate results alive
        _release_cached_memory(self.device)
        return None

    def _in_parts(self, batch: Batch, whole: Counts, scale: float) -> MicrobatchShare:
        """Compute the batch in parts; return the sum weighted by numbers of labels and samples."""
        sums: list[Tensor | None] = [None] * len(self.parameters)
        mlm: list[Tensor] = []  # weighted losses on the device
        by_sample: list[Tensor] = []
        ordered = False
        for part in parts_of(batch, self._at_once or batch.samples):
            with torch.autocast(self.device.type, DTYPES[self._precision], enabled=self._precision != "fp32"):
                losses = compute_losses(self._model, part, self._config)
            of_labels = len(part.labels) / max(1, whole.labels)
            of_samples = part.samples / whole.samples
            objective = losses.mlm * of_labels
            if losses.by_sample is not None:
                objective = objective + losses.by_sample * of_samples
                by_sample.append(losses.by_sample.detach().float() * of_samples)
                ordered = losses.sop is not None
            factor = whole.samples * scale
            gradients = torch.autograd.grad(objective * factor, self.parameters, allow_unused=True)
            sums = [_plus(total, gradient) for total, gradient in zip(sums, gradients, strict=True)]
            mlm.append(losses.mlm.detach().float() * of_labels)
        present = [gradient for gradient in sums if gradient is not None]
        if scale != 1.0:
            torch._foreach_mul_(present, 1 / scale)
        facts = torch.stack(
            [*mlm, *by_sample, gradient_norm(present).to(self.device)]
        ).tolist()  # the only device synchronization
        mlm_loss, rest = sum(facts[: len(mlm)]), sum(facts[len(mlm) : -1])
        finite = math.isfinite(mlm_loss + rest) and math.isfinite(facts[-1])
        return MicrobatchShare(mlm_loss + rest, mlm_loss, rest if ordered else None, sums, finite)

    def _take_less(self, samples: int) -> None:
        """Halve the samples per pass, then enable gradient checkpointing, then raise `MemoryLimitError`."""
        at_once = min(samples, self._at_once or samples)
        if at_once > 1:
            self._at_once = at_once // 2
        elif not save_memory(self._model):
            raise self._no_memory()

    def _no_memory(self) -> MemoryLimitError:
        return MemoryLimitError(
            f"Not even one sample of this run's model fits into the memory of {self.device}, even with gradient "
            f"checkpointing ({self._shortage:.200}): close other programs, or join with another `--device`."
        )


def add_gradients(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """Add gradients to the parameters' `.grad` in place, because the swarm may hold these buffers."""
    buffers, additions = [], []
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is None:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        buffers.append(parameter.grad)
        additions.append(gradient)
    if buffers:
        torch._foreach_add_(buffers, additions)


def result_of(batch: Batch, shares: list[MicrobatchShare]) -> MicrobatchResult:
    """Combine the results of a microbatch's parts."""
    orders = [share.sop_loss for share in shares if share.sop_loss is not None]
    return MicrobatchResult(
        samples=batch.samples,
        loss=sum(share.total for share in shares),
        mlm_loss=sum(share.mlm_loss for share in shares),
        sop_loss=sum(orders) if orders else None,
        finite=all(share.finite for share in shares),
    )


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Copy a batch to `device`; copies from pinned memory overlap with computation."""
    if device.type == "cpu":
        return batch
    beside = device.type == "cuda"  # Apple GPUs have no pinned memory
    return _with_tensors(batch, lambda tensor: tensor.to(device, non_blocking=beside))


def pin_batch(batch: Batch, pin: Callable[[Tensor], Tensor]) -> Batch:
    """Copy a batch to pinned memory, from which a GPU copies asynchronously."""
    return _with_tensors(batch, pin)


def _with_tensors(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return replace(batch, **{name: change(value) for name, value in values.items() if isinstance(value, Tensor)})


def _plus(total: Tensor | None, addition: Tensor | None) -> Tensor | None:
    if total is None or addition is None:
        return addition if total is None else total
    return total.add_(addition)


def _release_cached_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
