"""1-bit LAMB (Li et al. 2021, arXiv 2104.06069), as a trial: the product does not have it.

In the first steps everything is as with LAMB and `float16`. Then the second moments and the mean trust ratios of these
steps stay; workers send signs of their momenta, with one magnitude a tensor and a remainder (`OneBits`), and a trust
ratio follows the second moments of the gradients that the averaged momenta imply (`OneBitLamb`). Gradients are not
clipped: after the first steps nobody has their sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.training.virtual_wires import Coded, Cost, mean_by_samples, means_of
from peer.config.run import RunConfig
from peer.models.update_rules import Lamb, ParameterGroup
from peer.reduction.compression import compression_of

FIRST_STEPS = 0.2  # of all steps; the paper's share for BERT is about a sixth
RATIO_BETA = 0.9  # of the mean trust ratio
FACTORS, MOST_CHANGE = (0.5, 4.0), 0.1  # of a trust ratio in terms of its mean, and of that factor from step to step


class OneBitLamb(Lamb):
    """LAMB whose second moments and trust ratios stay after the first steps."""

    def __init__(self, config: RunConfig, groups: Sequence[ParameterGroup]) -> None:
        recipe = config.optimizer
        self.first_steps = round(FIRST_STEPS * config.schedule.total_steps)
        self._ratios: dict[Tensor, float] = {}
        self._factors: dict[Tensor, float] = {}
        self._fresh: dict[Tensor, Tensor] = {}  # second moments that go on
        super().__init__(groups, recipe.learning_rate, recipe.betas, recipe.epsilon)  # groups have their weight decay

    def momentum(self, parameter: Tensor) -> Tensor:
        """Return the momentum that all workers have."""
        momentum: Tensor = self.state[parameter]["exp_avg"]
        return momentum

    def steps(self, parameter: Tensor) -> int:
        """Return the number of steps taken."""
        return int(self.state[parameter]["step"])

    def _trust_ratios(self, parameters: list[Tensor], updates: tuple[Tensor, ...]) -> list[float]:
        ratios = super()._trust_ratios(parameters, updates)
        for parameter, ratio in zip(parameters, ratios, strict=True):
            self._ratios[parameter] = RATIO_BETA * self._ratios.get(parameter, ratio) + (1 - RATIO_BETA) * ratio
        return ratios

    def _update_group(self, group: dict[str, Any], parameters: list[Tensor], scale: float) -> None:
        if self.steps(parameters[0]) < self.first_steps:
            super()._update_group(group, parameters, scale)
            return
        for parameter in parameters:
            assert parameter.grad is not None
            self._update_one(group, parameter, parameter.grad)

    def _update_one(self, group: dict[str, Any], parameter: Tensor, gradient: Tensor) -> None:
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        step = int(state["step"].add_(1))
        mean, kept = state["exp_avg"], state["exp_avg_sq"]
        mean.lerp_(gradient, 1 - beta1).mul_(kept > 0)  # a sign cannot say that a gradient is always zero
        fresh = self._fresh.setdefault(parameter, kept.clone())
        fresh.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        kept_root = (kept / (1 - beta2**self.first_steps)).sqrt_().add_(group["eps"])
        fresh_root = (fresh / (1 - beta2**step)).sqrt_().add_(group["eps"])
        direction = mean / (1 - beta1**step) / kept_root
        update = direction + group["weight_decay"] * parameter
        own = min(1.0, float(direction.norm() / update.norm().clamp(min=1e-30)))  # the part that is not weight decay
        before, (least, most) = self._factors.get(parameter, 1.0), FACTORS
        factor = min(most, max(least, float((kept_root / fresh_root).max()) * own + 1 - own))
        self._factors[parameter] = min(before * (1 + MOST_CHANGE), max(before * (1 - MOST_CHANGE), factor))
        parameter.add_(update, alpha=-float(group["lr"]) * self._factors[parameter] * self._ratios[parameter])


class OneBits:
    """The wire of 1-bit LAMB: gradients in 16 bits first, then momenta in one bit, with remainders at both ends."""

    def __init__(self, workers: int, parameters: Sequence[Tensor], optimizer: OneBitLamb) -> None:
        self._coded = Coded(workers, int(compression_of("float16").compression_type))
        self.cost: Cost = self._coded.cost
        self._parameters, self._optimizer = parameters, optimizer
        self._lost = [[torch.zeros_like(each) for each in parameters] for _ in range(workers)]
        self._lost_of_reducer = [torch.zeros_like(each) for each in parameters]

    def average(self, sums: Sequence[Sequence[Tensor]], samples: Sequence[int]) -> list[Tensor]:
        """Return the mean gradient, or the one that the averaged momentum implies."""
        if self._optimizer.steps(self._parameters[0]) < self._optimizer.first_steps:
            return self._coded.average(sums, samples)
        averages, means, cost = [], means_of(sums, samples), self.cost
        beta = self._optimizer.param_groups[0]["betas"][0]
        for index, parameter in enumerate(self._parameters):
            before = self._optimizer.momentum(parameter)
            momenta = [before.lerp(own[index], 1 - beta) for own in means]
            decoded = [
                self._passed(momentum, lost[index], cost.share)
                for momentum, lost in zip(momenta, self._lost, strict=True)
            ]
            cost.sent_bytes += _size(parameter)
            average = self._passed(mean_by_samples(decoded, samples), self._lost_of_reducer[index], 1)
            cost.returned_bytes += _size(parameter)
            averages.append((average - beta * before) / (1 - beta))
        return averages

    def _passed(self, tensor: Tensor, lost: Tensor, share: float) -> Tensor:
        """Return the signs times the mean magnitude of a tensor and its remainder, and keep what is left."""
        with self.cost.encoding(share):
            whole = tensor + lost
            magnitude, bits = whole.abs().mean(), np.packbits(whole.flatten().numpy() >= 0)
        with self.cost.decoding(share):
            signs = np.unpackbits(bits, count=whole.numel()).astype(np.float32) * 2 - 1
            decoded = torch.from_numpy(signs).mul_(magnitude).view_as(whole)
        with self.cost.encoding(share):
            torch.sub(whole, decoded, out=lost)
        return decoded


def _size(tensor: Tensor) -> int:
    """Return the bytes of signs and a magnitude."""
    return -(-tensor.numel() // 8) + 4
