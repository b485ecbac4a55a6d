"""The limits on norms leave an honest run alone: real gradients of a small model, from senders with unequal batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hivemind.averaging.partition import TensorPartContainer

from peer.backends.local_steps import own_model, with_local_steps
from peer.backends.torch_cpu import TorchBackend
from peer.config.run import RunConfig
from peer.data.batching.batches import Batch
from peer.gradients.power_sgd import LowRank, orthonormal
from peer.models.build import build_model
from peer.models.optimizer_setup import build_optimizer, build_scheduler, parameter_groups
from peer.reduction.combine import WeightedPart, weighted_mean
from peer.reduction.guard import ReductionGuard
from tests.security.member_swarm import CONFIG
from tests.support.swarm_peer import SPECIAL, VOCABULARY, fixed_batch

MICROBATCHES = (1, 2, 6)  # of each sender in a round
STEPS = 60  # by then the order of sentences is learnt, and one wrong sample has a hundred times the usual gradient
FEW_STEPS = 20  # factors come closest to the limit in the first ten


def batch(config: RunConfig, sender: int, step: int, part: int) -> Batch:
    """Never seen before; what is masked can be learnt from its neighbour."""
    drawn = fixed_batch(config.data.microbatch_size, sender, step, part)
    labels = drawn.input_ids.flatten()[drawn.label_positions - 1] % 8 + 5
    return replace(drawn, labels=labels)


class HonestRun:
    """All senders of a run in one process, each round reduced by each of them and by a keeper without samples."""

    own_samples = set_aside_samples = 0  # after a step: all samples are in it

    def __init__(self, **averaging: Any) -> None:
        self.config = RunConfig.from_mapping(CONFIG | {"averaging": CONFIG["averaging"] | averaging})
        self.model = build_model(self.config, VOCABULARY, SPECIAL)
        self.optimizer = build_optimizer(self.config, parameter_groups(self.model, self.config))
        self.scheduler = build_scheduler(self.config, self.optimizer)
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.step, self.reduced, self.smaller = 0, 0, 0
        self.guards = [ReductionGuard() for _ in range(len(MICROBATCHES) + 1)]
        shapes = [parameter.shape for parameter in self.parameters]
        self.factors = [LowRank(shapes, self.config.averaging.powersgd_rank) for _ in MICROBATCHES]
        owns = [own_model(self.config, self.model) for _ in MICROBATCHES]
        self.backends = [
            with_local_steps(self.config, TorchBackend(self.config, own), own, self.model, self) for own in owns
        ]

    def gradients(self, sender: int) -> tuple[list[torch.Tensor], int]:
        """One sender's mean over its samples, and how many these are."""
        backend, samples = self.backends[sender], 0
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        for part in range(MICROBATCHES[sender]):
            samples += backend.accumulate(batch(self.config, sender, self.step, part)).samples
        backend.collect()
        return [parameter.grad / samples for parameter in self.parameters if parameter.grad is not None], samples

    def average(self, senders: Sequence[list[torch.Tensor]], weights: Sequence[int], half: bytes) -> list[torch.Tensor]:
        """The plain mean, after every reducer has looked at every part."""
        for index, guard in enumerate(self.guards):
            keeper = index == len(senders)
            own = [torch.zeros_like(tensor) for tensor in senders[0]] if keeper else senders[index]
            container = TensorPartContainer(own, [1.0], part_size_bytes=8192)
            of_round = guard.begin(b"group", half)
            parts = list(container._input_parts_by_peer[0])
            of_round.set_up(["a", "b", "c", "keeper"], own, parts, 0.0 if keeper else weights[index])
            views = [[part for tensor in tensors for part in tensor.view(-1).split(2048)] for tensors in senders]
            for number, brought in enumerate(zip(*views, strict=True)):
                given = [WeightedPart(i, part, float(weights[i])) for i, part in enumerate(brought)]
                of_round.combine(number, given)
                self.reduced += len(given)
            self.smaller += sum(of_round._smaller.values())
        averages = [
            weighted_mean(0, [WeightedPart(i, tensor, float(weights[i])) for i, tensor in enumerate(brought)])
            for brought in zip(*senders, strict=True)
        ]
        for guard in self.guards:
            guard.accepted(half, averages)
        return averages

    def take_step(self) -> None:
        """One round, in both halves where there are two, and the step."""
        brought = [self.gradients(sender) for sender in range(len(MICROBATCHES))]
        senders, weights = [tensors for tensors, _ in brought], [samples for _, samples in brought]
        sums = [[mean * samples for mean in means] for means, samples in brought]
        if self.config.averaging.powersgd_rank:
            averages = self.by_factors(senders, weights, sums)
        else:
            averages = self.average(senders, weights, b"")
        for parameter, average in zip(self.parameters, averages, strict=True):
            parameter.grad = average
        self.optimizer.step()
        self.scheduler.step()
        self.step += 1
        for backend in self.backends:
            backend.synchronize()

    def by_factors(
        self, senders: Sequence[list[torch.Tensor]], weights: Sequence[int], sums: Sequence[list[torch.Tensor]]
    ) -> list[torch.Tensor]:
        """The same with PowerSGD."""
        images, values = [], []
        for low_rank, tensors, samples in zip(self.factors, senders, weights, strict=True):
            low_rank.load(tensors, samples)
            images.append(low_rank.images(tensors))
        lefts = [orthonormal(image) for image in self.average(images, weights, b".images")]
        for low_rank, tensors in zip(self.factors, senders, strict=True):
            values.append(low_rank.coordinates(tensors, lefts))
        averages = self.average(values, weights, b"")
        for low_rank, tensors, of_sender in zip(self.factors, senders, sums, strict=True):
            low_rank.take(tensors, lefts, averages)
            low_rank.settle(tensors, of_sender, averaged=True)
        return senders[0]


WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "plain": (STEPS, {}),
    "factors": (FEW_STEPS, {"powersgd_rank": 2}),
    "local": (STEPS, {"local_steps": 4}),
}


@pytest.mark.parametrize(("steps", "averaging"), WAYS.values(), ids=WAYS)
def test_no_part_of_an_honest_run_is_made_smaller(steps: int, averaging: dict[str, Any]) -> None:
    """Not in the first rounds, not in a warm-up, with factors as well as with local steps."""
    run = HonestRun(**averaging)
    for _ in range(steps):
        run.take_step()
    assert run.reduced > 1000
    assert run.smaller == 0
