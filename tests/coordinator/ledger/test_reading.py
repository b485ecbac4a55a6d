"""Contributions of members: by their reports, by their days, and read in parts the same as read whole."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from coordinator.ledger.ledger import Ledger
from coordinator.ledger.reading import (
    Contribution,
    Hardware,
    data_wait_share,
    hardware_of,
    read_gifts,
    read_giving,
)
from coordinator.ledger.sessions import close_session, open_session
from coordinator.members.names import set_display_name
from coordinator.statistics.swarm_health import RoundHealth, read_health
from coordinator.store.engine import Database
from coordinator.web.state.snapshot import take_snapshot
from tests.support.clocks import Clock
from tests.support.crowds import touch
from tests.support.ledgers import confirm, deliver, record
from tests.support.reports import report
from tests.support.served_page import FakeRun

LATE_STEPS = 4
STEPS = 13


@pytest.fixture
def run(run: FakeRun, monkeypatch: pytest.MonkeyPatch) -> FakeRun:
    """A run of two members with more steps than are read each time."""
    monkeypatch.setattr("coordinator.ledger.reading.LATE_STEPS", LATE_STEPS)
    monkeypatch.setattr("coordinator.web.state.snapshot.LATE_STEPS", LATE_STEPS)
    monkeypatch.setattr("coordinator.ledger.reading.LITTLE_S", 1.0)  # a slow machine is no long run
    for name in ("ada", "grace"):
        run.add_member(name)
    run.add_steps([5.0] * STEPS)
    return run


def test_parts_come_to_the_whole(run: FakeRun) -> None:
    """Also when what is settled grows, and after a return to a checkpoint."""
    before = None
    for newest in (LATE_STEPS + 1, LATE_STEPS + 5, STEPS):
        with run.services.database() as session:
            before = read_giving(session, before, newest, 0.0, lambda: 0.0)
            assert before.gifts == read_gifts(session)
    assert before is not None
    assert before.settled_step == STEPS - LATE_STEPS
    run.services.ledger.roll_back(6)
    with run.services.database() as session:
        after = read_giving(session, before, 6, 0.0, lambda: 0.0)
        assert after.gifts == read_gifts(session)
    [gift] = {*after.by_member().values()}
    assert (gift.samples, gift.elapsed_s, gift.undone_s) == (6 * 51, 6 * 20.0, (STEPS - 6) * 20.0)


def test_what_takes_long_to_read_is_read_less_often(run: FakeRun) -> None:
    """For ten times as long as it took, what was read is good enough; what is quick is read each time."""
    times = iter((0.0, 2.0, 100.0, 100.5))
    with run.services.database() as session:
        slow = read_giving(session, None, 10, 1000.0, lambda: next(times))
        assert read_giving(session, slow, 20, 1019.0, lambda: next(times)) is slow
        quick = read_giving(session, slow, 20, 1021.0, lambda: next(times))
        assert quick is not slow
        assert quick.good_until == 0.0


def test_the_snapshot_says_what_the_ledger_says(run: FakeRun) -> None:
    """A snapshot that builds on another has the same contributions as one read anew."""
    first = take_snapshot(run.services, None)
    run.add_step(STEPS + 1, 4.0)
    second = take_snapshot(run.services, first)
    assert list(second.contributions) == run.services.ledger.contributions()
    assert second.steps_version == first.steps_version + 1
    assert take_snapshot(run.services, second).steps_version == second.steps_version


def test_members_are_summed_by_who_they_are(run: FakeRun) -> None:
    """Another name makes nobody's samples vanish."""
    before = take_snapshot(run.services, None)
    set_display_name(run.services.database, "ada", "countess")
    after = take_snapshot(run.services, before)
    assert {row.member: row.samples for row in after.contributions} == {
        {"ada": "countess"}.get(row.member, row.member): row.samples for row in before.contributions
    }


@pytest.mark.parametrize(
    ("said", "hardware"),
    [
        ("cuda:0, 2 cores", Hardware("gpu", 1)),
        ("cuda:0,1, 4 cores", Hardware("gpu", 2)),
        ("cuda (Tesla T4, 15 GiB)", Hardware("gpu", 1)),
        ("2 × cuda (Tesla T4, 15 GiB) + 1 × cuda (NVIDIA L4, 22 GiB), fp16", Hardware("gpu", 3)),
        ("cuda:" + ",".join(["1"] * 90), Hardware("gpu", 64)),
        ("tpu, 96 cores", Hardware("tpu", 1)),
        ("mps, 10 cores", Hardware("apple", 1)),
        ("cpu, 8 cores", Hardware("cpu", 1)),
        ("cpu", Hardware("cpu", 1)),
        ("", Hardware("other", 1)),
        ("<b>quantum</b>", Hardware("other", 1)),
        ("cudanot", Hardware("other", 1)),
    ],
)
def test_kinds_of_hardware(said: str, hardware: Hardware) -> None:
    """As agents say it, and whatever else a peer may say."""
    assert hardware_of(said) == hardware


