"""A swarm whose step a test sets, and the keeper's checkpoints of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch

from coordinator.checkpoints.probe import make_probes
from coordinator.context.open_run import OpenRun
from coordinator.keeper.checkpointing import Checkpointing
from peer.models.optimizer_setup import build_optimizer, parameter_groups
from tests.support.small_checkpoints import run_model


@dataclass
class StandingSwarm:
    """A swarm as checkpointing uses it: it has a step, and its state stands still."""

    step: int
    optimizer: torch.optim.Optimizer
    era: int = 0
    turned_away: int = 0  # joiners

    @property
    def state(self) -> StandingSwarm:
        """Its state, which is all that it has."""
        return self

    training = state

    @property
    def lock(self) -> AbstractContextManager[None]:
        """Nothing moves here anyway."""
        return nullcontext()


def checkpointing_of(run: OpenRun, clock: Callable[[], float] = lambda: 0.0) -> Checkpointing:
    """The run's checkpoints, without its keeper, of a swarm that has taken no step."""
    model, config = run_model(run.directory, 1), run.directory.config
    swarm: Any = StandingSwarm(0, build_optimizer(config, parameter_groups(model, config)))
    return Checkpointing(
        directory=run.directory,
        config=config,
        model=model,
        swarm=swarm,
        database=run.database,
        probes=make_probes(config, run.directory.tokenizer_dir),
        newest=None,
        clock=clock,
    )


def reach(checkpointing: Checkpointing, step: int) -> None:
    """Let the swarm have come to this step, and write the checkpoint that is due."""
    cast(StandingSwarm, checkpointing.swarm).step = step
    checkpointing.write_if_due()


def turn_away(checkpointing: Checkpointing, joiners: int) -> None:
    """Let the swarm have turned away so many more joiners, and provide for them."""
    cast(StandingSwarm, checkpointing.swarm).turned_away += joiners
    checkpointing.provide_for_joiners()
