"""Local steps: between two averaging rounds, a peer takes optimizer steps on its own samples.

This is DiLoCo (Douillard et al. 2023, arXiv 2311.08105), for connections too slow to average
gradients every minute. A peer trains a copy of the common parameters. When the global batch is
full, the difference between copy and common parameters is averaged, weighted by samples, instead of
gradients. The outer step (`OuterNesterov`) changes the common parameters, and the copy restarts
from them. The swarm handles only the common parameters: it sketches them, sends them to joiners and
stores them in checkpoints. To the trainer, `LocalSteps` is a backend that wraps another.

θ and v are the common parameters and outer momentum; θᵢ is the copy of peer i after local steps on
nᵢ samples from the base bᵢ:

    (1)  dᵢ = bᵢ - θᵢ                                     the peer's pseudo-gradient
    (2)  g = Σᵢ nᵢ dᵢ / Σᵢ nᵢ                              the round's average
    (3)  v' = μ v + g,  θ' = θ - η (g + μ v')             the outer step, Outer(θ, v, g)
    (4)  θᵢ, bᵢ ← θ'

With `averaging.delay`, local steps continue during the round. The outer step, (2) and (3), is the
same. At the first microbatch during the round, the copy moves to the peer's own estimate of θ';
when the average arrives, the copy keeps its progress since that microbatch:

    (5)  eᵢ = Outer(θ, v, dᵢ),  θᵢ ← eᵢ,  bᵢ ← eᵢ + dᵢ    the round has begun; bᵢ - θᵢ is still dᵢ
    (6)  θᵢ ← θ' + (θᵢ - eᵢ),  bᵢ ← θ'                    the round has ended with the step
    (7)  θᵢ ← θ' + (θᵢ - bᵢ),  bᵢ ← θ'                    a late peer follows the step, and its samples still count

(5) is the eager update of Kale, Douillard & Donchev 2025 (arXiv 2502.12996): it applies the peer's
own pseudo-gradient at once, instead of the average, which arrives one round late. Here only the
copy moves, so θ and v stay equal on all peers. None of (5) to (7) changes the part of bᵢ - θᵢ that
is still to be averaged, so every local step is in exactly one average. A failed round changes
nothing. The inner optimizer's moments are kept, except in a phase with a fresh optimizer.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch
from transformers import PreTrainedModel

from peer.backends import Backend, MicrobatchResult
from peer.config.run import RunConfig
from peer.models.build import copy_model
from peer.models.optimizer_setup import build_inner_optimizer, parameter_groups, rate_in_phase
from peer.models.optimizers import OuterNesterov, gradient_norm

if TYPE_CHECKING:
    from peer.data.batching.batches import Batch

logger = logging.getLogger(__name__)


def own_model(config: RunConfig, common: PreTrainedModel) -> PreTrainedModel:
    """Return the model that this peer trains: a copy for local steps, else the swarm's model."""
    return copy_model(common) if config.averaging.local_steps > 1 else common


class OuterSteps(Protocol):
    """The part of `peer.swarm.swarm.Swarm` that local steps need."""

    @property
    def step(self) -> int: ...

    @property
    def own_samples(self) -> int: ...

    @property
    def set_aside_samples(self) -> int: ...

    @property
    def optimizer(self) -> torch.optim.Optimizer: ...


def with_local_steps(
    config: RunConfig, backend: Backend, own: torch.nn.Module, common: torch.nn.Module, swarm: OuterSteps
) -> Backend:
    """Return `backend`, wrapped in `LocalSteps` if the run takes local steps."""
    return backend if own is common else LocalSteps(config, backend, own, common, swarm)


