"""The training state: its copies, its steps, and that a joiner whose moments were rounded stays with its donor."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hivemind.compression import CompressionInfo, TensorRole

from peer.config.run import RunConfig
from peer.models.optimizer_setup import rate_in_phase
from peer.models.optimizers import AdamW, Lamb, Muon, ParameterGroup, SharedOptimizer, StableAdamW
from peer.node.states import STATE_CODE, DonatedState, JoinedTensors
from peer.progress.fingerprint import DRIFT_TOLERANCE, drifted, sketch_of
from peer.reduction.compression import ROOTS, decode
from peer.swarm.training_state import TrainingState, moment_roles, moments_of, optimizer_tensors

CONFIG = RunConfig()
VOTERS = frozenset({"Qm1", "Qm2"})


def step_on(state: TrainingState, averages: Iterable[torch.Tensor], voters: Collection[str]) -> None:
    """Take a step on these averages."""
    state.load_gradients(averages)
    state.advance(voters)


def state_after(steps: int, era: int = 0) -> TrainingState:
    """The state of a small model after a few steps from random parameters."""
    generator = torch.Generator().manual_seed(steps)
    state = TrainingState(torch.nn.Linear(48, 4), CONFIG)
    state.era = era
    for parameter in state.parameters:
        parameter.grad = torch.zeros_like(parameter)  # as the averager does
    for _ in range(steps):
        step_on(state, [torch.randn(shape, generator=generator) for shape in state.shapes], VOTERS)
    return state


def ones_for(state: TrainingState) -> list[torch.Tensor]:
    """An average that fits the state."""
    return [torch.ones(shape) for shape in state.shapes]


def donated_by(state: TrainingState) -> DonatedState:
    """This state, as it comes to another peer without rounding."""
    return DonatedState("donor", state.step, state.era, tuple(state.voters), JoinedTensors.join(list(state.tensors)))


def test_a_copy_is_of_one_moment() -> None:
    """A step is seen as a whole, and later changes do not show; the matrix's moment is rounded on its way."""
    state: Any = state_after(2, era=2)
    before: list[torch.Tensor] = []

    @contextmanager
    def while_others_step() -> Iterator[None]:
        """Let the trainer step just before the lock is taken, and just after it is released."""
        step_on(state, ones_for(state), ["Qm3"])
        before.extend(tensor.clone() for tensor in state.tensors)
        yield
        step_on(state, ones_for(state), VOTERS)

    state.lock = while_others_step()
    copy: Any = state.copy()
    copies, values = copy.tensors.separate(), copy.tensors.values
    assert (copy.step, copy.era, copy.voters) == (3, 2, ("Qm3",))
    assert all(map(torch.equal, copies, before))
    assert not all(map(torch.equal, copies, state.tensors))
    assert values.is_shared()  # with the node
    assert not values.requires_grad
    parameters, moments = [TensorRole.PARAMETER] * 2, moment_roles(state.optimizer)
    assert copy.roles == parameters + moments
    assert TensorRole.OPTIMIZER in moments


def test_a_state_is_adopted_with_step_era_voters_and_learning_rate() -> None:
    """Everything that the next step depends on; the model's own parameters change."""
    state, other = state_after(1), state_after(5, era=3)
    state.voters = ["Qm3"]
    donated = donated_by(other)
    assert state.all_shapes == donated.tensors.shapes
    assert state.sketch_of_other(donated) == other.sketch() != state.sketch()
    parameters = state.parameters
    state.adopt(donated)
    assert (state.step, state.era, state.scheduled_rates) == (5, 3, other.scheduled_rates)
    assert set(state.voters) == VOTERS
    assert all(map(torch.equal, state.tensors, other.tensors))
    assert all(map(torch.Tensor.is_set_to, state.parameters, parameters))
    for each in (state, other):
        step_on(each, ones_for(each), ())
    assert state.sketch() == other.sketch()


def test_a_step_is_taken_on_the_average_alone() -> None:
    """Whatever gradients of its own this peer had; the average must fit the model, and who averaged is noted."""
    state, other = state_after(3), state_after(1)
    other.adopt(donated_by(state))
    for parameter in state.parameters:
        parameter.grad = torch.full_like(parameter, 5.0)
    for each in (state, other):
        step_on(each, ones_for(each), ["Qm3"])
    assert (state.step, state.voters) == (4, ["Qm3"])
    assert all(map(torch.equal, state.tensors, other.tensors))
    with pytest.raises(ValueError, match="shorter"):
        step_on(state, ones_for(state)[:1], VOTERS)


def test_rates_are_scaled_from_the_schedules() -> None:
    """Not from those in force before, which had a scale of their own."""
    state = state_after(3)
    for scale in (0.5, 0.5, 2.0, 1.0):
        state.scale_rates(scale)
        rates = [group["lr"] for group in state.optimizer.param_groups]
        assert rates == pytest.approx([scale * rate for rate in state.scheduled_rates])


def test_forgotten_moments_are_those_of_a_new_state() -> None:
    """The parameters and the step stay."""
    state = state_after(3)
    parameters = [parameter.detach().clone() for parameter in state.parameters]
    state.forget_moments()
    assert all(map(torch.equal, optimizer_tensors(state.optimizer), optimizer_tensors(state_after(0).optimizer)))
    assert all(map(torch.equal, state.parameters, parameters))
    assert state.step == 3