def test_the_health_of_steps(run: FakeRun) -> None:
    """Which part of the batches was averaged in, how long that took, and what was lost to what."""
    device = run.devices["ada"]
    step = STEPS + 1
    run.keeper_says(step)
    lost = report(step, samples=0, loss=None, lost_samples=12, lost_reason="averaging failed")
    assert deliver(run.services.ledger, device, None, step, lost, time.time()).accepted
    with run.services.database() as session:
        health = read_health(session, run.services.ledger.steps(after=step - 2))
        assert read_health(session, []) == RoundHealth()
    assert health.steps == 2
    assert health.batch_share == pytest.approx(102 / 200)
    assert health.averaging_s == pytest.approx((0.1 + 0.1 + 0.5) / 3)
    assert health.lost_samples == {"averaging failed": 12}


@pytest.mark.usefixtures("members")
def test_contributions_add_up_by_member(ledger: Ledger, database: Database, clock: Clock) -> None:
    """A member's devices count together; only those heard of lately are online; the keeper is left out."""
    record(ledger, "ada-1", 1, samples=10, averaged_bytes=100)
    record(ledger, "ada-2", 1, samples=20, averaged_bytes=200)
    record(ledger, "bob-1", 1, samples=5)
    confirm(ledger, 1, ada_1=10, ada_2=20, bob_1=5)
    first = open_session(database, "ada-1", "cpu", "0.1", clock.now - 100)
    second = open_session(database, "ada-2", "cpu", "0.1", clock.now - 100)
    open_session(database, "keeper-1", "cpu", "0.1", clock.now)
    for stay, seen_at in ((first, clock.now - 1), (second, clock.now - 20)):
        touch(database, stay, step=1, own_samples=0, samples_per_second=4.0, state="training", now=seen_at)
    assert ledger.contributions() == [
        Contribution(
            "Ada",
            30,
            devices=2,
            online=1,
            last_seen_at=clock.now - 1,
            samples_per_second=4.0,
            elapsed_s=0.0,
            data_wait_s=0.0,
            averaged_bytes=300,
        ),
        Contribution(
            "Bob",
            5,
            devices=1,
            online=0,
            last_seen_at=None,
            samples_per_second=0.0,
            elapsed_s=0.0,
            data_wait_s=0.0,
            averaged_bytes=0,
        ),
    ]
    close_session(database, first, clock.now)
    assert ledger.contributions()[0].online == 0


@pytest.mark.usefixtures("members")
def test_who_only_averages_stands_behind_who_trains(ledger: Ledger) -> None:
    """Bytes are no samples: they order those who have as many of these, and move no step's loss."""
    record(ledger, "ada-1", 1, samples=1)
    record(ledger, "bob-1", 1, samples=0, loss=None, averaged_bytes=10**9)
    confirm(ledger, 1, ada_1=1)
    assert [(row.member, row.samples, row.averaged_bytes) for row in ledger.contributions()] == [
        ("Ada", 1, 0),
        ("Bob", 0, 10**9),
    ]
    [step] = ledger.steps()
    assert (step.samples, step.loss) == (1, 2.0)


@pytest.mark.usefixtures("members")
def test_many_sessions_do_not_multiply_samples(ledger: Ledger, database: Database, clock: Clock) -> None:
    """A device that reconnected often has still given what it gave, and is one device."""
    record(ledger, "ada-1", 1, samples=10)
    confirm(ledger, 1, ada_1=10)
    for second in range(5):
        open_session(database, "ada-1", "cpu", "0.1", clock.now - 10 + second)
    ada = ledger.contributions()[0]
    assert (ada.samples, ada.devices, ada.online) == (10, 2, 1)


@pytest.mark.usefixtures("members")
def test_waiting_for_data_is_a_share_of_the_time_trained(ledger: Ledger) -> None:
    """Over all members' steps that count; unknown before anybody has trained, never more than all of it."""
    assert data_wait_share(ledger.contributions()) is None
    record(ledger, "ada-1", 1, elapsed_s=4.0, data_wait_s=1.0)
    record(ledger, "bob-1", 1, elapsed_s=6.0, data_wait_s=0.5)
    ledger.roll_back(1)
    record(ledger, "bob-1", 2, elapsed_s=90.0, data_wait_s=90.0)  # undone
    assert data_wait_share(ledger.contributions()) == pytest.approx(0.15)
    ada, bob = ledger.contributions()[:2]
    assert (data_wait_share([ada]), data_wait_share([bob])) == (0.25, pytest.approx(0.5 / 6))
    assert data_wait_share([replace(ada, data_wait_s=9.0)]) == 1.0


@pytest.mark.usefixtures("members")
def test_standing_tells_a_member_its_rank(ledger: Ledger) -> None:
    """Rank counts those with more samples; a newcomer is last; equals share a rank."""
    confirm(ledger, 1, ada_1=5, bob_1=5)
    record(ledger, "bob-1", 1, samples=5)
    assert ledger.standing("Bob") == (5, 1, 2)
    assert ledger.standing("Ada") == (0, 2, 2)
    record(ledger, "ada-1", 1, samples=5)
    assert ledger.standing("Ada") == (5, 1, 2)
