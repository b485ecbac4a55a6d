"""Each rule against its paper's formula, written here in float64; and the state that peers share."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from peer.models.optimizers import (
    AdamW,
    Lamb,
    Muon,
    OuterNesterov,
    ParameterGroup,
    SharedOptimizer,
    StableAdamW,
    gradient_norm,
    orthogonalized,
)

Array = NDArray[np.float64]
LR, BETAS, EPS, DECAY, CLAMP, MAX_NORM = 0.1, (0.9, 0.999), 1e-6, 0.01, 3.0, 1.0


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


def clipped(gradients: list[Array]) -> list[Array]:
    """The gradients with their global norm at most `MAX_NORM`."""
    norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients))
    return [gradient * min(1.0, MAX_NORM / norm) for gradient in gradients]


@dataclass
class PaperAdamW:
    """Algorithm 2 of Loshchilov & Hutter 2019: decoupled weight decay, both moments corrected for their beginning."""

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
        for index, gradient in enumerate(clipped(gradients)):
            self.weights[index] = self.moved(index, gradient)

    def moved(self, index: int, gradient: Array) -> Array:
        self.means[index] = BETAS[0] * self.means[index] + (1 - BETAS[0]) * gradient
        self.squares[index] = BETAS[1] * self.squares[index] + (1 - BETAS[1]) * gradient**2
        mean = self.means[index] / (1 - BETAS[0] ** self.time)
        square = self.squares[index] / (1 - BETAS[1] ** self.time)
        weight = self.weights[index]
        return weight - LR * (mean / (np.sqrt(square) + EPS) + self.decays[index] * weight)


class PaperLamb(PaperAdamW):
    """Algorithm 2 of You et al. 2020 with the recipe's options, one array at a time."""

    def moved(self, index: int, gradient: Array) -> Array:
        mean = self.means[index] = BETAS[0] * self.means[index] + (1 - BETAS[0]) * gradient
        square = self.squares[index] = BETAS[1] * self.squares[index] + (1 - BETAS[1]) * gradient**2
        correction = math.sqrt(1 - BETAS[1] ** self.time) / (1 - BETAS[0] ** self.time)
        weight = self.weights[index]
        update = mean / (np.sqrt(square) + EPS) + self.decays[index] * weight
        lengths = min(float(np.linalg.norm(weight)), CLAMP), float(np.linalg.norm(update))
        return weight - LR * correction * (lengths[0] / lengths[1] if all(lengths) else 1.0) * update


class PaperStableAdamW(PaperAdamW):
    """Algorithm 2 of Wortsman et al. 2023, tensor by tensor."""

    def moved(self, index: int, gradient: Array) -> Array:
        now = self.time
        beta1 = BETAS[0] * (1 - BETAS[0] ** (now - 1)) / (1 - BETAS[0] ** now)
        beta2 = BETAS[1] * (1 - BETAS[1] ** (now - 1)) / (1 - BETAS[1] ** now)
        v = self.means[index] = beta1 * self.means[index] + (1 - beta1) * gradient
        u = self.squares[index] = beta2 * self.squares[index] + (1 - beta2) * gradient**2
        rms = np.sqrt(np.mean(gradient**2 / np.maximum(u, EPS**2)))
        eta = LR / max(1.0, float(rms))
        weight = self.weights[index]
        return weight - eta * self.decays[index] * weight - eta * v / (np.sqrt(u) + EPS)


class PaperMuon(PaperAdamW):
    """Jordan et al. 2024 for matrices, with the length of an AdamW update (Liu et al. 2025); AdamW for vectors."""

    def moved(self, index: int, gradient: Array) -> Array:
        weight = self.weights[index]
        if weight.ndim != 2:
            return super().moved(index, gradient)
        momentum = self.means[index] = 0.95 * self.means[index] + 0.05 * gradient
        x = 0.05 * gradient + 0.95 * momentum
        x = x / np.linalg.norm(x)
        for _ in range(5):
            x = 3.4445 * x - 4.7750 * x @ x.T @ x + 2.0315 * x @ x.T @ x @ x.T @ x
        rows, columns = weight.shape
        return weight - LR * (0.2 * math.sqrt(max(rows, columns)) * x + self.decays[index] * weight)


COMMON = {"lr": LR, "betas": BETAS, "eps": EPS, "max_grad_norm": MAX_NORM}
Rule = Callable[[list[ParameterGroup]], SharedOptimizer]


def muon(groups: list[ParameterGroup]) -> SharedOptimizer:
    return Muon([groups[0] | {"is_hidden": True}, *groups[1:]], **COMMON)


OF_PAPERS: dict[str, tuple[Rule, type[PaperAdamW]]] = {
    "lamb": (partial(Lamb, clamp_value=CLAMP, **COMMON), PaperLamb),
    "adamw": (partial(AdamW, **COMMON), PaperAdamW),
    "stable adamw": (partial(StableAdamW, **COMMON), PaperStableAdamW),
    "muon": (muon, PaperMuon),
}
EACH_RULE = pytest.mark.parametrize(
    "rule", [*(rule for rule, _ in OF_PAPERS.values()), OuterNesterov], ids=[*OF_PAPERS, "outer nesterov"]
)


def groups_of(parameters: list[torch.nn.Parameter]) -> list[ParameterGroup]:
    """Matrices, which are decayed, and vectors."""
    return [
        {"params": [each for each in parameters if each.ndim == 2], "weight_decay": DECAY},
        {"params": [each for each in parameters if each.ndim != 2], "weight_decay": 0.0},
    ]


