"""The swarm's optimizer where peers take local steps: Nesterov momentum on averaged differences of parameters.

DiLoCo (Douillard et al. 2023, arXiv 2311.08105): a global step's "gradient" is how far the peers' own steps have led
them from the common parameters, on average (`peer.local_steps`); so its learning rate is near one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch


class OuterNesterov(torch.optim.Optimizer):
    """v = momentum * v + g, then p -= lr * (g + momentum * v), from `.grad`.

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
