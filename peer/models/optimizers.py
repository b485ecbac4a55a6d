"""The update rules of the optimizers: LAMB, AdamW, StableAdamW, Muon, and outer Nesterov momentum.

All peers hold the same optimizer state and compute the same step from the same average. All state
consists of tensors created by the constructor, so hivemind can send the state without a dummy first
step, and checkpoints contain it. A library's rule is used if it gives equal results on all
processors:

- LAMB (You et al. 2020, arXiv 1904.00962) is implemented here, because packaged versions differ
  from the recipe in the clamp, the bias correction and the gradient clipping.
- AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101) is PyTorch's.
- StableAdamW (Wortsman et al. 2023, arXiv 2304.13013, algorithm 2) is not in PyTorch. torch-optimi
  stores the number of steps outside of the state and creates the state only in the first step.
- Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) is PyTorch's formula in
  float32. `torch.optim.Muon` iterates in bfloat16, so updates differ by 1 % between processors.

`peer.models.optimizer_setup` builds the optimizer of a run file.
"""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict, overload

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from peer.reduction.sizes import BLOCK

logger = logging.getLogger(__name__)
# Muon's iteration (Jordan et al. 2024): a quintic polynomial, applied five times to a norm <= 1.
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5
LEAST_NORM = 1e-7
# Scales updates to AdamW's magnitude, for equal learning rates (Liu et al. 2025, arXiv 2502.16982).
MUON_RMS = 0.2


class _Group(TypedDict):
    params: list[torch.nn.Parameter]
    weight_decay: float


class ParameterGroup(_Group, total=False):
    """Parameters with a common weight decay, and a common rule if the optimizer has several."""

    is_hidden: bool  # matrices of hidden layers, for Muon's own rule
    is_difference: bool  # differences from other parameters, whose norm must not scale LAMB's update


class SharedOptimizer(torch.optim.Optimizer):
    """An optimizer whose state all peers share; clips the gradients' global norm to `max_grad_norm`.

    A gradient with a non-finite norm is skipped. Gradients, which may be in shared memory, are not
    modified.
    """

    # Statistics sent to a joiner in 16 bits. Others must be exact: Adam divides each value by its
    # own second moment, and Muon orthogonalizes its momentum. With rounded statistics, a joiner
    # would drift from its donor (`tests/peer/swarm/test_training_state.py`).
    rounded = frozenset({"exp_avg"})

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter] | Iterable[ParameterGroup],
        defaults: Mapping[str, Any],
        max_grad_norm: float | None = None,
    ) -> None:
        if max_grad_norm is not None:
            _require("max_grad_norm", max_grad_norm, max_grad_norm > 0, "above 0")
        self.max_grad_norm = max_grad_norm
        super().__init__(params, dict(defaults))  # type: ignore[arg-type]  # torch's annotation has no TypedDict

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Register a group and create its state; called by the constructor for each group."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for parameter in group["params"]:
            self.state[parameter] = self._new_state(group, parameter)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update the parameters from `.grad`; a non-finite gradient is logged and skipped."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self._update()
        return loss

    def reset_statistics(self) -> None:
        """Reset all moments and step counts to zero; the parameters do not change."""
        for state in self.state.values():
            for statistic in state.values():
                statistic.zero_()

    def rounds(self, name: str, statistic: Tensor) -> bool:
        """Return whether a joiner receives this statistic in 16 bits; step counts are sent exactly."""
        return name in self.rounded and statistic.numel() >= BLOCK

    def _new_state(self, group: Mapping[str, Any], parameter: Tensor) -> dict[str, Tensor]:
        """Return a parameter's state before the first step."""
        del group
        return {
            "step": torch.zeros((), dtype=torch.float32),  # on the CPU, to avoid waiting for an accelerator
            "exp_avg": torch.zeros_like(parameter, requires_grad=False),
            "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
        }

    @abstractmethod
    def _update_group(self, group: dict[str, Any], parameters: list[Tensor], scale: float) -> None:
        """Update the given parameters of a group, multiplying their gradients by `scale`."""

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
        """Return the factor that limits the global norm to `max_grad_norm`; NaN if the norm is not finite."""
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = float(gradient_norm(grads))
        if not math.isfinite(norm):
            return math.nan
        if self.max_grad_norm is None or norm <= self.max_grad_norm:
            return 1.0
        return self.max_grad_norm / norm