@pytest.mark.parametrize("gradient_scale", [0.01, 10.0])
@pytest.mark.parametrize(("rule", "paper"), OF_PAPERS.values(), ids=OF_PAPERS)
def test_twenty_steps_follow_the_papers(rule: Rule, paper: type[PaperAdamW], gradient_scale: float) -> None:
    """Wide, tall and square matrices, short and zero vectors, clipped gradients or not, and sudden large gradients."""
    rng = np.random.default_rng(0)
    start = [rng.normal(size=shape) for shape in ((6, 15), (12, 4), (5, 5), 3)] + [np.zeros(7)]
    formula = paper([array.copy() for array in start], [DECAY, DECAY, DECAY, 0.0, 0.0])
    parameters = [torch.nn.Parameter(torch.tensor(array)) for array in start]
    optimizer = rule(groups_of(parameters))
    for step in range(20):
        gradients = [gradient_scale * rng.normal(size=array.shape) for array in start]
        gradients[1] *= 30.0 if step == 12 else 1.0
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = torch.tensor(gradient)
        optimizer.step()
        formula.step(gradients)
    for parameter, expected in zip(parameters, formula.weights, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("shape", [(40, 40), (80, 20), (20, 80)])
def test_an_orthogonalized_matrix_has_singular_values_near_one(shape: tuple[int, int]) -> None:
    """The directions stay, and all lengths come close to 1; a zero matrix stays zero."""
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    found = orthogonalized(matrix)
    values = torch.diagonal(left.T @ found @ right.T)
    assert 0.3 < values.min() <= values.max() < 1.3
    torch.testing.assert_close(left @ torch.diag(values) @ right, found, rtol=0, atol=1e-4)
    assert not orthogonalized(torch.zeros(shape)).any()


def test_muons_own_rule_is_for_matrices() -> None:
    """A tensor of another shape in its group is refused by name."""
    with pytest.raises(ValueError, match=r"not for a tensor of shape \(3,\)"):
        muon([{"params": [torch.nn.Parameter(torch.ones(3))], "weight_decay": 0.0}])


def test_muon_keeps_one_statistic_of_a_hidden_matrix() -> None:
    """A hidden matrix has its momentum, every other parameter AdamW's state."""
    matrix, vector = torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.ones(4))
    optimizer = muon(groups_of([matrix, vector]))
    assert {name: tuple(value.shape) for name, value in optimizer.state[matrix].items()} == {"momentum": (2, 3)}
    assert set(optimizer.state[vector]) == {"step", "exp_avg", "exp_avg_sq"}


def small_parameters() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(256, 300), (300, 64), (300,)]  # large enough for several threads
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def take_steps(parameters: list[torch.nn.Parameter], optimizer: SharedOptimizer, seeds: range) -> None:
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        for parameter in parameters:
            parameter.grad = 0.01 * torch.randn(parameter.shape, generator=generator)
        optimizer.step()


def state_of(parameters: list[torch.nn.Parameter], optimizer: SharedOptimizer) -> list[torch.Tensor]:
    """All that peers share."""
    return [*parameters, *(value for state in optimizer.state.values() for value in state.values())]


@EACH_RULE
def test_the_same_averages_give_the_same_bits(rule: Rule) -> None:
    """Two peers that take the same steps hold the same state, bit by bit, whatever else their processes computed."""
    peers = []
    for noise in range(2):
        parameters = small_parameters()
        optimizer = rule(groups_of(parameters))
        torch.randn(noise)  # another global random state
        take_steps(parameters, optimizer, range(3))
        peers.append(state_of(parameters, optimizer))
    assert all(torch.equal(one, other) for one, other in zip(*peers, strict=True))


@EACH_RULE
def test_a_reset_makes_a_new_optimizer_of_it(rule: Rule) -> None:
    """After a reset the next step is, bit for bit, the one that a newly built optimizer takes."""
    parameters = small_parameters()
    optimizer = rule(groups_of(parameters))
    take_steps(parameters, optimizer, range(3))
    optimizer.reset_statistics()
    fresh = [torch.nn.Parameter(parameter.detach().clone()) for parameter in parameters]
    take_steps(parameters, optimizer, range(9, 10))
    take_steps(fresh, rule(groups_of(fresh)), range(9, 10))
    assert all(torch.equal(one, other) for one, other in zip(parameters, fresh, strict=True))


@EACH_RULE
def test_every_rule_skips_a_gradient_that_is_not_finite(rule: Rule, caplog: pytest.LogCaptureFixture) -> None:
    """Neither parameters nor state change, and the gradient that is read is not written."""
    parameters = small_parameters()
    optimizer = rule(groups_of(parameters))
    take_steps(parameters, optimizer, range(1))
    before = copy.deepcopy(state_of(parameters, optimizer))
    for parameter in parameters:
        parameter.grad = torch.full(parameter.shape, 7.0)
    assert parameters[1].grad is not None
    parameters[1].grad[0, 0] = math.nan
    optimizer.step()
    assert all(map(torch.equal, before, state_of(parameters, optimizer)))
    assert "not finite" in caplog.text


@EACH_RULE
def test_every_rule_leaves_the_gradient_alone(rule: Rule) -> None:
    """The averaged gradient may lie in shared memory: clipping works on a copy."""
    parameters = small_parameters()
    for parameter in parameters:
        parameter.grad = torch.full(parameter.shape, 30.0)
    rule(groups_of(parameters)).step()
    assert all(parameter.grad is not None and bool((parameter.grad == 30.0).all()) for parameter in parameters)
