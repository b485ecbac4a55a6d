"""LAMB against the paper's formula, its groups and its schedule."""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from peer.config.run import RunConfig
from peer.config.training import Schedule
from peer.models.optimizers import (
    Lamb,
    build_optimizer,
    build_scheduler,
    gradient_norm,
    learning_rate_factor,
    parameter_groups,
    rate_in_phase,
)
from tests.support.tiny_albert import random_batch, tiny_config, tiny_model, transformers_outputs
from tests.support.tiny_families import NAMES, family_config, family_model

Array = NDArray[np.float64]
LR, BETAS, EPS, DECAY, CLAMP, MAX_NORM = 0.1, (0.9, 0.999), 1e-6, 0.01, 3.0, 1.0


@dataclass
class PaperLamb:
    """Algorithm 2 of You et al. 2020 with the recipe's options, one array at a time, in float64."""

    weights: list[Array]
    decays: list[float]
    means: list[Array] = field(init=False)
    squares: list[Array] = field(init=False)
    time: int = 0

    def __post_init__(self) -> None:
        self.means = [np.zeros_like(weight) for weight in self.weights]
        self.squares = [np.zeros_like(weight) for weight in self.weights]

    def step(self, gradients: list[Array]) -> None:
        self.time += 1
        norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients))
        clip = min(1.0, MAX_NORM / norm)
        correction = math.sqrt(1 - BETAS[1] ** self.time) / (1 - BETAS[0] ** self.time)
        for index, raw in enumerate(gradients):
            gradient = raw * clip
            self.means[index] = BETAS[0] * self.means[index] + (1 - BETAS[0]) * gradient
            self.squares[index] = BETAS[1] * self.squares[index] + (1 - BETAS[1]) * gradient**2
            update = self.means[index] / (np.sqrt(self.squares[index]) + EPS) + self.decays[index] * self.weights[index]
            weight_norm = min(float(np.linalg.norm(self.weights[index])), CLAMP)
            update_norm = float(np.linalg.norm(update))
            ratio = weight_norm / update_norm if weight_norm > 0 and update_norm > 0 else 1.0
            self.weights[index] = self.weights[index] - LR * correction * ratio * update


@pytest.mark.parametrize("gradient_scale", [0.01, 10.0])
def test_ten_steps_follow_the_paper(gradient_scale: float) -> None:
    """Ten steps give the formula's weights to 1e-6: clipped or not, clamped, decayed, from zero weights too."""
    rng = np.random.default_rng(0)
    start = [rng.normal(size=(6, 5)), 10 * rng.normal(size=(8, 3)), np.zeros(7), rng.normal(size=4)]
    decays = [DECAY, DECAY, 0.0, 0.0]
    paper = PaperLamb([array.copy() for array in start], decays)
    parameters = [torch.nn.Parameter(torch.tensor(array)) for array in start]
    groups = [{"params": parameters[:2], "weight_decay": DECAY}, {"params": parameters[2:], "weight_decay": 0.0}]
    ours = Lamb(groups, lr=LR, betas=BETAS, eps=EPS, clamp_value=CLAMP, max_grad_norm=MAX_NORM)
    for _ in range(10):
        gradients = [gradient_scale * rng.normal(size=array.shape) for array in start]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = torch.tensor(gradient)
        ours.step()
        paper.step(gradients)
    for parameter, expected in zip(parameters, paper.weights, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-6, atol=1e-9)


def test_single_precision_follows_the_paper_too() -> None:
    """In float32, as used in training, ten steps stay within 1e-5 of the formula."""
    rng = np.random.default_rng(1)
    start = rng.normal(size=(20, 10))
    paper = PaperLamb([start.astype(np.float32).astype(np.float64)], [DECAY])
    parameter = torch.nn.Parameter(torch.tensor(start, dtype=torch.float32))
    groups = [{"params": [parameter], "weight_decay": DECAY}]
    ours = Lamb(groups, lr=LR, betas=BETAS, eps=EPS, clamp_value=CLAMP, max_grad_norm=MAX_NORM)
    for _ in range(10):
        gradient = rng.normal(size=start.shape).astype(np.float32)
        parameter.grad = torch.tensor(gradient)
        ours.step()
        paper.step([gradient.astype(np.float64)])
    np.testing.assert_allclose(parameter.detach().numpy(), paper.weights[0], rtol=1e-5, atol=1e-5)


