"""The history of a run that a rehearsal made: its sessions, reports and receipts in a real store, and their tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from coordinator.ledger.sessions import close_session, online_sessions, open_session
from coordinator.statistics.run_tables import TableName, write_parquet
from peer.rehearsal.forecast.report import ModelValues
from peer.rehearsal.scenario import KEEPER, HomeLine, Rehearsed, Scenario, Visit
from peer.rehearsal.swarm import rehearse
from peer.rehearsal.world import TakenStep, UndoneSteps
from peer.reporting.messages import StepReport
from tests.support.clocks import Clock
from tests.support.crowds import touch
from tests.support.ledgers import deliver
from tests.support.receipts import keeper_confirms
from tests.support.served_page import FakeRun, fake_run

TABLES: tuple[TableName, ...] = ("steps", "sessions", "contributions")
VALUES = ModelValues(1_000_000, ((1_000_000,),))
NAMES = ("ada", "grace", "joan")


def past_swarm(duration_s: float = 300.0) -> Scenario:
    """Three volunteers on lines of their own; the second leaves and comes back, nobody can connect to the third."""
    lines = [HomeLine(up_mbit_per_second=up, down_mbit_per_second=up, latency_s=0.0) for up in (40, 30, 20)]
    away = (Visit(begin_s=5.0, end_s=160.0), Visit(begin_s=240.0))
    return Scenario(
        duration_s=duration_s,
        parameters=VALUES.parameters,
        start_s=10.0,
        keeper=HomeLine(up_mbit_per_second=40, down_mbit_per_second=40, latency_s=0.0),
        devices=(
            Rehearsed(name="ada", line=lines[0], samples_per_second=3.0),
            Rehearsed(name="grace", line=lines[1], samples_per_second=2.0, visits=away),
            Rehearsed(name="joan", line=lines[2], samples_per_second=1.0, is_reachable=False),
        ),
    )


@contextmanager
def past_run(folder: Path, scenario: Scenario) -> Iterator[FakeRun]:
    """A run in whose store the scenario, rehearsed with one seed, has happened."""
    clock = Clock()
    with fake_run(folder, clock) as run:
        for name in NAMES:
            run.add_member(name)
        for session in online_sessions(run.services.database, clock.now):
            close_session(run.services.database, session.session_id, clock.now)
        _PastEvent(run, clock, scenario).happen()
        yield run


class _PastEvent:
    """Arrivals, departures and reports of a rehearsal, as they reach a run's store."""

    def __init__(self, run: FakeRun, clock: Clock, scenario: Scenario) -> None:
        self._run, self._clock, self._scenario, self._begin = run, clock, scenario, clock.now
        self._taken: list[TakenStep] = []
        self._rehearsed = rehearse(run.directory.config, scenario, 7, watch=self._keep)
        self._sessions: dict[str, str] = {}  # device -> its newest
        self._reported: dict[str, float] = {}  # device -> time of its newest report, or of its begin

    def happen(self) -> None:
        """Let all happen in its order; those who are there at the end have just been heard of."""
        acts = [(step.at_s, partial(self._report, step)) for step in self._taken if step.name != KEEPER]
        for device in self._scenario.devices:
            for visit in device.visits:
                acts.append((visit.begin_s, partial(self._come, device.name)))
                acts += [] if visit.end_s is None else [(visit.end_s, partial(self._go, device.name))]
        for at_s, act in sorted(acts, key=lambda each: each[0]):
            self._clock.now = self._begin + at_s
            act()
        services, now = self._run.services, self._clock.now
        for session in self._sessions.values():
            said = {"step": 1, "own_samples": 0, "samples_per_second": 1.0, "state": "training"}
            touch(services.database, session, now=now, **said)
        for step in self._rehearsed.steps:
            name = self._run.directory.config.run.name
            keeper_confirms(services.database, services.membership, services.ledger, name, step.step)

    def _keep(self, taken: TakenStep | UndoneSteps) -> None:
        if isinstance(taken, TakenStep):
            self._taken.append(taken)

    def _come(self, name: str) -> None:
        device, now = self._run.devices[name], self._clock.now
        self._sessions[name] = open_session(self._run.services.database, device, "cpu", "0.1.0", now)
        joined = [told.at_s for told in self._rehearsed.trace if (told.who, told.what) == (name, "joined")]
        self._reported[name] = min(at_s for at_s in joined if at_s >= now - self._begin)

    def _go(self, name: str) -> None:
        close_session(self._run.services.database, self._sessions[name], self._clock.now)

    def _report(self, step: TakenStep) -> None:
        self._run.keeper_says(step.step)
        elapsed_s, self._reported[step.name] = step.at_s - self._reported[step.name], step.at_s
        words = _report_of(step, elapsed_s)
        device = self._run.devices[step.name]
        assert deliver(self._run.services.ledger, device, None, step.step, words, self._clock.now).accepted


def _report_of(step: TakenStep, elapsed_s: float) -> StepReport:
    """The report of a step as its peer sends it."""
    return StepReport(
        step=step.step,
        samples=step.samples,
        loss=5.0,
        mlm_loss=None,
        sop_loss=None,
        group_size=len(step.group.peers),
        group_samples=step.group.samples,
        averaging_s=step.group.waited_s + step.group.seconds,
        samples_per_second=step.samples / elapsed_s,
        elapsed_s=elapsed_s,
        averaged_bytes=round(step.group.averaged_bytes),
    )


def write_tables(run: FakeRun, folder: Path) -> Path:
    """Write the run's history as the dashboard offers it."""
    folder.mkdir()
    for table in TABLES:
        with (folder / f"{table}.parquet").open("wb") as file:
            write_parquet(run.services.database, table, file)
    return folder