def test_the_learning_rate_follows_the_step_even_backwards() -> None:
    """As after a return to a checkpoint, of which nobody knows who took the step."""
    state = state_after(2)
    assert (state_after(0).voters, state.voters) == ((), VOTERS)
    for step in (17, 3, 1, 0, 24, 25):
        state.set_step(step)
        rates = [CONFIG.optimizer.learning_rate * rate_in_phase(step, CONFIG)] * len(state.optimizer.param_groups)
        assert (state.step, state.scheduled_rates, state.voters) == (step, pytest.approx(rates), ())


SHAPES = [(300, 128), (2, 128), (128,), (96, 64), (64, 96), (96,)]


RULES: dict[str, Callable[[list[ParameterGroup]], SharedOptimizer]] = {
    "lamb": lambda groups: Lamb(groups, lr=1.76e-3, max_grad_norm=1.0),
    "adamw": lambda groups: AdamW(groups, lr=1e-3, max_grad_norm=1.0),
    "stable_adamw": lambda groups: StableAdamW(groups, lr=1e-3, betas=(0.9, 0.98), max_grad_norm=1.0),
    "muon": lambda groups: Muon(groups, lr=1e-3, betas=(0.9, 0.98), max_grad_norm=1.0),
}

BYTES = {"lamb": (8.0, 8.2), "adamw": (9.9, 10.2), "stable_adamw": (9.9, 10.2), "muon": (9.4, 9.7)}


class Trained:
    """A peer's state: parameters with their optimizer's moments, which change by the averages that all peers take."""

    def __init__(self, seed: int, rule: str) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.parameters = [torch.nn.Parameter(0.02 * self.normal(shape)) for shape in SHAPES]
        self.optimizer = RULES[rule](
            [
                {"params": self.parameters[3:5], "weight_decay": 0.01, "is_hidden": rule == "muon"},
                {"params": self.parameters[:2], "weight_decay": 0.01},
                {"params": [each for each in self.parameters if each.ndim == 1], "weight_decay": 0.0},
            ]
        )
        self.sizes = [1e-3 * (1.5 * self.normal((shape[0], *[1] * (len(shape) - 1)))).exp() for shape in SHAPES]
        self.steady = [0.3 * self.normal(shape) for shape in SHAPES]

    def normal(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator)

    def average(self) -> list[torch.Tensor]:
        """The next average as it travels: mostly noise, of rows whose sizes differ, a few of the embedding's only."""
        averages = [(self.steady[n] + self.normal(shape)) * self.sizes[n] for n, shape in enumerate(SHAPES)]
        averages[0] *= torch.rand(SHAPES[0][0], 1, generator=self.generator) < 0.3
        return [average.half().float() for average in averages]

    def take(self, average: list[torch.Tensor]) -> None:
        for parameter, gradient in zip(self.parameters, average, strict=True):
            parameter.grad = gradient
        self.optimizer.step()

    @property
    def ordered(self) -> list[torch.Tensor]:
        return [each.detach() for group in self.optimizer.param_groups for each in group["params"]]

    @property
    def sketch(self) -> tuple[float, ...]:
        return sketch_of(self.ordered, moments_of(self.optimizer))

    def wire_bytes_to(self, joiner: Trained) -> int:
        """Give the state to a joiner as donors do; return how many bytes of values that were."""
        moved = 0
        moments = zip(
            moment_roles(self.optimizer),
            optimizer_tensors(self.optimizer),
            optimizer_tensors(joiner.optimizer),
            strict=True,
        )
        parameters = zip(self.ordered, joiner.ordered, strict=True)
        for role, mine, theirs in (*((TensorRole.PARAMETER, *both) for both in parameters), *moments):
            wire = STATE_CODE.compress(mine, CompressionInfo.from_tensor(mine, role=role))
            moved += len(wire.buffer)
            theirs.copy_(decode(wire, ROOTS))
        return moved


@pytest.mark.parametrize("rule", RULES)
def test_a_joiner_whose_moments_were_rounded_stays_with_its_donor(rule: str) -> None:
    """For hundreds of steps of the same averages, after a state of so many bytes a parameter."""
    donor, joiner = Trained(0, rule), Trained(1, rule)
    for _ in range(100):
        donor.take(donor.average())
    moved = donor.wire_bytes_to(joiner)
    values = sum(each.numel() for each in donor.parameters)
    assert BYTES[rule][0] * values < moved < BYTES[rule][1] * values
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(donor.ordered, joiner.ordered, strict=True))
    for _ in range(6):
        assert not drifted(joiner.sketch, donor.sketch)
        for _ in range(50):
            average = donor.average()
            donor.take(average)
            joiner.take(average)
    apart = torch.cat([(a - b).flatten() for a, b in zip(donor.ordered, joiner.ordered, strict=True)])
    assert apart.norm() < DRIFT_TOLERANCE / 2 * torch.cat([each.flatten() for each in donor.ordered]).norm()
    donor.take(donor.average())
    assert drifted(joiner.sketch, donor.sketch)