class Lamb(SharedOptimizer):
    """LAMB with bias correction in the step size, clamped weight norms and gradient norm clipping.

    For each parameter: m and v as in Adam, r = m / (sqrt(v) + eps) + weight_decay * p, and p -= lr
    * sqrt(1 - b2^t) / (1 - b1^t) * min(|p|, clamp) / |r| * r, where the ratio of norms is 1 if
    either is 0.
    """

    rounded = frozenset({"exp_avg", "exp_avg_sq"})  # safe to round: a step's length depends only on the weights' norm

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
        _require("clamp_value", clamp_value, clamp_value > 0, "above 0")
        self.clamp_value = clamp_value
        super().__init__(params, _adam_defaults(lr, betas, eps, weight_decay), max_grad_norm)

    def _update_group(self, group: dict[str, Any], parameters: list[Tensor], scale: float) -> None:
        beta1, beta2 = group["betas"]
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        states = [self.state[parameter] for parameter in parameters]
        means = [state["exp_avg"] for state in states]
        squares = [state["exp_avg_sq"] for state in states]
        # The clip factor is part of the coefficients, so no copy of the gradients is needed.
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

        is_difference = group.get("is_difference", False)
        ratios = [1.0] * len(parameters) if is_difference else self._trust_ratios(parameters, updates)
        torch._foreach_add_([state["step"] for state in states], 1)
        factors = [_bias_correction(int(state["step"]), beta1, beta2) for state in states]
        lr = float(group["lr"])
        scales = [-lr * factor * ratio for factor, ratio in zip(factors, ratios, strict=True)]
        torch._foreach_mul_(updates, scales)
        torch._foreach_add_(parameters, updates)

    def _trust_ratios(self, parameters: list[Tensor], updates: tuple[Tensor, ...]) -> list[float]:
        """Return each parameter's ratio of (clamped) weight norm to update norm; 1 if either is 0."""
        weights = torch.stack(torch._foreach_norm(parameters)).clamp_(max=self.clamp_value)
        lengths = torch.stack(torch._foreach_norm(updates))
        usable = (weights > 0) & (lengths > 0)
        ratios: list[float] = torch.where(usable, weights / lengths, torch.ones_like(weights)).tolist()
        return ratios


class AdamW(SharedOptimizer):
    """AdamW as implemented by PyTorch."""

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter] | Iterable[ParameterGroup],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(params, _adam_defaults(lr, betas, eps, weight_decay), max_grad_norm)

    def _update_group(self, group: dict[str, Any], parameters: list[Tensor], scale: float) -> None:
        states = [self.state[parameter] for parameter in parameters]
        beta1, beta2 = group["betas"]
        adamw(
            parameters,
            _scaled_gradients(parameters, scale),
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=float(group["lr"]),
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


class StableAdamW(AdamW):
    """AdamW with AdaFactor's update clipping: unusually large gradients lower a tensor's rate.

    m and v are debiased as they are updated; RMS = sqrt(mean(g^2 / max(v, eps^2))), n = lr /
    max(1, RMS), and p -= n * (weight_decay * p + m / (sqrt(v) + eps)).
    """

    def _update_group(self, group: dict[str, Any], parameters: list[Tensor], scale: float) -> None:
        for parameter, gradient in zip(parameters, _scaled_gradients(parameters, scale), strict=True):
            self._update_one(group, parameter, gradient)

    def _update_one(self, group: dict[str, Any], parameter: Tensor, gradient: Tensor) -> None:
        state, eps = self.state[parameter], group["eps"]
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        state["step"].add_(1)
        beta1, beta2 = (_debiased(beta, int(state["step"])) for beta in group["betas"])
        mean.mul_(beta1).add_(gradient, alpha=1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        excess = float((gradient.square() / square.clamp(min=eps**2)).mean(dtype=torch.float64).sqrt())
        lr = float(group["lr"]) / max(1.0, excess)
        parameter.mul_(1 - lr * group["weight_decay"])
        parameter.addcdiv_(mean, square.sqrt().add_(eps), value=-lr)


class Muon(AdamW):
    """Muon for groups with `is_hidden` (matrices of hidden layers), AdamW for all others.

    B = momentum * B + (1 - momentum) * g; the update is a matrix near U V^T, where U S V^T = g +
    momentum * (B - g); p -= lr * (weight_decay * p + 0.2 * sqrt(max(rows, columns)) * update).
    """

    def __init__(
        self,
        params: Iterable[ParameterGroup],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        max_grad_norm: float | None = None,
    ) -> None:
        _require("momentum", momentum, 0 <= momentum < 1, "in [0, 1)")
        self.momentum = momentum
        super().__init__(params, lr, betas, eps, weight_decay, max_grad_norm)

    def _new_state(self, group: Mapping[str, Any], parameter: Tensor) -> dict[str, Tensor]:
        if not group.get("is_hidden"):
            return super()._new_state(group, parameter)
        if parameter.ndim != 2:
            raise ValueError(f"Muon's own rule is for matrices, not for a tensor of shape {tuple(parameter.shape)}")
        return {"momentum": torch.zeros_like(parameter, requires_grad=False)}

    def _update_group(self, group: dict[str, Any], parameters: list[Tensor], scale: float) -> None:
        if not group.get("is_hidden"):
            super()._update_group(group, parameters, scale)
            return
        lr = float(group["lr"])
        for parameter, gradient in zip(parameters, _scaled_gradients(parameters, scale), strict=True):
            momentum = self.state[parameter]["momentum"].lerp_(gradient, 1 - self.momentum)
            update = orthogonalized(gradient.lerp(momentum, self.momentum))
            parameter.mul_(1 - lr * group["weight_decay"])
            parameter.add_(update, alpha=-lr * MUON_RMS * math.sqrt(max(parameter.shape)))


def orthogonalized(matrix: Tensor) -> Tensor:
    """Return a matrix near U V^T for `matrix` = U S V^T, with singular values about 0.7 to 1.2."""
    is_tall = matrix.shape[0] > matrix.shape[1]
    wide = matrix.T if is_tall else matrix  # for the smaller of the two Gram matrices
    wide = wide / torch.linalg.vector_norm(wide).clamp(min=LEAST_NORM)
    first, third, fifth = NEWTON_SCHULZ
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=third, alpha=fifth), wide, beta=first)
    return wide.T if is_tall else wide


