"""Local steps: between two averagings a peer takes optimizer steps of its own, on its own samples.

DiLoCo (Douillard et al. 2023, arXiv 2311.08105), for lines too slow to average gradients every minute. A peer's model
is then a copy that goes its own way from the common parameters. When the global batch is full, the difference of the
two is averaged, weighted by samples, as gradients are otherwise; the outer step (`peer.models.optimizers`) changes the
common parameters, and the copy begins from them again. To the swarm the common parameters are all there is: they are
what it sketches, gives to joiners and keeps in checkpoints.

To the trainer all this is a backend around its backend.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel

from peer.backends import Backend, MicrobatchResult
from peer.config.run import RunConfig
from peer.models.build import copy_model
from peer.models.optimizers import build_inner_optimizer, parameter_groups, rate_in_phase
from peer.models.update_rules import gradient_norm

if TYPE_CHECKING:
    from peer.data.batching.batches import Batch

logger = logging.getLogger(__name__)


def own_model(config: RunConfig, common: PreTrainedModel) -> PreTrainedModel:
    """The model that this peer trains: a copy where it takes local steps, else the swarm's own."""
    return copy_model(common) if config.averaging.local_steps > 1 else common


def with_local_steps(
    config: RunConfig, backend: Backend, own: torch.nn.Module, common: torch.nn.Module, step: Callable[[], int]
) -> Backend:
    """The backend that the trainer is to use, over one for `own`; `step` says how many global steps are completed."""
    return backend if own is common else LocalSteps(config, backend, own, common, step)


class LocalSteps:
    """A backend that takes local steps with `inner`, whose moments are this peer's own and begin at zero."""

    def __init__(
        self,
        config: RunConfig,
        backend: Backend,
        own: torch.nn.Module,
        common: torch.nn.Module,
        step: Callable[[], int],
    ) -> None:
        self._config, self._backend, self._own, self._step = config, backend, own, step
        trained = zip(own.parameters(), common.parameters(), strict=True)
        self._pairs = [(mine, shared) for mine, shared in trained if shared.requires_grad]
        self.inner = build_inner_optimizer(config, parameter_groups(own, config))
        self._began_at = step()
        self._samples = self._pending = 0  # since the common parameters; of these, in no local step yet
        self.synchronize()

    @property
    def description(self) -> str:
        """The devices that compute, in a few words for people."""
        return self._backend.description

    def microbatch_size(self, usual: int, limit: int, make_batch: Callable[[int], Batch]) -> int:
        """Return the size that the inner backend says."""
        return self._backend.microbatch_size(usual, limit, make_batch)

    def stage(self, batch: Batch) -> Batch:
        """Put a batch where the inner backend takes it fastest."""
        return self._backend.stage(batch)

    def accumulate(self, batch: Batch) -> MicrobatchResult:
        """Add the microbatch's gradient, and take a local step when its batch is full."""
        result = self._backend.accumulate(batch)
        if result.finite:
            self._samples += result.samples
            self._pending += result.samples
            if self._pending >= self._batch_size:
                self._take_step()
        return result

    @torch.no_grad()
    def collect(self) -> None:
        """Have (common - own parameters) * samples in the common parameters' `.grad`: as a sum of gradients would be.

        Pending samples get a local step first. A round that is tried again finds the same numbers.
        """
        if self._pending:
            self._take_step()
        for mine, shared in self._pairs:
            if shared.grad is None:
                shared.grad = torch.zeros_like(shared)
            shared.grad.copy_(shared - mine.to(shared.device)).mul_(self._samples)

    @torch.no_grad()
    def synchronize(self) -> None:
        """Go on from the common parameters: the swarm has taken an outer step, or this peer was out of sync."""
        for mine, shared in self._pairs:
            mine.copy_(shared)
        self._samples = 0
        self._clear()
        self._enter(self._step())

    def _enter(self, step: int) -> None:
        """Take up what is in force after the outer step."""
        if step != self._began_at and self._config.starts_optimizer(step):
            self.inner = build_inner_optimizer(self._config, parameter_groups(self._own, self._config))
        self._began_at = step
        self._batch_size = self._config.at_step(step).averaging.local_batch_size
        self._rate = self._config.optimizer.learning_rate * rate_in_phase(step, self._config)

    @torch.no_grad()
    def _take_step(self) -> None:
        """One step from the pending samples' mean gradient; fewer than a batch count for so much less."""
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
        """Begin the next local step's gradient."""
        for mine, _ in self._pairs:
            if mine.grad is not None:
                mine.grad.zero_()
        self._backend.synchronize()
        self._pending = 0
