"""The optimizer's recipe, in one place: LAMB, its parameter groups and its schedule, and the outer optimizer.

Peers, keeper and evaluation build their optimizers here. LAMB (You et al. 2020, arXiv 1904.00962) is written out
because the packaged ones differ from the recipe in the clamp, in the bias correction and in where they clip. All state
exists from construction on and consists of tensors, so that hivemind can send it whole and needs no virtual first step.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypedDict, overload

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from peer.config.run import RunConfig
from peer.config.training import Schedule

logger = logging.getLogger(__name__)


class ParameterGroup(TypedDict):
    """Parameters that share a weight decay."""

    params: list[torch.nn.Parameter]
    weight_decay: float


class Lamb(torch.optim.Optimizer):
    """LAMB with bias correction in the step size, clamped weight norms and a clip of the global gradient norm.

    For each parameter: m and v as in Adam, r = m / (sqrt(v) + eps) + weight_decay * p, and
    p -= lr * sqrt(1 - b2^t) / (1 - b1^t) * min(|p|, clamp) / |r| * r, where the ratio of norms is 1 if either is 0.
    """

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter] | Iterable[ParameterGroup],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        clamp_value: float = 10_000.0,
        max_grad_norm: float | None = None,
    ) -> None:
        _require("lr", lr, lr >= 0, "at least 0")
        for beta in betas:
            _require("betas", beta, 0 <= beta < 1, "in [0, 1)")
        _require("eps", eps, eps > 0, "above 0")
        _require("weight_decay", weight_decay, weight_decay >= 0, "at least 0")
        _require("clamp_value", clamp_value, clamp_value > 0, "above 0")
        if max_grad_norm is not None:
            _require("max_grad_norm", max_grad_norm, max_grad_norm > 0, "above 0")
        self.clamp_value = clamp_value
        self.max_grad_norm = max_grad_norm
        super().__init__(
            params,  # type: ignore[arg-type]  # torch's annotation has no TypedDict
            {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay},
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Register a group (the constructor does so for each) and create its state."""
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            self.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32),  # on the CPU: reading it must not wait for an accelerator
                "exp_avg": torch.zeros_like(parameter, requires_grad=False),
                "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
            }

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One update from `.grad`; a gradient whose norm is not finite changes nothing, and is logged."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self._update()
        return loss

    def reset_statistics(self) -> None:
        """Forget all moments and the steps they were made of, as at construction; the parameters stay."""
        for state in self.state.values():
            for statistic in state.values():
                statistic.zero_()

    def _update(self) -> None:
        scale = self._clip_factor()
        if not math.isfinite(scale):
            logger.warning("the gradient is not finite: this optimizer step is skipped")
            return
        for group in self.param_groups:
            parameters: list[Tensor] = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self._update_group(group, parameters, scale)

    def _clip_factor(self) -> float:
        """Return the factor that brings the gradients' global norm to `max_grad_norm` at most; NaN if not finite."""
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = float(gradient_norm(grads))
        if not math.isfinite(norm):
            return math.nan
        if self.max_grad_norm is None or norm <= self.max_grad_norm:
            return 1.0
        return self.max_grad_norm / norm

    def _update_group(self, group: dict[str, Any], parameters: list[Tensor], scale: float) -> None:
        beta1, beta2 = group["betas"]
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        states = [self.state[parameter] for parameter in parameters]
        means = [state["exp_avg"] for state in states]
        squares = [state["exp_avg_sq"] for state in states]
        # The clip factor goes into the coefficients: the gradients themselves, maybe shared memory, stay as they are.
        torch._foreach_mul_(means, beta1)
        torch._foreach_add_(means, grads, alpha=(1 - beta1) * scale)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, value=(1 - beta2) * scale * scale)

        updates = torch._foreach_sqrt(squares)
        torch._foreach_add_(updates, group["eps"])
        torch._foreach_reciprocal_(updates)
        torch._foreach_mul_(updates, means)
        if group["weight_decay"] != 0:
            torch._foreach_add_(updates, parameters, alpha=group["weight_decay"])

        ratios = self._trust_ratios(parameters, updates)
        torch._foreach_add_([state["step"] for state in states], 1)
        factors = [_bias_correction(int(state["step"]), beta1, beta2) for state in states]
        lr = float(group["lr"])
        scales = [-lr * factor * ratio for factor, ratio in zip(factors, ratios, strict=True)]
        torch._foreach_mul_(updates, scales)
        torch._foreach_add_(parameters, updates)

    def _trust_ratios(self, parameters: list[Tensor], updates: tuple[Tensor, ...]) -> list[float]:
        """Per parameter the ratio of the (clamped) weight norm to the update's norm; 1 where either is 0."""
        weights = torch.stack(torch._foreach_norm(parameters)).clamp_(max=self.clamp_value)
        lengths = torch.stack(torch._foreach_norm(updates))
        usable = (weights > 0) & (lengths > 0)
        ratios: list[float] = torch.where(usable, weights / lengths, torch.ones_like(weights)).tolist()
        return ratios


