"""Gradients with PyTorch, on the CPU or one accelerator."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel

from peer.backends import MicrobatchResult
from peer.hardware import describe_device
from peer.objectives import compute_losses
from peer.optim import gradient_norm
from peer.run_config import RunConfig

if TYPE_CHECKING:
    from peer.data.batches import Batch


class TorchBackend:
    """Runs forward and backward passes; gradients are added in place to the parameters' `.grad`."""

    def __init__(
        self,
        config: RunConfig,
        model: PreTrainedModel,
        device: torch.device | str = "cpu",
        threads: int | None = None,
    ) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self.device = torch.device(device)
        self._config = config
        self._model = model
        model.to(self.device)  # type: ignore[arg-type]  # transformers' decorator hides torch's signature
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def accumulate(self, batch: Batch) -> MicrobatchResult:
        """Add the gradient of (mean loss * samples); a loss that is not finite is dropped before it has one."""
        batch = to_device(batch, self.device)
        losses = compute_losses(self._model, batch, self._config)
        total = float(losses.total.detach())  # waits for the accelerator
        finite = math.isfinite(total)
        if finite:
            (losses.total * batch.samples).backward()  # type: ignore[no-untyped-call]
        return MicrobatchResult(
            samples=batch.samples,
            loss=total,
            mlm_loss=float(losses.mlm.detach()),
            sop_loss=None if losses.sop is None else float(losses.sop.detach()),
            finite=finite,
        )

    @property
    def description(self) -> str:
        """The device, and the threads where it is the CPU."""
        return describe_device(self.device, torch.get_num_threads())

    @property
    def replicas(self) -> int:
        """One device."""
        return 1

    def collect(self) -> None:
        """Nothing to do: `.grad` is where PyTorch adds up."""

    def synchronize(self) -> None:
        """Nothing to do: the swarm changes these very parameters and gradients."""

    def gradients_are_finite(self) -> bool:
        """Whether what has been accumulated may be given to the swarm; reads each gradient once."""
        grads = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        return math.isfinite(gradient_norm(grads))


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
