"""The keeper's checkpoints from one to the next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from coordinator.checkpoints.manifest import stored_steps
from coordinator.checkpoints.probe import make_probes
from coordinator.context.open_run import OpenRun, open_run
from coordinator.keeper.checkpointing import JOINERS_EVERY_S, Checkpointing
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.presence import checkpoints
from peer.models.optimizers import build_optimizer, parameter_groups
from tests.support.clocks import Clock
from tests.support.small_checkpoints import run_model
from tests.support.small_run import make_small_run
from tests.support.standing_swarm import StandingSwarm


@pytest.fixture
def run(tmp_path: Path) -> Iterator[OpenRun]:
    """A run that writes a checkpoint every five steps and keeps two."""
    made = make_small_run(tmp_path)
    settings = made.config.checkpoints.model_copy(update={"every_steps": 5, "keep": 2})
    (made.path / "run.yaml").write_text(made.config.model_copy(update={"checkpoints": settings}).to_yaml())
    with open_run(made.path) as opened:
        yield opened


def test_checkpoints_for_joiners_pass_and_displace_none(run: OpenRun) -> None:
    """One a minute at most, gone with the next, counted as none of those that are kept, and no reason to be late."""
    clock, model, config = Clock(), run_model(run.directory, 1), run.directory.config
    swarm = StandingSwarm(0, build_optimizer(config, parameter_groups(model, config)))
    checkpointing = Checkpointing(
        directory=run.directory,
        config=config,
        model=model,
        swarm=cast(Any, swarm),
        ledger=Ledger(run.database, config),
        database=run.database,
        probes=make_probes(config, run.directory.tokenizer_dir),
        newest=None,
        clock=clock,
    )

    def reach(step: int, joiners: bool = False, after_s: float = JOINERS_EVERY_S) -> list[int]:
        clock.now += after_s
        swarm.step = step
        checkpointing.write_if_due()
        if joiners:
            checkpointing.write_for_joiners()
        assert [row.step for row in reversed(checkpoints(run.database))] == stored_steps(run.directory.checkpoints_dir)
        return stored_steps(run.directory.checkpoints_dir)

    assert reach(5) == [5]
    assert reach(6, joiners=True) == [5, 6]
    assert reach(6, joiners=True, after_s=1.0) == [5, 6]
    assert reach(7, joiners=True, after_s=1.0) == [5, 6]
    assert reach(8, joiners=True) == [5, 8]
    assert reach(10) == [5, 10]
    assert reach(14, joiners=True) == [5, 10, 14]
    assert reach(15) == [10, 15]
