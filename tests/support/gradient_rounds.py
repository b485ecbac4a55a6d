"""A peer's gradients, and rounds in which a test stands in for its group's all-reduce; no network is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import torch

from peer.config.training import Averaging
from peer.gradients.buffer import GradientBuffer, code_of

AllReduce = Callable[[Sequence[torch.Tensor], bytes], object]  # averages the values of a half in place, or raises


class GradientRounds:
    """A trainer's buffer, which holds gradients of six samples, and the code in its node."""

    def __init__(self, parameters: list[torch.nn.Parameter], averaging: Averaging) -> None:
        self.parameters = parameters
        self.buffer = GradientBuffer(parameters, averaging, "run of an authority")
        self.code = code_of(averaging, self.buffer.shared.shapes)
        self.accumulate(seed=1, samples=6)

    def accumulate(self, seed: int, samples: int) -> None:
        """Add a microbatch's gradients."""
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters:
            assert parameter.grad is not None
            parameter.grad.add_(samples * torch.randn(parameter.shape, generator=generator))
        self.buffer.add(samples)

    def averaged(self) -> list[torch.Tensor]:
        """Return copies of the averaged tensors."""
        with self.buffer.shared.used() as tensors:
            return [tensor.clone() for tensor in tensors]

    def loaded(self) -> list[torch.Tensor]:
        """Return the values with which this peer begins its next round."""
        self.buffer.load()
        return self.averaged()

    def take_round(self, all_reduce: AllReduce) -> None:
        """Take a round."""

        async def reduce(values: Sequence[torch.Tensor], half: bytes = b"") -> None:
            all_reduce(values, half)

        self.buffer.load()
        with self.buffer.shared.used() as tensors:
            asyncio.run(self.code.average(tensors, reduce))
        self.buffer.round_succeeded()

    def take_step(self) -> list[torch.Tensor]:
        """Take the step of the round, and return its gradient."""
        with self.buffer.making_room():
            return self.averaged()
