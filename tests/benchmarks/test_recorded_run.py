"""The recorded run's history is one that the service itself could have written, and goes on when it is to."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, select

from benchmarks.coordinator.recorded_run import HOSTILE_NAME, QUICK, STILL_THERE, TARGET, LiveRun, Recording, record
from coordinator.context.services import RunServices, open_run_services
from coordinator.store.models import DeviceSession, Report
from coordinator.web.state.snapshot import take_snapshot

NOW = 1_800_000_000.0


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunServices]:
    """A small recorded run, opened."""
    run = record(tmp_path_factory.mktemp("recorded") / "run", QUICK, NOW)
    with open_run_services(run, lambda: NOW + 1) as opened:
        yield opened


def test_the_dashboard_reads_it(services: RunServices) -> None:
    """All steps, members, some of them here, checkpoints and what held-out text says of them."""
    snapshot = take_snapshot(services, None)
    assert [row.step for row in snapshot.steps] == list(range(1, QUICK.steps + 1))
    assert snapshot.steps[-1].completed_at == NOW
    assert len(snapshot.contributions) == QUICK.members
    assert HOSTILE_NAME in {row.member for row in snapshot.contributions}
    assert len(snapshot.online) == STILL_THERE
    assert snapshot.checkpoints
    assert len(snapshot.validations) > len(snapshot.checkpoints)
    assert not snapshot.stale


def test_steps_are_the_sums_of_their_reports(services: RunServices) -> None:
    """What the table of steps says is what the reports come to, as when the service counts them."""
    counted = func.sum(func.coalesce(Report.counted, Report.samples))
    with services.database() as session:
        sums = dict(session.execute(select(Report.step, counted).group_by(Report.step)).all())
        stays = session.scalar(select(func.count()).select_from(DeviceSession))
    assert {row.step: row.samples for row in services.ledger.steps()} == sums
    assert stays == QUICK.sessions


def test_it_is_the_same_each_time(tmp_path: Path) -> None:
    """The same options make the same history, whenever it ends."""
    losses = []
    for name, at in (("first", NOW), ("second", NOW + 500.0)):
        with open_run_services(record(tmp_path / name, Recording(2, 9, 40), at), lambda: NOW) as opened:
            losses.append([(row.samples, row.loss) for row in opened.ledger.steps()])
    assert losses[0] == losses[1]


def test_it_goes_on(services: RunServices) -> None:
    """A live run completes steps of those who are here, and keeps them online."""
    live = LiveRun(services.database, random.Random(0))
    live.complete_step(NOW + 2)
    live.say(0.25, 30.0, NOW + 2)
    snapshot = take_snapshot(services, None)
    assert snapshot.steps[-1].step == QUICK.steps + 1
    assert snapshot.swarm is not None
    assert snapshot.swarm.samples_accumulated == TARGET // 4
    assert {session.last_seen_at for session in snapshot.online} == {NOW + 2}
