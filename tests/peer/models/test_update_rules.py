"""Each rule against its paper's formula, written here in float64; and the state that peers share."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from peer.models.update_rules import (
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


def adamw(groups: list[ParameterGroup]) -> SharedOptimizer:
    return AdamW(groups, lr=LR, betas=BETAS, eps=EPS, max_grad_norm=MAX_NORM)


def stable_adamw(groups: list[ParameterGroup]) -> SharedOptimizer:
    return StableAdamW(groups, lr=LR, betas=BETAS, eps=EPS, max_grad_norm=MAX_NORM)


def muon(groups: list[ParameterGroup]) -> SharedOptimizer:
    return Muon([groups[0] | {"is_hidden": True}, *groups[1:]], lr=LR, betas=BETAS, eps=EPS, max_grad_norm=MAX_NORM)


def lamb(groups: list[ParameterGroup]) -> SharedOptimizer:
    return Lamb(groups, lr=LR, betas=BETAS, eps=EPS, clamp_value=CLAMP, max_grad_norm=MAX_NORM)


def outer_nesterov(groups: list[ParameterGroup]) -> SharedOptimizer:
    return OuterNesterov(groups)


RULES: list[Callable[[list[ParameterGroup]], SharedOptimizer]] = [lamb, adamw, stable_adamw, muon, outer_nesterov]


def groups_of(parameters: list[torch.nn.Parameter]) -> list[ParameterGroup]:
    """Matrices, which are decayed, and vectors."""
    return [
        {"params": [each for each in parameters if each.ndim == 2], "weight_decay": DECAY},
        {"params": [each for each in parameters if each.ndim != 2], "weight_decay": 0.0},
    ]


@pytest.mark.parametrize("gradient_scale", [0.01, 10.0])
@pytest.mark.parametrize(("rule", "paper"), [(adamw, PaperAdamW), (stable_adamw, PaperStableAdamW), (muon, PaperMuon)])
def test_twenty_steps_follow_the_papers(
    rule: Callable[[list[ParameterGroup]], SharedOptimizer], paper: type[PaperAdamW], gradient_scale: float
) -> None:
    """Wide, tall and square matrices, vectors, clipped gradients or not, and one tensor's sudden large gradients."""
    rng = np.random.default_rng(0)
    start = [rng.normal(size=(6, 15)), rng.normal(size=(12, 4)), rng.normal(size=(5, 5)), np.zeros(7)]
    formula = paper([array.copy() for array in start], [DECAY, DECAY, DECAY, 0.0])
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


def test_a_sudden_gradient_moves_stable_adamw_less() -> None:
    """Update clipping: after a gradient that is a hundred times as large as those before, AdamW goes further."""
    moved = []
    for rule in (AdamW, StableAdamW):
        parameter = torch.nn.Parameter(torch.zeros(50))
        optimizer = rule([parameter], lr=0.1, betas=(0.9, 0.999))
        for size in [*[0.01] * 20, 1.0]:
            before = parameter.detach().clone()
            parameter.grad = torch.full((50,), size)
            optimizer.step()
        moved.append(float((parameter.detach() - before).norm()))
    assert moved[1] < moved[0] / 4


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


def test_muon_goes_where_pytorchs_goes() -> None:
    """torch.optim.Muon, which computes in bfloat16, takes nearly the same steps."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(24, 60, generator=generator)
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    groups: list[ParameterGroup] = [{"params": [ours], "weight_decay": 0.1, "is_hidden": True}]
    optimizers = [
        Muon(groups, lr=0.02),
        torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
    ]
    for _ in range(10):
        ours.grad = torch.randn(start.shape, generator=generator)
        theirs.grad = ours.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    apart, moved = (ours - theirs).norm(), (theirs - start).norm()
    assert apart < 0.05 * moved


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


@pytest.mark.parametrize("rule", RULES)
def test_the_same_averages_give_the_same_bits(rule: Callable[[list[ParameterGroup]], SharedOptimizer]) -> None:
    """Two peers that take the same steps hold the same state, bit by bit, whatever else their processes computed."""
    peers = []
    for noise in range(2):
        parameters = small_parameters()
        optimizer = rule(groups_of(parameters))
        torch.randn(noise)  # another global random state
        take_steps(parameters, optimizer, range(3))
        peers.append([*parameters, *(value for state in optimizer.state.values() for value in state.values())])
    assert all(torch.equal(one, other) for one, other in zip(*peers, strict=True))


@pytest.mark.parametrize("rule", RULES)
def test_a_reset_makes_a_new_optimizer_of_it(rule: Callable[[list[ParameterGroup]], SharedOptimizer]) -> None:
    """After a reset the next step is, bit for bit, the one that a newly built optimizer takes."""
    parameters = small_parameters()
    optimizer = rule(groups_of(parameters))
    take_steps(parameters, optimizer, range(3))
    optimizer.reset_statistics()
    fresh = [torch.nn.Parameter(parameter.detach().clone()) for parameter in parameters]
    take_steps(parameters, optimizer, range(9, 10))
    take_steps(fresh, rule(groups_of(fresh)), range(9, 10))
    assert all(torch.equal(one, other) for one, other in zip(parameters, fresh, strict=True))


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_skips_a_gradient_that_is_not_finite(
    rule: Callable[[list[ParameterGroup]], SharedOptimizer], caplog: pytest.LogCaptureFixture
) -> None:
    """Neither parameters nor state change, and the gradient that is read is not written."""
    parameters = small_parameters()
    optimizer = rule(groups_of(parameters))
    take_steps(parameters, optimizer, range(1))
    before = copy.deepcopy([*parameters, *(v for state in optimizer.state.values() for v in state.values())])
    for parameter in parameters:
        parameter.grad = torch.full(parameter.shape, 7.0)
    assert parameters[1].grad is not None
    parameters[1].grad[0, 0] = math.nan
    optimizer.step()
    after = [*parameters, *(v for state in optimizer.state.values() for v in state.values())]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert "not finite" in caplog.text


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_leaves_the_gradient_alone(rule: Callable[[list[ParameterGroup]], SharedOptimizer]) -> None:
    """The averaged gradient may lie in shared memory: clipping works on a copy."""
    parameters = small_parameters()
    for parameter in parameters:
        parameter.grad = torch.full(parameter.shape, 30.0)
    rule(groups_of(parameters)).step()
    assert all(parameter.grad is not None and bool((parameter.grad == 30.0).all()) for parameter in parameters)
