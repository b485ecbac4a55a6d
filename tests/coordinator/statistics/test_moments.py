"""What is told of each step of a run: who was there, who averaged with whom, what failed."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import event

from coordinator.ledger.sessions import close_session, open_session
from coordinator.members.names import set_display_name
from coordinator.statistics.moments import CHUNK_STEPS, Group, Share, chunk_of, groups_of, read_chunk
from coordinator.store.refusals import add_refusal
from peer.reporting.messages import StepReport
from tests.support.clocks import Clock
from tests.support.ledgers import deliver
from tests.support.served_page import FakeRun

START, DAY = 1_800_000_000.0, 86_400.0


@pytest.fixture
def run(run: FakeRun) -> FakeRun:
    """A run with two members."""
    for name in ("ada", "grace"):
        run.add_member(name)
    return run


def add_report(run: FakeRun, name: str, step: int, **others: object) -> None:
    """What a member's device says of a step."""
    known = {
        "samples": 50,
        "loss": 5.0,
        "group_size": 3,
        "group_samples": 100,
        "averaging_s": 1.0,
        "lost_samples": 0,
        "lost_reason": "",
        **others,
    }
    report = StepReport(step=step, mlm_loss=None, sop_loss=None, samples_per_second=2.5, **known)  # type: ignore[arg-type]
    era = run.services.ledger.current_era()
    assert deliver(
        run.services.ledger, run.devices[name], None, 1000 * era + step, replace(report, era=era), run.services.clock()
    ).accepted


def test_a_step_tells_who_gave_how_much(run: FakeRun, clock: Clock) -> None:
    """With its loss, its time, and the group that averaged; under the names that the public may know."""
    set_display_name(run.services.database, "grace", "Night Owl")
    run.keeper_says(1)
    add_report(run, "ada", 1, samples=30, averaging_s=2.0, group_samples=None)
    add_report(run, "grace", 1, samples=70, loss=6.0)
    chunk = read_chunk(run.services.database, 0)
    (moment,) = chunk.moments
    names = [device.member for device in chunk.devices]
    assert [(names[device], samples) for device, samples in moment.shares] == [("Night Owl", 70), ("ada", 30)]
    assert (moment.step, moment.samples, moment.completed_at, moment.era) == (1, 100, START, 0)
    assert moment.loss == pytest.approx(5.7)
    (group,) = moment.groups
    assert (group.size, group.samples, group.averaging_s) == (3, 100, 2.0)
    assert sorted(group.devices) == [0, 1]
    assert {device.hardware for device in chunk.devices} == {"cpu"}


def test_what_failed_is_named(run: FakeRun) -> None:
    """Samples that came to nothing, with whose and why."""
    run.keeper_says(2)
    add_report(run, "ada", 2, lost_samples=17, lost_reason="averaging failed")
    chunk = read_chunk(run.services.database, 0)
    (lost,) = chunk.moments[0].lost
    assert (chunk.devices[lost.device].member, lost.samples, lost.reason) == ("ada", 17, "averaging failed")


def test_who_was_online_when_a_step_was_completed(run: FakeRun, clock: Clock) -> None:
    """Those whose session had begun and not ended, and who took part, whether their session was open or not."""
    database = run.services.database
    for step, left in ((1, False), (2, False), (3, True)):
        clock.now = START + 100 * step
        if step == 2:
            stay = open_session(database, run.devices["grace"], "Tesla T4", "0.1.0", clock.now - 50)
            assert not left
        if left:
            close_session(database, stay, clock.now - 50)
        run.keeper_says(step)
        add_report(run, "ada", step)
    chunk = read_chunk(database, 0)
    names = [device.member for device in chunk.devices]
    assert [sorted(names[device] for device in moment.online) for moment in chunk.moments] == [
        ["ada"],
        ["ada", "grace"],
        ["ada"],
    ]
    assert "Tesla T4" in {device.hardware for device in chunk.devices}


def test_a_stretch_costs_no_more_where_others_came_and_went_before_it(run: FakeRun, clock: Clock) -> None:
    """The database does the same work: it looks at stays of the devices that the stretch speaks of alone."""
    database = run.services.database
    clock.now = START + DAY
    run.keeper_says(1)
    add_report(run, "ada", 1)
    before = work_of(run, lambda: read_chunk(database, 0))
    for number in range(100):
        close_session(database, open_session(database, run.devices["grace"], "cpu", "", START + number), START + number)
    assert work_of(run, lambda: read_chunk(database, 0)) == before


def work_of(run: FakeRun, action: Callable[[], object]) -> int:
    """How many instructions SQLite's machine runs for it."""
    engine, count = run.services.database.engine, itertools.count()

    def watch(connection: sqlite3.Connection, *_: object) -> None:
        connection.set_progress_handler(lambda: next(count) and 0, 1)

    event.listen(engine, "checkout", watch)
    try:
        action()
    finally:
        event.remove(engine, "checkout", watch)
        engine.dispose()  # with the connections that are watched
    return next(count)


def test_refusals_belong_to_the_step_that_they_led_to(run: FakeRun, clock: Clock) -> None:
    """Those since the step before, by kind; not what has nothing to do with training."""
    for step in (1, 2):
        clock.now = START + 100 * step
        run.keeper_says(step)
        add_report(run, "ada", step)
    with run.services.database.begin() as session:
        for at, kind in ((150, "join"), (200, "report"), (180, "report"), (150, "login"), (90, "join"), (250, "join")):
            add_refusal(session, kind, "x", "y", None, START + at)  # type: ignore[arg-type]
    assert [moment.refused for moment in read_chunk(run.services.database, 0).moments] == [{}, {"join": 1, "report": 2}]


def test_what_was_undone_and_taken_again(run: FakeRun) -> None:
    """The step that counts is told, with the return and how many had taken it before."""
    for step in (1, 2):
        run.keeper_says(step)
        add_report(run, "ada", step)
        add_report(run, "grace", step)
    run.services.ledger.roll_back(1)
    run.keeper_says(2)
    add_report(run, "ada", 2, samples=40)
    first, second = read_chunk(run.services.database, 0).moments
    assert (first.returned, first.undone, first.era) == (True, 0, 0)
    assert (second.returned, second.undone, second.era, second.shares) == (False, 2, 1, ((0, 40),))


def test_a_run_is_cut_into_stretches(run: FakeRun) -> None:
    """Each step lies in one of them; before the first step, and beyond the last, there is nothing."""
    assert read_chunk(run.services.database, 0).moments == ()
    for step in (CHUNK_STEPS, CHUNK_STEPS + 1):
        run.keeper_says(step)
        add_report(run, "ada", step)
    found = [[moment.step for moment in read_chunk(run.services.database, number).moments] for number in range(3)]
    assert found == [[100], [101], []]
    assert [chunk_of(step) for step in (1, 100, 101)] == [0, 0, 1]


def test_groups_are_told_apart_by_size_and_samples() -> None:
    """Who could not see the group's samples belongs to the first of its size; who averaged with nobody is in none."""

    def share(device: int, size: int, samples: int | None, took: float = 1.0) -> Share:
        return Share(device, 10, size, samples, took, 0, "")

    shares = [share(0, 3, 60), share(1, 3, 40, 2.0), share(2, 3, None), share(3, 5, 90), share(4, 0, None)]
    assert groups_of([*shares, share(5, 2, None)]) == (
        Group(5, 90, 1.0, (3,)),
        Group(3, 60, 1.0, (0, 2)),
        Group(3, 40, 2.0, (1,)),
        Group(2, None, 1.0, (5,)),
    )
    assert groups_of([]) == ()