def test_state_is_complete_before_the_first_step() -> None:
    """Everything that hivemind must send exists from construction on, as float32 tensors of zeros."""
    parameter = torch.nn.Parameter(torch.ones(3))
    state = Lamb([parameter], lr=0.1).state[parameter]
    assert {name: tuple(value.shape) for name, value in state.items()} == {
        "step": (),
        "exp_avg": (3,),
        "exp_avg_sq": (3,),
    }
    assert all(value.dtype == torch.float32 and not value.requires_grad and not value.any() for value in state.values())


def test_state_survives_a_roundtrip() -> None:
    """An optimizer loaded from another's state takes the same next step."""
    gradients = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    parameters = [torch.nn.Parameter(torch.ones(4)) for _ in range(2)]
    optimizers = [Lamb([parameter], lr=0.1) for parameter in parameters]
    for gradient in gradients[:2]:
        parameters[0].grad = gradient
        optimizers[0].step()
    parameters[1].data.copy_(parameters[0].data)
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))  # torch's shares the tensors
    for parameter, optimizer in zip(parameters, optimizers, strict=True):
        parameter.grad = gradients[2]
        optimizer.step()
    assert torch.equal(*parameters)
    assert optimizers[1].state[parameters[1]]["step"] == 3


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_poisoned_gradient_changes_nothing(bad: float, caplog: pytest.LogCaptureFixture) -> None:
    """A gradient that is not finite costs one step, not the run: weights and state stay as they are."""
    healthy, poisoned = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = Lamb([healthy, poisoned], lr=0.1)
    healthy.grad, poisoned.grad = torch.ones(2), torch.tensor([1.0, bad])
    optimizer.step()
    assert torch.equal(healthy, torch.ones(2))
    assert optimizer.state[healthy]["step"] == 0
    assert not optimizer.state[healthy]["exp_avg"].any()
    assert "not finite" in caplog.text


def test_clipping_leaves_the_gradient_itself_alone() -> None:
    """The averaged gradient may lie in shared memory: the step reads it and writes nothing back."""
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.tensor([30.0, 40.0])
    Lamb([parameter], lr=0.1, max_grad_norm=1.0).step()
    assert parameter.grad.tolist() == [30.0, 40.0]


def test_parameters_without_gradient_stay() -> None:
    """A parameter that took no part in the loss is neither decayed nor counted."""
    used, unused = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = Lamb([used, unused], lr=0.1, weight_decay=0.1)
    used.grad = torch.ones(2)
    optimizer.step()
    assert torch.equal(unused, torch.ones(2))
    assert optimizer.state[unused]["step"] == 0
    assert (used < 1).all()


def test_closure_gives_the_loss() -> None:
    """As with torch's optimizers, a closure is run with gradients and its loss returned."""
    parameter = torch.nn.Parameter(torch.ones(2))

    def closure() -> float:
        loss = parameter.sum()
        loss.backward()
        return loss.item()

    assert Lamb([parameter], lr=0.1).step(closure) == 2.0
    assert (parameter < 1).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lr", -1.0),
        ("lr", math.nan),
        ("betas", (1.0, 0.9)),
        ("betas", (0.9, -0.1)),
        ("eps", 0.0),
        ("weight_decay", -0.1),
        ("clamp_value", 0.0),
        ("max_grad_norm", 0.0),
    ],
)
def test_impossible_hyperparameters_are_refused(name: str, value: Any) -> None:
    """The error names the hyperparameter."""
    options = {"lr": 0.1} | {name: value}
    with pytest.raises(ValueError, match=f"`{name}`"):
        Lamb([torch.nn.Parameter(torch.ones(1))], **options)