class LocalSteps:
    """A backend that takes local steps with the optimizer `inner`, whose moments are not shared."""

    def __init__(
        self,
        config: RunConfig,
        backend: Backend,
        own: torch.nn.Module,
        common: torch.nn.Module,
        swarm: OuterSteps,
    ) -> None:
        self._config, self._backend, self._own, self._swarm = config, backend, own, swarm
        trained = zip(own.parameters(), common.parameters(), strict=True)
        self._pairs = [(mine, shared) for mine, shared in trained if shared.requires_grad]
        self.inner = build_inner_optimizer(config, parameter_groups(own, config))
        self._bases: list[torch.Tensor] = [shared for _, shared in self._pairs]  # b in equation (1)
        if config.averaging.delay:
            self._bases = [base.detach().clone() for base in self._bases]
        self._guesses = self._bases  # e in equation (5) during a background round, else the bases
        self._began_at = swarm.step
        self._samples = self._pending = 0  # samples since the base, and samples not yet in a local step
        self._set_aside = 0  # samples accumulated before the estimate of equation (5)
        self.synchronize()

    @property
    def description(self) -> str:
        """The inner backend's description."""
        return self._backend.description

    def microbatch_size(self, usual: int, limit: int, make_batch: Callable[[int], Batch]) -> int:
        """Return the inner backend's microbatch size."""
        return self._backend.microbatch_size(usual, limit, make_batch)

    def stage(self, batch: Batch) -> Batch:
        """Stage a batch for the inner backend."""
        return self._backend.stage(batch)

    def accumulate(self, batch: Batch) -> MicrobatchResult:
        """Add the microbatch's gradient, and take a local step once the local batch is full."""
        if self._swarm.set_aside_samples not in (0, self._set_aside):
            self._go_ahead()
        result = self._backend.accumulate(batch)
        if result.finite:
            self._samples += result.samples
            self._pending += result.samples
            if self._pending >= self._batch_size:
                self._take_step()
        return result

    @torch.no_grad()
    def collect(self) -> None:
        """Store (base - own parameters) * samples in the common parameters' `.grad`.

        This value takes the place of the gradient sum. A local step on pending samples comes first;
        samples reserved by a running round are excluded. A repeated round gets the same values.
        """
        if self._pending:
            self._take_step()
        samples = self._samples - self._swarm.set_aside_samples
        for (mine, shared), origin in zip(self._pairs, self._origins(samples), strict=True):
            if shared.grad is None:
                shared.grad = torch.zeros_like(shared)
            shared.grad.copy_(origin - mine).mul_(samples)

    @torch.no_grad()
    def synchronize(self) -> None:
        """Continue from the common parameters after an outer step or a resynchronization.

        Progress on samples not yet averaged is kept; see (6) and (7) in the module docstring.
        """
        kept = self._swarm.own_samples
        for (mine, shared), origin in zip(self._pairs, self._origins(kept), strict=True):
            if kept:
                mine.sub_(origin).add_(shared)
            else:
                mine.copy_(shared)
        for base, (_, shared) in zip(self._bases, self._pairs, strict=True):
            if base is not shared:
                base.copy_(shared)
        self._guesses, self._samples, self._set_aside = self._bases, kept, 0
        self._clear()
        self._enter(self._swarm.step)

    @torch.no_grad()
    def _go_ahead(self) -> None:
        """Continue from an estimate of the next common parameters during a round: equation (5)."""
        outer = self._swarm.optimizer
        assert isinstance(outer, OuterNesterov)
        progress = [base - mine for (mine, _), base in zip(self._pairs, self._bases, strict=True)]
        foreseen = outer.foresee({shared: moved for (_, shared), moved in zip(self._pairs, progress, strict=True)})
        self._guesses = [foreseen[shared] for _, shared in self._pairs]
        for (mine, _), guess, base, moved in zip(self._pairs, self._guesses, self._bases, progress, strict=True):
            mine.copy_(guess)
            torch.add(guess, moved, out=base)
        self._set_aside = self._samples
        self._clear()

    def _origins(self, samples: int) -> list[torch.Tensor]:
        """Return the parameters before the local steps on the newest `samples` samples."""
        return self._bases if samples == self._samples else self._guesses

    def _enter(self, step: int) -> None:
        """Apply the settings of a new phase after the outer step."""
        if step != self._began_at and self._config.starts_optimizer(step):
            self.inner = build_inner_optimizer(self._config, parameter_groups(self._own, self._config))
        self._began_at = step
        self._batch_size = self._config.at_step(step).averaging.local_batch_size
        self._rate = self._config.optimizer.learning_rate * rate_in_phase(step, self._config)

    @torch.no_grad()
    def _take_step(self) -> None:
        """Take a local step on the pending samples; lower the learning rate for a partial batch."""
        self._backend.collect()
        grads = [mine.grad for mine, _ in self._pairs if mine.grad is not None]
        torch._foreach_div_(grads, self._pending)
        norm, most = float(gradient_norm(grads)), self._config.optimizer.max_grad_norm
        if math.isfinite(norm):
            torch._foreach_mul_(grads, min(1.0, most / norm) if norm > 0 else 1.0)
            for group in self.inner.param_groups:
                group["lr"] = self._rate * min(1.0, self._pending / self._batch_size)
            self.inner.step()
        else:
            logger.warning("a gradient is not finite: this local step is skipped")
        self._clear()

    def _clear(self) -> None:
        for mine, _ in self._pairs:
            if mine.grad is not None:
                mine.grad.zero_()
        self._backend.synchronize()
        self._pending = 0
