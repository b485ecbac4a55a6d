"""Samples that are in no step, by device, day and cause."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from coordinator.ledger import Ledger
from coordinator.presence import open_session
from coordinator.revocations import lift_quarantine, put_in_quarantine, shut_out
from coordinator.store.engine import Sessions
from coordinator.store.models import Device, LostSamples, Refusal
from peer.lost_causes import Lost
from tests.support.clocks import Clock
from tests.support.crowds import touch
from tests.support.ledgers import TARGET
from tests.support.reports import report

pytestmark = pytest.mark.usefixtures("members")
DAY = 86_400.0
Row = tuple[str, int, str, int, int, int]


@pytest.fixture
def clock() -> Clock:
    return Clock(now=10 * DAY)


def rows(sessions: Sessions) -> list[Row]:
    """Device, day, cause, samples, times, last step."""
    with sessions() as session:
        found = session.scalars(select(LostSamples).order_by(LostSamples.device_id, LostSamples.day, LostSamples.cause))
        return [(row.device_id, row.day, row.cause, row.samples, row.times, row.last_step) for row in found]


def test_what_reports_tell_adds_up_by_day_and_cause(ledger: Ledger, sessions: Sessions) -> None:
    """Each cause of each report counts once, on the day of its step, and a repeated report adds nothing."""
    for seq, at in ((1, 9.5), (2, 9.6), (2, 9.6), (3, 9.9)):
        ledger.record("ada-1", None, seq, 0, report(seq, lost_samples=5, lost={"late": 2, "non-finite": 3}), at * DAY)
    ledger.record("ada-1", None, 4, 0, report(4, lost_samples=1, lost={"late": 1}), 8.5 * DAY)
    assert rows(sessions) == [
        ("ada-1", 8, "late", 1, 1, 4),
        ("ada-1", 9, "late", 6, 3, 3),
        ("ada-1", 9, "non-finite", 9, 3, 3),
    ]


def test_losses_beside_reports_are_counted_once(ledger: Ledger, sessions: Sessions) -> None:
    """A number that comes again, or an older one, was counted; a later one is new."""
    for seq in (7, 7, 6, 8):
        assert ledger.record_lost("ada-1", seq, Lost(3, {"left": 10}), 9.5 * DAY) == ""
    assert rows(sessions) == [("ada-1", 9, "left", 20, 2, 3)]


def test_a_loss_is_on_no_day_that_has_not_come(ledger: Ledger, sessions: Sessions) -> None:
    """A clock that is ahead, or long before the device joined, moves nothing beyond its stay."""
    ledger.record_lost("ada-1", 1, Lost(3, {"left": 1}), 99 * DAY)
    ledger.record_lost("ada-1", 2, Lost(3, {"left": 1}), -99 * DAY)
    assert [row[1] for row in rows(sessions)] == [0, 10]


def test_impossible_losses_are_refused_for_good(ledger: Ledger, sessions: Sessions) -> None:
    """More than any device can have computed is not counted, and the operator sees why."""
    reason = ledger.record_lost("ada-1", 1, Lost(3, {"left": 100 * TARGET + 1}), 9.5 * DAY)
    assert "10001 lost samples" in reason
    assert rows(sessions) == []
    with sessions() as session:
        assert session.scalars(select(Refusal.reason)).all() == [reason]


def test_a_refused_report_is_a_loss(ledger: Ledger, sessions: Sessions) -> None:
    """What it claims counts as lost as far as one device can have computed it."""
    assert not ledger.record("ada-1", None, 1, 0, report(1, samples=10**6), 9.5 * DAY).accepted
    assert rows(sessions) == [("ada-1", 10, "refused", 1000, 1, 1)]


@pytest.mark.parametrize("by", ["quarantine", "revocation"])
def test_who_is_cut_off_loses_what_it_held(sessions: Sessions, by: str) -> None:
    """The samples of its last word count as lost by quarantine, once, whether it is lifted or becomes final."""
    stay = open_session(sessions, "ada-1", "cpu", "1", 10 * DAY)
    touch(sessions, stay, step=4, own_samples=30, samples_per_second=1.0, state="training", now=10 * DAY)
    with sessions.begin() as session:
        device = session.get_one(Device, "ada-1")
        if by == "quarantine":
            assert put_in_quarantine(session, device, "", "", 10 * DAY)
            assert not put_in_quarantine(session, device, "", "", 10 * DAY)
        assert shut_out(session, device, "", 10 * DAY)
        assert not lift_quarantine(session, device, "", 10 * DAY)
    assert rows(sessions) == [("ada-1", 10, "quarantine", 30, 1, 5)]


def test_a_device_cut_off_while_it_is_away_loses_nothing(sessions: Sessions) -> None:
    """There is nothing it can have held."""
    with sessions.begin() as session:
        put_in_quarantine(session, session.get_one(Device, "ada-1"), "", "", 10 * DAY)
    assert rows(sessions) == []