def test_gradient_norm_is_global_and_shows_what_is_not_finite() -> None:
    """One number over all tensors; a single NaN or infinity anywhere makes it not finite."""
    assert gradient_norm([torch.tensor([3.0]), torch.tensor([[4.0]])]) == 5.0
    assert gradient_norm([]) == 0.0
    assert not math.isfinite(gradient_norm([torch.ones(5), torch.tensor([1.0, math.nan])]))
    assert not math.isfinite(gradient_norm([torch.ones(5), torch.tensor([-math.inf])]))


def test_only_matrices_are_decayed() -> None:
    """Biases and LayerNorms are in the group without weight decay; every parameter is in exactly one group."""
    config = tiny_config()
    model = tiny_model(config)
    decayed, plain = parameter_groups(model, config)
    assert (decayed["weight_decay"], plain["weight_decay"]) == (config.optimizer.weight_decay, 0.0)
    norms = {id(p) for module in model.modules() if isinstance(module, torch.nn.LayerNorm) for p in module.parameters()}
    biases = {id(parameter) for name, parameter in model.named_parameters() if name.endswith("bias")}
    assert {id(parameter) for parameter in plain["params"]} == norms | biases
    everything = [id(parameter) for group in (decayed, plain) for parameter in group["params"]]
    assert sorted(everything) == sorted(id(parameter) for parameter in model.parameters())


def test_frozen_parameters_are_left_out() -> None:
    """What the objective does not train is not in the optimizer, where weight decay would wear it away."""
    config = RunConfig.from_mapping({**tiny_config().model_dump(), "objective": {"name": "mlm"}})
    model = tiny_model(config)
    grouped = {id(parameter) for group in parameter_groups(model, config) for parameter in group["params"]}
    assert grouped == {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    assert id(model.albert.pooler.weight) not in grouped


def test_recipe_comes_from_the_run_file() -> None:
    """Every option of the run's optimizer section arrives in the optimizer."""
    options = {
        "learning_rate": 0.5,
        "betas": [0.8, 0.99],
        "epsilon": 1e-5,
        "weight_decay": 0.2,
        "clamp_value": 7.0,
        "max_grad_norm": 2.0,
    }
    config = RunConfig.from_mapping({**tiny_config().model_dump(), "optimizer": options})
    optimizer = build_optimizer(config, parameter_groups(tiny_model(config), config))
    group = optimizer.param_groups[0]
    assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (0.5, (0.8, 0.99), 1e-5, 0.2)
    assert (optimizer.clamp_value, optimizer.max_grad_norm) == (7.0, 2.0)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_decayed_in_every_family(name: str) -> None:
    """Matrices and tables are decayed, vectors (biases, layer norms) are not, and frozen parameters are in no group."""
    config = family_config(name)
    model = family_model(config)
    decayed, others = (group["params"] for group in parameter_groups(model, config))
    names = {id(parameter): key for key, parameter in model.named_parameters()}
    assert not [names[id(p)] for p in decayed if "bias" in names[id(p)] or "norm" in names[id(p)].lower()]
    assert all("bias" in names[id(p)] or "norm" in names[id(p)].lower() or "ln_" in names[id(p)] for p in others)
    assert {id(p) for p in (*decayed, *others)} == {id(p) for p in model.parameters() if p.requires_grad}


@pytest.mark.parametrize(
    ("step", "factor"), [(0, 0.25), (1, 0.5), (3, 1.0), (4, 1.0), (5, 0.9), (13, 0.1), (14, 0.0), (100, 0.0)]
)
def test_warms_up_then_decays_to_zero(step: int, factor: float) -> None:
    """Four warm-up steps, none of them wasted on a rate of zero, then a line down to zero at the last step."""
    assert learning_rate_factor(step, Schedule(warmup_steps=4, total_steps=14)) == pytest.approx(factor)


def test_no_warmup_starts_at_the_peak() -> None:
    """Without warm-up the first step has the full rate."""
    assert learning_rate_factor(0, Schedule(warmup_steps=0, total_steps=10)) == 1.0


@pytest.mark.parametrize(
    ("step", "rate"), [(0, 0.25), (3, 1.0), (9, 0.5), (10, 0.1), (11, 0.2), (12, 0.2), (16, 0.1), (20, 0.0), (30, 0.0)]
)
def test_a_phase_warms_up_to_its_own_peak(step: int, rate: float) -> None:
    """A phase with a fifth of the peak and two warm-up steps starts low at its step, then decays from its peak."""
    phase = {"from_step": 10, "learning_rate": 0.2, "warmup_steps": 2, "total_steps": 20}
    schedule = {"warmup_steps": 4, "total_steps": 14}
    config = RunConfig.from_mapping({"optimizer": {"learning_rate": 1.0}, "schedule": schedule, "phases": [phase]})
    assert rate_in_phase(step, config) == pytest.approx(rate)


def test_a_phase_without_a_schedule_goes_on_in_the_old_one() -> None:
    """A phase that only names a peak scales the schedule that is under way."""
    schedule = {"warmup_steps": 0, "total_steps": 10}
    phases = [{"from_step": 4, "sequence_length": 256}, {"from_step": 6, "learning_rate": 0.5}]
    config = RunConfig.from_mapping({"optimizer": {"learning_rate": 1.0}, "schedule": schedule, "phases": phases})
    assert [rate_in_phase(step, config) for step in (3, 4, 5, 6, 8)] == pytest.approx([0.7, 0.6, 0.5, 0.2, 0.1])


def test_scheduler_sets_the_rate_of_each_global_step() -> None:
    """Stepped along with the optimizer, the scheduler gives each step its share of the peak rate."""
    config = RunConfig.from_mapping({**tiny_config().model_dump(), "schedule": {"warmup_steps": 2, "total_steps": 6}})
    optimizer = build_optimizer(config, parameter_groups(tiny_model(config), config))
    scheduler = build_scheduler(config, optimizer)
    rates = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            rates.append(optimizer.param_groups[1]["lr"] / config.optimizer.learning_rate)
            optimizer.step()
            scheduler.step()
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.75])


