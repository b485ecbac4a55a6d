"""A disk that is full: when a checkpoint is due, and when the database is written."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy.exc import DBAPIError

from auth.errors import TokenError
from auth.keys import DeviceKey
from coordinator.backup.database import sqlite_address
from coordinator.checkpoints.manifest import newest_verified, stored_steps
from coordinator.checkpoints.writing import RESERVE_BYTES
from coordinator.context.open_run import OpenRun, open_run
from coordinator.ledger.recorded_checkpoints import checkpoints
from coordinator.members.membership import Membership
from tests.support.control_plane import a_report, joined, serving
from tests.support.raw_sessions import greeted
from tests.support.small_disks import FILLER, fill, make_room, small_disk
from tests.support.small_run import make_small_run
from tests.support.standing_swarm import checkpointing_of, reach
from tests.support.waiting import eventually

SIZE_BYTES = 2 * RESERVE_BYTES
DATABASE_BYTES = 8 << 20


@pytest.fixture
def run(tmp_path: Path) -> Iterator[OpenRun]:
    """A run whose checkpoints lie on a small disk of their own."""
    directory = make_small_run(tmp_path)
    with small_disk(directory.checkpoints_dir, SIZE_BYTES), open_run(directory.path) as opened:
        yield opened


@pytest.mark.parametrize("left_bytes", [RESERVE_BYTES // 2, 100_000, 0])
def test_a_full_disk_is_told_and_harms_nothing(
    run: OpenRun, left_bytes: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log says what to do, the old checkpoint stays, and the next one is written when there is space again."""
    directory, checkpointing = run.directory.checkpoints_dir, checkpointing_of(run)
    reach(checkpointing, 5)
    if left_bytes < RESERVE_BYTES // 2:  # filled up after the look at the free space: the write itself fails
        monkeypatch.setattr("coordinator.checkpoints.writing.RESERVE_BYTES", -SIZE_BYTES)
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
    assert [row.step for row in checkpoints(run.database)] == [11, 5]


def fill_database(disk: Path, membership: Membership) -> None:
    """Fill the disk and the room that the database's own files still have."""
    fill(disk, 0)
    with suppress(DBAPIError):
        for number in itertools.count():
            membership.invite(f"member {number}")


def test_a_checkpoint_is_written_while_the_database_is_full(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log says what to do; the next one is recorded when there is space again."""
    disk = tmp_path / "disk"
    disk.mkdir()
    with small_disk(disk, DATABASE_BYTES):
        directory = make_small_run(tmp_path, database_url=sqlite_address(disk / "run.db"))
        with open_run(directory.path) as run:
            checkpointing = checkpointing_of(run)
            fill_database(disk, run.membership)
            reach(checkpointing, 5)
            assert "The disk of the run's database is full" in caplog.text
            assert "Traceback" not in caplog.text
            assert stored_steps(directory.checkpoints_dir) == [5]
            make_room(disk)
            reach(checkpointing, 10)
            assert [row.step for row in checkpoints(run.database)] == [10]


async def test_a_service_goes_on_when_the_disk_has_room_again(tmp_path: Path) -> None:
    """Meanwhile it reads, and refuses by the same words; what a device reports comes again and counts once."""
    disk = tmp_path / "disk"
    disk.mkdir()
    with small_disk(disk, DATABASE_BYTES):
        async with serving(disk) as coordinator, joined(coordinator, tmp_path) as ada:
            services = coordinator.services
            fill_database(disk, services.membership)
            with pytest.raises(TokenError):
                await greeted(ada, DeviceKey.load_or_create(tmp_path / "stranger.key"))
            ada.outbox.put(a_report(1), completed_at=time.time())
            ada.start()
            assert [row.name for row in services.membership.members()][:1] == ["Ada"]
            make_room(disk)
            await eventually("the report of step 1 is in the ledger", lambda: services.ledger.last_step() == 1)
            await ada.leave()
