"""Deliveries of milestones to webhooks: each milestone is told once, and tried a bounded number of times.

An attempt is recorded in the table before it is made. So if the process is killed or the network fails, the next
process knows that the message may have arrived; where a chat does not recognize duplicates, it is not sent again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sqlalchemy.orm import Session

from coordinator.store.engine import Database
from coordinator.store.service_models import MilestoneNotice

MAX_ATTEMPTS = 8
FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 3600.0
NEWS_S = 86_400.0  # what was reached longer ago is no news: a webhook that is new is not told the whole history


class DeliveryOutcome(str, Enum):
    """The final outcome of a delivery; a delivery that has one is not tried again."""

    TOLD = "told"
    REFUSED = "refused"  # by the chat: its address or token is wrong
    UNKNOWN = "unknown"  # it may have arrived
    GIVEN_UP = "given up"  # after so many attempts
    LEFT_OUT = "left out"  # no news any more


class Todo(Enum):
    """The next action for a milestone at a webhook."""

    TELL = "tell"
    WAIT = "wait"
    NOTHING = "nothing"
    LEAVE_OUT = "leave out"
    CALL_UNKNOWN = "call unknown"


@dataclass(frozen=True)
class NoticeRow:
    """The progress of one milestone's delivery to one webhook; times in Unix seconds."""

    attempts: int
    begun_at: float | None  # an attempt whose outcome is not known
    next_at: float  # not before
    ended: str
    error: str


def decide(row: NoticeRow | None, reached_at: float, *, repeatable: bool, now: float) -> Todo:
    """Choose the next action for a milestone that was reached at `reached_at`. Pure."""
    if row is not None and row.ended:
        return Todo.NOTHING
    if row is not None and row.begun_at is not None and not repeatable:
        return Todo.CALL_UNKNOWN
    if row is None and reached_at < now - NEWS_S:
        return Todo.LEAVE_OUT
    if row is not None and now < row.next_at <= now + LONGEST_PAUSE_S:  # else a clock was set back
        return Todo.WAIT
    return Todo.TELL


def pause_s(attempts: int, asked_s: float | None) -> float:
    """Return the pause after so many failed attempts: at least as long as the chat asks for, an hour at most."""
    own = FIRST_PAUSE_S * 2.0 ** (attempts - 1)
    return min(LONGEST_PAUSE_S, max(own, asked_s or 0.0))


def find_notice(database: Database, milestone: str, webhook: str) -> NoticeRow | None:
    """Find the progress of a milestone's delivery to a webhook; None if it has never been tried."""
    with database() as session:
        row = session.get(MilestoneNotice, (milestone, webhook))
        return None if row is None else NoticeRow(row.attempts, row.begun_at, row.next_at, row.ended, row.error)


def begin_attempt(database: Database, milestone: str, webhook: str, now: float) -> int:
    """Record that an attempt begins, and return the number of attempts with this one."""

    def enter(session: Session) -> int:
        row = _get_or_add(session, milestone, webhook)
        row.attempts, row.begun_at = row.attempts + 1, now
        return row.attempts

    return database.transact(enter)


def end_attempt(database: Database, milestone: str, webhook: str, outcome: DeliveryOutcome, error: str = "") -> None:
    """Record the final outcome of a delivery."""

    def enter(session: Session) -> None:
        row = _get_or_add(session, milestone, webhook)
        row.begun_at, row.ended, row.error = None, outcome.value, error

    database.transact(enter)


def put_off(database: Database, milestone: str, webhook: str, error: str, next_at: float) -> None:
    """Record a failed attempt, after which the delivery is tried again at `next_at`."""

    def enter(session: Session) -> None:
        row = _get_or_add(session, milestone, webhook)
        row.begun_at, row.error, row.next_at = None, error, next_at

    database.transact(enter)


def _get_or_add(session: Session, milestone: str, webhook: str) -> MilestoneNotice:
    row = session.get(MilestoneNotice, (milestone, webhook))
    if row is None:
        row = MilestoneNotice(milestone=milestone, webhook=webhook, attempts=0, next_at=0.0, ended="", error="")
        session.add(row)
    return row
