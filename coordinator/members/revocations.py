"""The revocation list: each change is a row, and the id of the last row is the list's serial number.

Revoked devices stay on the list permanently, quarantined devices until the quarantine is lifted.
The list may shrink, but its serial number only grows; peers reject a list with a lower serial
number than their own. Functions that change the list run inside their callers' transactions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from auth.keys import AuthorityKey
from auth.tokens import RevocationList, issue_revocations
from coordinator.ledger.ledger import count_cut_off
from coordinator.store.engine import Database
from coordinator.store.locks import Lock, one_at_a_time
from coordinator.store.models import Device, Revocation
from coordinator.store.notify import Topic, tell

Change = Literal["revoked", "quarantined", "lifted"]


def shut_out(session: Session, device: Device, reason: str, now: float) -> bool:
    """Put a device on the revocation list permanently. Return False if it was already revoked."""
    _take_turn(session, device)
    if device.revoked_at is not None:
        return False
    if device.quarantined_at is None:
        count_cut_off(session, device, now)
    device.revoked_at, device.quarantined_at = now, None
    _add_change(session, device, "revoked", reason, "", now)
    return True


def put_in_quarantine(session: Session, device: Device, reason: str, actor: str, now: float) -> bool:
    """Put a device on the revocation list as quarantined. Return False if it was already listed."""
    _take_turn(session, device)
    if device.revoked_at is not None or device.quarantined_at is not None:
        return False
    device.quarantined_at = now
    count_cut_off(session, device, now)
    _add_change(session, device, "quarantined", reason, actor, now)
    return True


def lift_quarantine(session: Session, device: Device, actor: str, now: float) -> bool:
    """Take a quarantined device off the revocation list. Return False if it was not quarantined."""
    _take_turn(session, device)
    if device.quarantined_at is None:
        return False
    device.quarantined_at = None
    _add_change(session, device, "lifted", "", actor, now)
    return True


def _take_turn(session: Session, device: Device) -> None:
    """Lock the list until the end of the transaction, and reload the device's state.

    A quarantine therefore never follows a revocation, and serial numbers are committed in order: a
    list with serial number 6 must contain change 5.
    """
    one_at_a_time(session, Lock.REVOCATIONS)
    session.refresh(device, ["revoked_at", "quarantined_at"])


def _add_change(session: Session, device: Device, change: Change, reason: str, actor: str, now: float) -> None:
    """Add a change with an explicit id: ids from a sequence may be committed out of order."""
    row = Revocation(
        id=_newest(session) + 1,
        device_id=device.id,
        peer_id=device.peer_id,
        at=now,
        reason=reason,
        change=change,
        actor=actor,
    )
    session.add(row)
    session.flush()
    tell(session, Topic.REVOCATIONS)


def _newest(session: Session) -> int:
    return session.scalar(select(func.max(Revocation.id))) or 0


def _listed(session: Session, serial: int) -> frozenset[str]:
    """Return the libp2p peer IDs on the list with this serial number."""
    changes = select(Revocation.peer_id, Revocation.change).where(Revocation.id <= serial).order_by(Revocation.id)
    newest = {row.peer_id: row.change for row in session.execute(changes)}  # a device's revocation is its last change
    return frozenset(peer_id for peer_id, change in newest.items() if change != "lifted")


class SignedRevocations:
    """A cache of the signed revocation list, which is signed once per serial number and key."""

    def __init__(
        self, database: Database, authority: Callable[[], AuthorityKey], run: str, clock: Callable[[], float]
    ) -> None:
        self._database, self._authority, self._run, self._clock = database, authority, run, clock
        self._signed: tuple[int, AuthorityKey | None, str] = (-1, None, "")  # serial, signing key, JWT

    def jwt(self) -> str:
        """Return the current list as a JWT; cheap enough to call every second."""
        authority = self._authority()
        with self._database() as session:
            serial = _newest(session)
            if self._signed[:2] != (serial, authority):
                listed = RevocationList(self._run, serial, self._clock(), _listed(session, serial))
                self._signed = (serial, authority, issue_revocations(authority, listed))
        return self._signed[2]
