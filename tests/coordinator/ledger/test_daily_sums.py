"""The daily sums equal the sums over the reports, and lost samples are counted by device, day and cause."""

from __future__ import annotations

import operator
from collections import defaultdict

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from sqlalchemy import delete, select

from coordinator.ledger.ledger import Ledger
from coordinator.ledger.sessions import open_session
from coordinator.members.revocations import lift_quarantine, put_in_quarantine, shut_out
from coordinator.store.engine import Database
from coordinator.store.ledger_models import day_of
from coordinator.store.models import Base, DailyShare, Device, LostSamples, Refusal, Report
from peer.reporting.messages import Lost
from tests.support.clocks import Clock
from tests.support.crowds import touch
from tests.support.ledgers import CONFIG, TARGET, deliver
from tests.support.receipts import receipt_by
from tests.support.reports import report

DAY = 86_400.0

Share = tuple[str, int, int, int, int, int, int, float]


@pytest.fixture
def ledger(database: Database, members: None) -> Ledger:
    """The ledger on the tenth day."""
    return Ledger(database, CONFIG, Clock(now=10 * DAY))


def shares(database: Database) -> list[Share]:
    """Device, day, reports, claimed, counted, pending, undone, elapsed."""
    with database() as session:
        found = session.scalars(select(DailyShare).order_by(DailyShare.device_id, DailyShare.day))
        rows = [(r.device_id, r.day, r.reports, r.claimed, r.counted, r.pending, r.undone, r.elapsed_s) for r in found]
    return [row for row in rows if any(row[2:])]


def test_a_report_is_pending_until_a_receipt_confirms_it(ledger: Ledger, database: Database) -> None:
    """Then what is confirmed counts; what is denied was claimed only."""
    deliver(ledger, "ada-1", None, 1, report(1, samples=30, elapsed_s=4.0), 9.5 * DAY)
    assert shares(database) == [("ada-1", 9, 1, 30, 0, 30, 0, 4.0)]
    ledger.take_receipt("keeper-1", 1, receipt_by("keeper-1", 1, {"ada-1": 20}, run=CONFIG.run.name))
    assert shares(database) == [("ada-1", 9, 1, 30, 20, 0, 0, 4.0)]


def test_undone_steps_count_nowhere(ledger: Ledger, database: Database) -> None:
    """A return to a checkpoint takes what was counted and what was pending, at once and for reports still to come."""
    for seq in (1, 2):
        deliver(ledger, "ada-1", None, seq, report(seq, samples=30, elapsed_s=4.0), 9.5 * DAY)
    ledger.take_receipt("keeper-1", 2, receipt_by("keeper-1", 2, {"ada-1": 30}, run=CONFIG.run.name))
    ledger.roll_back(1)
    assert shares(database) == [("ada-1", 9, 1, 30, 0, 30, 30, 4.0)]
    deliver(ledger, "ada-2", None, 1, report(2, samples=7), 9.5 * DAY)
    assert shares(database)[1] == ("ada-2", 9, 0, 0, 0, 0, 7, 0.0)


_acts = st.lists(
    st.tuples(
        st.sampled_from(["ada-1", "ada-2", "bob-1"]),
        st.integers(1, 3),
        st.integers(0, 50),
        st.sampled_from(["report", "receipt", "return"]),
    ),
    max_size=12,
)


@given(_acts)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_sums_are_always_those_over_the_reports(
    ledger: Ledger, database: Database, acts: list[tuple[str, int, int, str]]
) -> None:
    """Whatever is reported, confirmed and undone in any order."""
    with database.begin() as session:
        for table in reversed(Base.metadata.sorted_tables):
            if table.name not in {"members", "devices"}:
                session.execute(delete(table))
    for seq, (device, step, samples, act) in enumerate(acts, start=1):
        era = ledger.current_era()
        if act == "report":
            deliver(
                ledger, device, None, seq, report(step, era=era, samples=samples, elapsed_s=2.0), (8 + step / 2) * DAY
            )
        elif act == "receipt":
            receipt = receipt_by("keeper-1", step, {device: max(1, samples)}, era=era, run=CONFIG.run.name)
            ledger.take_receipt("keeper-1", step, receipt)
        else:
            ledger.roll_back(step)
    assert shares(database) == sums_over_reports(database)


