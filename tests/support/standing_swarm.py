"""A swarm whose step a test sets, for the keeper's checkpoints."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch


@dataclass
class StandingSwarm:
    """A swarm as checkpointing uses it: it has a step, and its state stands still."""

    step: int
    optimizer: torch.optim.Optimizer
    era: int = 0

    @property
    def state(self) -> StandingSwarm:
        """Its state, which is all that it has."""
        return self

    @property
    def lock(self) -> AbstractContextManager[None]:
        """Nothing moves here anyway."""
        return nullcontext()
