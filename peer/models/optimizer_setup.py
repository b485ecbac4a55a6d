"""Construction of a run's optimizer and schedule from the run file.

Peers, keeper and evaluation build their optimizers here, with the rules of
`peer.models.optimizers`. The schedule depends only on the number of completed steps, because peers
may join late or be rewound to a checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial

import torch
from torch.optim.lr_scheduler import LambdaLR

from peer.config.run import RunConfig
from peer.config.training import Schedule
from peer.models.optimizers import AdamW, Lamb, Muon, OuterNesterov, ParameterGroup, SharedOptimizer, StableAdamW
from peer.models.replaced_tokens import ReplacedTokens
from peer.reduction.sizes import StateSize


def parameter_groups(model: torch.nn.Module, config: RunConfig) -> list[ParameterGroup]:
    """Group the trainable parameters by weight decay, which is zero for vectors such as biases.

    Matrices of hidden layers, excluding embeddings and heads, form a separate group for Muon's own
    rule. A discriminator's embeddings, stored as differences, also form a separate group.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decay = config.optimizer.weight_decay
    vectors: ParameterGroup = {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0}
    hidden = {id(parameter) for parameter in _hidden_matrices(model)} if config.optimizer.name == "muon" else set()
    difference = model.difference if isinstance(model, ReplacedTokens) else None
    others = [p for p in trainable if p.ndim >= 2 and id(p) not in hidden and p is not difference]
    groups: list[ParameterGroup] = [{"params": others, "weight_decay": decay}, vectors]
    if hidden:
        groups.insert(
            0, {"params": [p for p in trainable if id(p) in hidden], "weight_decay": decay, "is_hidden": True}
        )
    if difference is not None:
        groups.append({"params": [difference], "weight_decay": decay, "is_difference": True})
    return groups


def _hidden_matrices(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the matrices of repeated layers (transformers' module lists), without embeddings."""
    layers = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    inner = [module for layer in layers for module in layer.modules() if not isinstance(module, torch.nn.Embedding)]
    return [each for module in inner for each in module.parameters(recurse=False) if each.ndim == 2]


def build_optimizer(config: RunConfig, groups: Iterable[ParameterGroup]) -> SharedOptimizer:
    """Build the optimizer of global steps: the run file's or, with local steps, the outer one."""
    averaging = config.averaging
    if averaging.local_steps > 1:
        return OuterNesterov(groups, averaging.outer_learning_rate, averaging.outer_momentum)
    return _build_named(config, groups)


def build_inner_optimizer(config: RunConfig, groups: Iterable[ParameterGroup]) -> torch.optim.Optimizer:
    """Build the optimizer of local steps; the caller sets the learning rate and clips gradients."""
    if config.optimizer.name == "sgd":
        return torch.optim.SGD(groups, lr=config.optimizer.learning_rate)  # type: ignore[arg-type]
    return _build_named(config, groups)


def _build_named(config: RunConfig, groups: Iterable[ParameterGroup]) -> SharedOptimizer:
    recipe = config.optimizer
    clip, adam = recipe.max_grad_norm, (recipe.learning_rate, recipe.betas, recipe.epsilon)
    if recipe.name == "adamw":
        return AdamW(groups, *adam, max_grad_norm=clip)
    if recipe.name == "stable_adamw":
        return StableAdamW(groups, *adam, max_grad_norm=clip)
    if recipe.name == "muon":
        return Muon(groups, *adam, momentum=recipe.momentum, max_grad_norm=clip)
    return Lamb(groups, *adam, clamp_value=recipe.clamp_value, max_grad_norm=clip)


def state_size(config: RunConfig, model: torch.nn.Module) -> StateSize:
    """Return the number of values in the shared state, without allocating the optimizer's state."""
    groups: list[ParameterGroup] = [
        {**group, "params": [torch.nn.Parameter(p.to("meta")) for p in group["params"]]}
        for group in parameter_groups(model, config)
    ]
    optimizer = build_optimizer(config, groups)
    rounded = exact = 0
    for state in optimizer.state.values():
        for name, statistic in state.items():
            if optimizer.rounds(name, statistic):
                rounded += statistic.numel()
            else:
                exact += statistic.numel()
    return StateSize(sum(p.numel() for group in groups for p in group["params"]), rounded, exact)


def learning_rate_factor(step: int, schedule: Schedule, start: int = 0) -> float:
    """Return the fraction of the peak learning rate for the global step after `step` completed ones.

    Warm-up is counted from `start` and includes the current step, so the first rate is above zero.
    transformers' schedules begin at zero and lack `start`; the cosine rises after the last step.
    """
    if step - start < schedule.warmup_steps:
        return (step - start + 1) / schedule.warmup_steps
    decay_steps = schedule.decay_steps or schedule.total_steps - start - schedule.warmup_steps
    share_left = min(1.0, max(0, schedule.total_steps - step) / decay_steps)
    if schedule.shape == "cosine":
        return 0.5 * (1 - math.cos(math.pi * share_left))
    if schedule.shape == "warmup_stable_decay":
        return 1 - math.sqrt(1 - share_left)
    return share_left


def rate_in_phase(step: int, config: RunConfig) -> float:
    """Return the learning rate after `step` completed steps, relative to the run's first peak."""
    now = config.at_step(step)
    share = learning_rate_factor(step, now.schedule, config.schedule_start(step))
    return now.optimizer.learning_rate / config.optimizer.learning_rate * share


def build_scheduler(config: RunConfig, optimizer: torch.optim.Optimizer) -> LambdaLR:
    """Build the run's schedule with its phases.

    The schedule's step is the global step, never a number of local calls. With local steps, the
    schedule applies to the local optimizer, and the outer learning rate is constant.
    """
    if config.averaging.local_steps > 1:
        return LambdaLR(optimizer, lambda _step: 1.0)
    return LambdaLR(optimizer, partial(rate_in_phase, config=config))