def gradient_norm(grads: list[Tensor]) -> Tensor:
    """The global L2 norm, (), where the gradients are; not finite if any of them is not (or overflows)."""
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads))) if grads else torch.zeros(())


def _bias_correction(step: int, beta1: float, beta2: float) -> float:
    return math.sqrt(1 - beta2**step) / (1.0 - beta1**step)


def _require(name: str, value: float, condition: bool, allowed: str) -> None:
    if not (condition and math.isfinite(value)):
        raise ValueError(f"`{name}` ({value}) must be {allowed}")


class OuterNesterov(torch.optim.Optimizer):
    """The swarm's optimizer where peers take local steps: Nesterov momentum on averaged differences of parameters.

    v = momentum * v + g, then p -= lr * (g + momentum * v), from `.grad`. DiLoCo (Douillard et al. 2023, arXiv
    2311.08105): a global step's "gradient" is how far the peers' own steps have led them from the common parameters, on
    average (`peer.backends.local_steps`); so its learning rate is near one.

    All state exists from construction on, so that hivemind and checkpoints can take it whole.
    """

    def __init__(self, params: Iterable[Any], lr: float = 0.7, momentum: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Register a group (the constructor does so for each) and create its state."""
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            self.state[parameter] = {"momentum": torch.zeros_like(parameter, requires_grad=False)}

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One update from `.grad`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self._update(parameters, float(group["lr"]), float(group["momentum"]))
        return loss

    def _update(self, parameters: list[torch.Tensor], lr: float, momentum: float) -> None:
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        momenta = [self.state[parameter]["momentum"] for parameter in parameters]
        torch._foreach_mul_(momenta, momentum)
        torch._foreach_add_(momenta, grads)
        torch._foreach_add_(parameters, grads, alpha=-lr)
        torch._foreach_add_(parameters, momenta, alpha=-lr * momentum)

    def reset_statistics(self) -> None:
        """Forget the momentum, as at construction; the parameters stay."""
        for state in self.state.values():
            state["momentum"].zero_()


def parameter_groups(model: torch.nn.Module, config: RunConfig) -> list[ParameterGroup]:
    """The model's trainable parameters in two groups: biases and LayerNorms (all vectors) are not decayed."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": config.optimizer.weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]


def build_optimizer(config: RunConfig, groups: Iterable[ParameterGroup]) -> Lamb | OuterNesterov:
    """Build the optimizer of the swarm's global steps: LAMB, or the outer optimizer where peers take local steps."""
    averaging = config.averaging
    if averaging.local_steps > 1:
        return OuterNesterov(groups, averaging.outer_learning_rate, averaging.outer_momentum)
    return _build_lamb(config, groups)


def build_inner_optimizer(config: RunConfig, groups: Iterable[ParameterGroup]) -> torch.optim.Optimizer:
    """Build the run's `optimizer` for a peer's local steps; the caller sets the learning rate and clips."""
    recipe = config.optimizer
    if recipe.name == "adamw":
        return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=recipe.betas, eps=recipe.epsilon)  # type: ignore[arg-type]
    if recipe.name == "sgd":
        return torch.optim.SGD(groups, lr=recipe.learning_rate)  # type: ignore[arg-type]
    return _build_lamb(config, groups)


def _build_lamb(config: RunConfig, groups: Iterable[ParameterGroup]) -> Lamb:
    recipe = config.optimizer
    return Lamb(
        groups,
        lr=recipe.learning_rate,
        betas=recipe.betas,
        eps=recipe.epsilon,
        clamp_value=recipe.clamp_value,
        max_grad_norm=recipe.max_grad_norm,
    )


def learning_rate_factor(step: int, schedule: Schedule, start: int = 0) -> float:
    """The share of the peak learning rate for the global step after `step` completed ones.

    Warm-up counts from `start` and includes the step being taken, so that the first is not wasted on a rate of zero.
    """
    if step - start < schedule.warmup_steps:
        return (step - start + 1) / schedule.warmup_steps
    return max(0.0, (schedule.total_steps - step) / (schedule.total_steps - start - schedule.warmup_steps))


def rate_in_phase(step: int, config: RunConfig) -> float:
    """The learning rate for the step after `step` completed ones, as a multiple of the run's first peak."""
    now = config.at_step(step)
    share = learning_rate_factor(step, now.schedule, config.schedule_start(step))
    return now.optimizer.learning_rate / config.optimizer.learning_rate * share


def build_scheduler(config: RunConfig, optimizer: torch.optim.Optimizer) -> LambdaLR:
    """The run's schedule, phases included; its own step is the global step, never a count of local calls.

    Where peers take local steps, these follow it, and the outer learning rate stays as it is.
    """
    if config.averaging.local_steps > 1:
        return LambdaLR(optimizer, lambda _step: 1.0)
    return LambdaLR(optimizer, partial(rate_in_phase, config=config))