def test_reset_statistics_are_those_of_a_new_optimizer() -> None:
    """After a reset the next step is bit for bit the one that a newly built optimizer takes."""
    config = tiny_config()
    used, new = tiny_model(config), tiny_model(config)
    optimizer = build_optimizer(config, parameter_groups(used, config))
    for seed in range(3):
        optimizer.zero_grad()
        transformers_outputs(used, random_batch(seed)).loss.backward()
        optimizer.step()
    new.load_state_dict(used.state_dict())
    optimizer.reset_statistics()
    optimizers = [optimizer, build_optimizer(config, parameter_groups(new, config))]
    for model, each in zip((used, new), optimizers, strict=True):
        each.zero_grad()
        transformers_outputs(model, random_batch(9)).loss.backward()
        each.step()
    for left, right in zip(used.parameters(), new.parameters(), strict=True):
        assert torch.equal(left, right)
    assert all(int(state["step"]) == 1 for state in optimizer.state.values())


def test_a_few_steps_lower_the_loss() -> None:
    """The recipe learns: on one batch, ten steps take the loss down by a fifth."""
    config = RunConfig.from_mapping(
        {
            **tiny_config().model_dump(),
            "optimizer": {"learning_rate": 0.05},
            "schedule": {"warmup_steps": 0, "total_steps": 1000},
        }
    )
    model, batch = tiny_model(config), random_batch(1)
    optimizer = build_optimizer(config, parameter_groups(model, config))
    losses = []
    for _ in range(11):
        optimizer.zero_grad()
        loss = transformers_outputs(model, batch).loss
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    assert losses[-1] < 0.8 * losses[0]
