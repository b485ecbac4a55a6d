"""The recorded run's history is one that the service itself could have written, and goes on when it is to."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from sqlalchemy import func, select

from benchmarks.coordinator.recorded_live import LiveRun
from benchmarks.coordinator.recorded_rows import invite_code
from benchmarks.coordinator.recorded_run import QUICK, history_of, record
from benchmarks.coordinator.recorded_stays import HOSTILE_NAME
from benchmarks.coordinator.recorded_steps import TARGET
from coordinator.context.services import RunServices, open_run_services
from coordinator.members.join_page import invite_facts
from coordinator.members.quarantine import quarantines
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
    assert snapshot.era == 1
    assert len(snapshot.contributions) == QUICK.members
    assert HOSTILE_NAME in {row.member for row in snapshot.contributions}
    assert len(snapshot.online) >= 3
    assert snapshot.checkpoints
    assert len(snapshot.validations) > len(snapshot.checkpoints)
    assert not snapshot.stale
    [row] = quarantines(services.database)
    assert (row.actor, len(row.words)) == ("run:members", 3)
    assert invite_facts(services.database, invite_code(QUICK.members), NOW).state == "open"


def test_steps_are_the_sums_of_their_reports(services: RunServices) -> None:
    """What the table of steps says is what the reports come to, as when the service counts them."""
    counted = func.sum(func.coalesce(Report.counted, Report.samples))
    with services.database() as session:
        sums = dict(session.execute(select(Report.step, counted).where(~Report.superseded).group_by(Report.step)).all())
        stays = session.scalar(select(func.count()).select_from(DeviceSession))
    assert {row.step: row.samples for row in services.ledger.steps()} == sums
    assert stays == QUICK.sessions


def test_it_is_the_same_each_time() -> None:
    """The same options make the same history, whenever it ends."""
    first, second = history_of(QUICK, NOW), history_of(QUICK, NOW + 500.0)
    assert [step.loss for step in first.steps] == [step.loss for step in second.steps]
    assert first.steps[-1].completed_at == pytest.approx(NOW)
    assert second.stays[0].started_at - first.stays[0].started_at == pytest.approx(500.0)


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
