"""A disk that is full when a checkpoint is due."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from coordinator.checkpointing import Checkpointing
from coordinator.checkpoints import RESERVE_BYTES
from coordinator.ledger import Ledger
from coordinator.manifests import newest_verified, stored_steps
from coordinator.presence import checkpoints
from coordinator.probe import make_probes
from coordinator.runs import OpenRun, open_run
from peer.optim import build_optimizer, parameter_groups
from tests.small_checkpoints import run_model
from tests.small_disks import FILLER, fill, make_room, small_disk
from tests.small_run import make_small_run

SIZE_BYTES = 2 * RESERVE_BYTES


@dataclass
class StandingSwarm:
    """What checkpointing asks of a swarm: where it is, and that its state stands still."""

    step: int
    optimizer: torch.optim.Optimizer
    era: int = 0

    def frozen_state(self) -> AbstractContextManager[None]:
        """Nothing moves here anyway."""
        return nullcontext()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[OpenRun]:
    """A run whose checkpoints lie on a small disk of their own."""
    directory = make_small_run(tmp_path)
    with small_disk(directory.checkpoints_dir, SIZE_BYTES), open_run(directory.path) as opened:
        yield opened


@pytest.fixture
def checkpointing(run: OpenRun) -> Checkpointing:
    """The keeper's, without the keeper."""
    model = run_model(run.directory, 1)
    config = run.directory.config
    swarm: Any = StandingSwarm(0, build_optimizer(config, parameter_groups(model, config)))
    return Checkpointing(
        directory=run.directory,
        config=config,
        model=model,
        swarm=swarm,
        ledger=Ledger(run.sessions, config),
        sessions=run.sessions,
        probes=make_probes(config, run.directory.tokenizer_dir),
        newest=None,
        clock=lambda: 0.0,
    )


def reach(checkpointing: Checkpointing, step: int) -> None:
    """The swarm has come to this step, at which a checkpoint is due."""
    cast(StandingSwarm, checkpointing.swarm).step = step
    checkpointing.write_if_due()


@pytest.mark.parametrize("left_bytes", [RESERVE_BYTES // 2, 100_000, 0])
def test_a_full_disk_is_told_and_harms_nothing(
    run: OpenRun,
    checkpointing: Checkpointing,
    left_bytes: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log says what to do, the old checkpoint stays, and the next one is written when there is space again."""
    directory = run.directory.checkpoints_dir
    reach(checkpointing, 5)
    if left_bytes < RESERVE_BYTES // 2:  # filled up after the look at the free space: the write itself fails
        monkeypatch.setattr("coordinator.checkpoints.RESERVE_BYTES", -SIZE_BYTES)
    fill(directory, left_bytes)
    reach(checkpointing, 10)
    assert "step 10 could not be written" in caplog.text
    assert "No space left on device" in caplog.text
    assert "free some space; the previous checkpoint is intact" in caplog.text
    newest = newest_verified(directory)
    assert newest is not None
    assert newest.manifest.step == 5
    assert [path.name for path in directory.iterdir() if path.name != FILLER] == ["step-00000005"]
    make_room(directory)
    reach(checkpointing, 11)
    assert stored_steps(directory) == [5, 11]
    assert [row.step for row in checkpoints(run.sessions)] == [11, 5]
