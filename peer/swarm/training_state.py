"""One peer's training state: parameters, optimizer moments, learning-rate schedule, step and era."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from hivemind.compression import TensorRole
from hivemind.utils import nested_flatten

from peer.config.run import RunConfig
from peer.models.optimizer_setup import build_optimizer, build_scheduler, parameter_groups
from peer.models.optimizers import SharedOptimizer
from peer.node.states import DonatedState, JoinedTensors, StateCopy
from peer.progress.fingerprint import Sketch, sketch_of


class TrainingState:
    """The model's parameters with all that a global step changes together; `lock` is held meanwhile."""

    def __init__(self, model: torch.nn.Module, config: RunConfig) -> None:
        """Create the run's optimizer for the parameters of `model`, which are not copied."""
        self.optimizer = build_optimizer(config, parameter_groups(model, config))
        self.parameters: list[torch.nn.Parameter] = [
            parameter for group in self.optimizer.param_groups for parameter in group["params"]
        ]
        self._scheduler = build_scheduler(config, self.optimizer)
        self.lock = threading.RLock()
        self.step = 0  # global steps completed
        self.era = 0  # number of times that the run had returned to a checkpoint before this state
        self.voters: Collection[str] = ()  # IDs of the peers that took the newest step together; empty: unknown

    @property
    def shapes(self) -> list[torch.Size]:
        """The shapes of the parameters."""
        return [parameter.shape for parameter in self.parameters]

    @property
    def all_shapes(self) -> list[torch.Size]:
        """The shapes of `tensors`."""
        return [tensor.shape for tensor in self.tensors]

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The live tensors: the parameters, then those of the optimizer."""
        return [*(parameter.detach() for parameter in self.parameters), *optimizer_tensors(self.optimizer)]

    @property
    def scheduled_rates(self) -> list[float]:
        """The learning rate of each parameter group after this step, by the schedule."""
        return [float(rate) for rate in self._scheduler.get_last_lr()]

    def copy(self) -> StateCopy:
        """Copy the state between global steps, for another peer."""
        roles = [TensorRole.PARAMETER] * len(self.parameters) + moment_roles(self.optimizer)
        copy = JoinedTensors.room_for(self.all_shapes)
        with self.lock:
            for place, tensor in zip(copy.separate(), self.tensors, strict=True):
                place.copy_(tensor)
            return StateCopy(self.step, self.era, tuple(self.voters), copy, roles)

    def sketch(self) -> Sketch:
        """Return the sketch of this state."""
        return sketch_of(self.parameters, moments_of(self.optimizer))

    def sketch_of_other(self, donated: DonatedState) -> Sketch:
        """Return the sketch of another peer's state, which has the same shapes."""
        count, tensors = len(self.parameters), donated.tensors.separate()
        return sketch_of(tensors[:count], by_parameter(self.optimizer, tensors[count:]))

    def adopt(self, donated: DonatedState) -> None:
        """Replace this state by another peer's, which has the same shapes."""
        with self.lock:
            for tensor, new in zip(self.tensors, donated.tensors.separate(), strict=True):
                tensor.copy_(new)
            self.era = donated.era
            self.set_step(donated.step, donated.voters)

    @torch.no_grad()
    def load_gradients(self, averages: Iterable[torch.Tensor]) -> None:
        """Load averaged gradients into `.grad`."""
        for parameter, average in zip(self.parameters, averages, strict=True):
            assert parameter.grad is not None  # allocated by the gradient buffer
            parameter.grad.copy_(average)

    def advance(self, voters: Collection[str]) -> None:
        """Take an optimizer step with the gradients in `.grad`, which these peers have averaged."""
        self.optimizer.step()
        self.set_step(self.step + 1, voters)

    def forget_moments(self) -> None:
        """Reset the optimizer's statistics."""
        self.optimizer.reset_statistics()

    def scale_rates(self, scale: float) -> None:
        """Use the scheduled learning rates, times a factor, for the next step."""
        for group, learning_rate in zip(self.optimizer.param_groups, self.scheduled_rates, strict=True):
            group["lr"] = scale * learning_rate

    def set_step(self, step: int, voters: Collection[str] = ()) -> None:
        """Set the number of completed global steps; the learning-rate schedule follows, even backwards."""
        self.step, self.voters = step, voters
        self._scheduler._step_count, self._scheduler.last_epoch = step, step - 1
        self._scheduler.step()


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the live tensors of the optimizer's state, in hivemind's serialization order."""
    return [value for value in nested_flatten(optimizer.state_dict()) if isinstance(value, torch.Tensor)]


def moments_of(optimizer: torch.optim.Optimizer) -> list[Sequence[torch.Tensor]]:
    """Return the live tensors of the optimizer's state, grouped by parameter."""
    return by_parameter(optimizer, optimizer_tensors(optimizer))


def by_parameter(optimizer: torch.optim.Optimizer, tensors: Sequence[torch.Tensor]) -> list[Sequence[torch.Tensor]]:
    """Group tensors by parameter; the tensors must be in the order of this optimizer's state."""
    ends = list(accumulate(len(state) for state in _states(optimizer)))
    return [tensors[start:end] for start, end in pairwise([0, *ends])]


def moment_roles(optimizer: SharedOptimizer) -> list[TensorRole]:
    """Return each optimizer tensor's role, which selects its encoding in `peer.node.states.STATE_CODE`."""
    rounded = [optimizer.rounds(name, state[name]) for state in _states(optimizer) for name in sorted(state)]
    return [TensorRole.OPTIMIZER if each else TensorRole.UNSPECIFIED for each in rounded]


def _states(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return each parameter's state, in the order of the parameter groups."""
    return [state for _, state in sorted(optimizer.state_dict()["state"].items())]