class OuterNesterov(SharedOptimizer):
    """The swarm's outer optimizer for local steps: Nesterov momentum on averaged differences.

    v = momentum * v + g, then p -= lr * (g + momentum * v), from `.grad`. In DiLoCo (Douillard et
    al. 2023, arXiv 2311.08105), the "gradient" of a global step is the peers' average displacement
    from the common parameters after local steps (`peer.backends.local_steps`). The learning rate
    is near one.
    """

    def __init__(self, params: Iterable[Any], lr: float = 0.7, momentum: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    def _new_state(self, group: Mapping[str, Any], parameter: Tensor) -> dict[str, Tensor]:
        del group
        return {"momentum": torch.zeros_like(parameter, requires_grad=False)}

    def _update_group(self, group: dict[str, Any], parameters: list[Tensor], scale: float) -> None:
        del scale  # averaged differences are not clipped
        lr, momentum = float(group["lr"]), float(group["momentum"])
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        momenta = [self.state[parameter]["momentum"] for parameter in parameters]
        torch._foreach_mul_(momenta, momentum)
        torch._foreach_add_(momenta, grads)
        torch._foreach_add_(parameters, grads, alpha=-lr)
        torch._foreach_add_(parameters, momenta, alpha=-lr * momentum)

    @torch.no_grad()
    def foresee(self, gradients: Mapping[torch.nn.Parameter, Tensor]) -> dict[torch.nn.Parameter, Tensor]:
        """Return the parameters after a step with these gradients, without modifying any state."""
        foreseen = {}
        for group in self.param_groups:
            lr, momentum = float(group["lr"]), float(group["momentum"])
            for parameter in group["params"]:
                gradient = gradients[parameter]
                momenta = momentum * self.state[parameter]["momentum"] + gradient
                foreseen[parameter] = parameter.detach() - lr * (gradient + momentum * momenta)
        return foreseen


def gradient_norm(grads: list[Tensor]) -> Tensor:
    """Return the global L2 norm, (), on the gradients' device; NaN or infinite if a gradient is."""
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads))) if grads else torch.zeros(())


def _adam_defaults(lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> dict[str, Any]:
    """Return the hyperparameters common to LAMB and AdamW. Raises `ValueError` for invalid ones."""
    _require("lr", lr, lr >= 0, "at least 0")
    for beta in betas:
        _require("betas", beta, 0 <= beta < 1, "in [0, 1)")
    _require("eps", eps, eps > 0, "above 0")
    _require("weight_decay", weight_decay, weight_decay >= 0, "at least 0")
    return {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}


def _scaled_gradients(parameters: list[Tensor], scale: float) -> list[Tensor]:
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return grads if scale == 1.0 else list(torch._foreach_mul(grads, scale))


def _debiased(beta: float, step: int) -> float:
    """Return the decay, corrected for a moving average that starts at zero."""
    return beta * (1 - beta ** (step - 1)) / (1 - beta**step)


def _bias_correction(step: int, beta1: float, beta2: float) -> float:
    return math.sqrt(1 - beta2**step) / (1.0 - beta1**step)


def _require(name: str, value: float, condition: bool, allowed: str) -> None:
    if not (condition and math.isfinite(value)):
        raise ValueError(f"`{name}` ({value}) must be {allowed}")