def sums_over_reports(database: Database) -> list[Share]:
    """What `shares` should be."""
    sums: dict[tuple[str, int], list[float]] = defaultdict(lambda: [0] * 6)
    with database() as session:
        for row in session.scalars(select(Report)):
            amounts = (0, 0, 0, 0, row.samples, 0.0)
            if not row.superseded:
                pending = row.samples if row.counted is None else 0
                amounts = (1, row.samples, row.counted or 0, pending, 0, row.elapsed_s)
            of_day = sums[row.device_id, day_of(row.completed_at)]
            of_day[:] = map(operator.add, of_day, amounts)
    return [(*key, *amounts) for key, amounts in sorted(sums.items()) if any(amounts)]


pytestmark = pytest.mark.usefixtures("members")

Row = tuple[str, int, str, int, int, int]


@pytest.fixture
def clock() -> Clock:
    return Clock(now=10 * DAY)


def rows(database: Database) -> list[Row]:
    """Device, day, cause, samples, times, last step."""
    with database() as session:
        found = session.scalars(select(LostSamples).order_by(LostSamples.device_id, LostSamples.day, LostSamples.cause))
        return [(row.device_id, row.day, row.cause, row.samples, row.times, row.last_step) for row in found]


def test_what_reports_tell_adds_up_by_day_and_cause(ledger: Ledger, database: Database) -> None:
    """Each cause of each report counts once, on the day of its step, and a repeated report adds nothing."""
    for seq, at in ((1, 9.5), (2, 9.6), (2, 9.6), (3, 9.9)):
        deliver(ledger, "ada-1", None, seq, report(seq, lost_samples=5, lost={"late": 2, "non-finite": 3}), at * DAY)
    deliver(ledger, "ada-1", None, 4, report(4, lost_samples=1, lost={"late": 1}), 8.5 * DAY)
    assert rows(database) == [
        ("ada-1", 8, "late", 1, 1, 4),
        ("ada-1", 9, "late", 6, 3, 3),
        ("ada-1", 9, "non-finite", 9, 3, 3),
    ]


def test_losses_beside_reports_are_counted_once(ledger: Ledger, database: Database) -> None:
    """A number that comes again, or an older one, was counted; a later one is new."""
    for seq in (7, 7, 6, 8):
        assert ledger.record_lost("ada-1", seq, Lost(3, {"left": 10}), 9.5 * DAY) == ""
    assert rows(database) == [("ada-1", 9, "left", 20, 2, 3)]


def test_a_loss_is_on_no_day_that_has_not_come(ledger: Ledger, database: Database) -> None:
    """A clock that is ahead, or long before the device joined, moves nothing beyond its stay."""
    ledger.record_lost("ada-1", 1, Lost(3, {"left": 1}), 99 * DAY)
    ledger.record_lost("ada-1", 2, Lost(3, {"left": 1}), -99 * DAY)
    assert [row[1] for row in rows(database)] == [0, 10]


def test_impossible_losses_are_refused_for_good(ledger: Ledger, database: Database) -> None:
    """More than any device can have computed is not counted, and the operator sees why."""
    reason = ledger.record_lost("ada-1", 1, Lost(3, {"left": 100 * TARGET + 1}), 9.5 * DAY)
    assert "10001 lost samples" in reason
    assert rows(database) == []
    with database() as session:
        assert session.scalars(select(Refusal.reason)).all() == [reason]


def test_a_refused_report_is_a_loss(ledger: Ledger, database: Database) -> None:
    """What it claims counts as lost as far as one device can have computed it."""
    assert not deliver(ledger, "ada-1", None, 1, report(1, samples=10**6), 9.5 * DAY).accepted
    assert rows(database) == [("ada-1", 10, "refused", 1000, 1, 1)]


@pytest.mark.parametrize("by", ["quarantine", "revocation"])
def test_who_is_cut_off_loses_what_it_held(database: Database, by: str) -> None:
    """The samples of its last word count as lost by quarantine, once, whether it is lifted or becomes final."""
    stay = open_session(database, "ada-1", "cpu", "1", 10 * DAY)
    touch(database, stay, step=4, own_samples=30, samples_per_second=1.0, state="training", now=10 * DAY)
    with database.begin() as session:
        device = session.get_one(Device, "ada-1")
        if by == "quarantine":
            assert put_in_quarantine(session, device, "", "", 10 * DAY)
            assert not put_in_quarantine(session, device, "", "", 10 * DAY)
        assert shut_out(session, device, "", 10 * DAY)
        assert not lift_quarantine(session, device, "", 10 * DAY)
    assert rows(database) == [("ada-1", 10, "quarantine", 30, 1, 5)]


def test_a_device_cut_off_while_it_is_away_loses_nothing(database: Database) -> None:
    """There is nothing it can have held."""
    with database.begin() as session:
        put_in_quarantine(session, session.get_one(Device, "ada-1"), "", "", 10 * DAY)
    assert rows(database) == []
