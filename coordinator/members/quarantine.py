"""Quarantine of devices: suspicions reported by peers, automatic decisions, and manual quarantine.

A quarantine works like a revocation, but can be lifted. Devices report suspicious peers, and the
coordinator stores each report with the reporting member. Enough reports lead to a quarantine.

The keeper belongs to the operator, so its reports alone are sufficient. Members' reports must still
be sufficient if any one member's reports are removed, so a single member, even with many devices,
cannot get a device quarantined. Reports of one kind within `INCIDENT_S` count as one strike. Peers
report only actions that no honest peer performs. The keeper is never quarantined.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session, aliased

from auth.errors import ConfigError, RequestError
from coordinator.members.audit import add_entry
from coordinator.members.devices import SHORT_ID_CHARS, find_device
from coordinator.members.names import find_member
from coordinator.members.revocations import lift_quarantine, put_in_quarantine
from coordinator.run.settings import Policy
from coordinator.store.engine import Database, log_trouble
from coordinator.store.locks import Lock, one_at_a_time
from coordinator.store.models import KEEPER_ROLE, Device, Member, Revocation, StoredSuspicion
from coordinator.store.refusals import add_refusal
from peer.reporting.suspicions import MAX_DETAIL_CHARS, SuspicionKind, WaitingSuspicions

logger = logging.getLogger(__name__)

INCIDENT_S = 45.0  # seconds; shorter than the interval at which peers repeat a report (peer.reporting.suspicions)
MEMBERS_SHARE = 4  # members' reports can quarantine at most one in this many active devices
KEPT_WORDS = 1_000  # maximum number of stored reports per member; the newest are kept
BY_KEEPER, BY_MEMBERS = "run:keeper", "run:members"  # actors of automatic quarantines
SHOWN_WORDS = 50  # number of latest reports shown per device


@dataclass(frozen=True)
class SuspicionReport:
    """A device's report of a suspicious peer, which is identified by its libp2p peer ID."""

    peer_id: str
    kind: str
    step: int
    detail: str

    def check(self) -> None:
        """Raise `RequestError` for an unknown kind, or a text that is too long or unprintable."""
        kinds, detail = get_args(SuspicionKind), self.detail
        is_text = detail.isprintable() and self.peer_id.isprintable()
        if self.kind not in kinds or len(detail) > MAX_DETAIL_CHARS or not is_text:
            raise RequestError(
                f"A suspicion is of one of the kinds {', '.join(sorted(kinds))}, "
                f"with a text of up to {MAX_DETAIL_CHARS} characters."
            )


def hear(database: Database, policy: Policy, claim: SuspicionReport, witness_id: str, now: float) -> None:
    """Log and store a report by the device `witness_id`; quarantine the suspect if reports suffice.

    A member's repeated reports about a device are ignored for `INCIDENT_S`. Raises `RequestError`
    if the report is invalid or the suspect is unknown.
    """
    claim.check()
    suspicion, cut_off = database.transact(lambda session: _take(session, policy, claim, witness_id, now))
    if suspicion:
        logger.warning("%s", suspicion)
    if cut_off:  # a separate log record, which rate limiting of suspicions must not suppress
        logger.warning("%s", cut_off)


def hear_all(
    database: Database, policy: Policy, waiting: WaitingSuspicions, witness_id: str, clock: Callable[[], float]
) -> None:
    """Store the pending suspicions; if the database fails, keep the remaining ones pending."""
    suspicions = waiting.take()
    with log_trouble("suspicions wait to be stored"):
        while suspicions:
            found = suspicions[0]
            claim = SuspicionReport(found.peer_id, found.kind, found.step, found.detail)
            try:
                hear(database, policy, claim, witness_id, clock())
            except RequestError as error:  # the database does not know the peer, so only the log records it
                logger.warning("%s", error)
            del suspicions[0]
    for found in suspicions:
        waiting.put(found)


@dataclass(frozen=True)
class Accusation:
    """The fields of a stored suspicion on which the quarantine decision is based."""

    at: float  # Unix time in seconds
    witness: str | None  # member whose device reported it, or None for the keeper
    kind: str


@dataclass(frozen=True)
class QuarantineDecision:
    """A decision to quarantine a device: the reason, and whether the keeper's reports alone suffice."""

    reason: str
    by_keeper: bool


def decide(words: Iterable[Accusation], policy: Policy, members_may: bool, now: float) -> QuarantineDecision | None:
    """Decide on a device's quarantine; unless `members_may`, only the keeper's reports count."""
    if not policy.strikes:
        return None
    recent = [word for word in words if word.at > now - policy.window_s]
    by_keeper = strikes([word for word in recent if word.witness is None]) >= policy.strikes
    if not by_keeper and not (members_may and strikes(recent) >= policy.strikes):
        return None
    kinds = sorted(Counter(incidents(recent)).items())
    listed = ", ".join(f"{kind} {count} times" if count > 1 else kind for kind, count in kinds)
    return QuarantineDecision(f"failed checks within {policy.window_s / 60:g} minutes: {listed}", by_keeper)


def strikes(words: Sequence[Accusation]) -> int:
    """Count the strikes left after removing the reports of the most influential member."""
    members = {word.witness for word in words if word.witness is not None}
    without = [len(incidents(word for word in words if word.witness != left_out)) for left_out in members]
    return min(without, default=len(incidents(words)))


def incidents(words: Iterable[Accusation]) -> list[str]:
    """Return the kind of each reported event; reports of a kind within `INCIDENT_S` count as one event."""
    found: list[str] = []
    began: dict[str, float] = {}
    for word in sorted(words, key=lambda word: word.at):
        if word.at > began.get(word.kind, float("-inf")) + INCIDENT_S:
            began[word.kind] = word.at
            found.append(word.kind)
    return found


def members_may(quarantined: int, active: int) -> bool:
    """Return whether members may quarantine one more device; the limit bounds collusion."""
    return quarantined < max(1, active // MEMBERS_SHARE)


@dataclass(frozen=True)
class WordRow:
    """A suspicion as shown to administrators."""

    at: float  # Unix time in seconds
    witness: str  # member's name, or `keeper`
    kind: str
    step: int
    detail: str


@dataclass(frozen=True)
class QuarantineRow:
    """A device in quarantine."""

    device_id: str
    member: str
    since: float  # Unix time in seconds
    reason: str
    actor: str  # `run:keeper`, `run:members`, or a person, as in the audit log
    words: tuple[WordRow, ...]  # suspicions about the device, newest first

    @property
    def short_id(self) -> str:
        """The start of the device's id, as typed by users."""
        return self.device_id[:SHORT_ID_CHARS]


def quarantines(database: Database) -> list[QuarantineRow]:
    """Return all devices in quarantine, newest first."""
    with database() as session:
        devices = select(Device, Member.name).join(Device.member).where(Device.quarantined_at.is_not(None))
        found = session.execute(devices.order_by(Device.quarantined_at.desc()))
        return [_row(session, device, name) for device, name in found]


def quarantine_device(database: Database, name: str, device_id: str, reason: str, actor: str, now: float) -> str:
    """Quarantine one of a member's devices; return its full id. Raises `ConfigError` if it is revoked."""

    def put(session: Session) -> str:
        device = find_device(session, find_member(session, name), device_id)
        if device.revoked_at is not None:
            raise ConfigError(f"{name}'s device {device.id} is revoked already, for good.")
        put_in_quarantine(session, device, reason, actor, now)
        return device.id

    return database.transact(put)


def release(database: Database, name: str, device_id: str, actor: str, now: float) -> list[str]:
    """Lift quarantine from a member's device (`device_id` "": all devices); return the ids.

    Raises `ConfigError` if no such device is in quarantine.
    """

    def lift(session: Session) -> list[str]:
        member = find_member(session, name)
        devices = [find_device(session, member, device_id)] if device_id else member.devices
        lifted = [device.id for device in devices if lift_quarantine(session, device, actor, now)]
        if not lifted:
            raise ConfigError(f"{name} has no such device in quarantine: `quarantine DIR list` shows who has.")
        return lifted

    return database.transact(lift)


def _take(session: Session, policy: Policy, claim: SuspicionReport, witness_id: str, now: float) -> tuple[str, str]:
    """Store a suspicion and act on it. Return log lines on the suspicion and the quarantine ("" if none)."""
    device = session.scalar(select(Device).where(Device.peer_id == claim.peer_id).with_for_update())
    if device is None:
        raise RequestError(f"No device here is the suspected peer {claim.peer_id!r:.80}.")
    witness = session.get_one(Device, witness_id)
    if _was_said(session, device, witness, claim.kind, now):
        return "", ""
    reason = f"{witness.member.name} noticed at step {claim.step}: {device.member.name}'s device {claim.detail}"
    add_refusal(session, "suspicion", claim.kind, reason, device.id, now)
    step = min(claim.step, 2**63 - 1)
    session.add(
        StoredSuspicion(
            at=now, device_id=device.id, witness_id=witness.id, kind=claim.kind, step=step, detail=claim.detail
        )
    )
    session.flush()
    _forget_oldest(session, witness.member)
    line = f"suspicious: {reason} (device {device.id}, peer {device.peer_id})"
    verdict = None if device.role == KEEPER_ROLE else _judge(session, policy, device, now)
    return line, "" if verdict is None else _cut_off(session, device, verdict, now)


def _was_said(session: Session, device: Device, witness: Device, kind: str, now: float) -> bool:
    """Return whether the witness's member made the same report within `INCIDENT_S`."""
    same = (
        select(StoredSuspicion.id)
        .join(Device, Device.id == StoredSuspicion.witness_id)
        .where(
            StoredSuspicion.device_id == device.id,
            StoredSuspicion.kind == kind,
            StoredSuspicion.at > now - INCIDENT_S,
            Device.member_id == witness.member_id,
        )
    )
    return session.scalar(same.limit(1)) is not None


def _forget_oldest(session: Session, member: Member) -> None:
    own = (
        select(StoredSuspicion.id)
        .join(Device, Device.id == StoredSuspicion.witness_id)
        .where(Device.member_id == member.id)
    )
    last_kept = session.scalar(own.order_by(StoredSuspicion.id.desc()).offset(KEPT_WORDS - 1).limit(1))
    if last_kept is not None:
        session.execute(
            delete(StoredSuspicion).where(StoredSuspicion.id.in_(own.where(StoredSuspicion.id < last_kept)))
        )


def _judge(session: Session, policy: Policy, device: Device, now: float) -> QuarantineDecision | None:
    """Decide on a device's quarantine from valid witnesses' reports since its last release."""
    lifted = select(func.max(Revocation.at)).where(Revocation.device_id == device.id, Revocation.change == "lifted")
    since = max(now - policy.window_s, session.scalar(lifted) or 0.0)
    witness = aliased(Device)
    words = (
        select(StoredSuspicion.at, StoredSuspicion.kind, witness.role, Member.name)
        .join(witness, witness.id == StoredSuspicion.witness_id)
        .join(Member, Member.id == witness.member_id)
        .where(
            StoredSuspicion.device_id == device.id,
            StoredSuspicion.at > since,
            Member.id != device.member_id,
            witness.revoked_at.is_(None),
            witness.quarantined_at.is_(None),
        )
    )
    said = [
        Accusation(at, None if role == KEEPER_ROLE else name, kind) for at, kind, role, name in session.execute(words)
    ]
    if decide(said, policy, True, now) is None:
        return None
    one_at_a_time(session, Lock.REVOCATIONS)  # concurrent decisions must not exceed the limit
    return decide(said, policy, members_may(*_standing(session, now)), now)


def _standing(session: Session, now: float) -> tuple[int, int]:
    """Return the numbers of devices quarantined by members and of devices with valid tokens."""
    newest = select(func.max(Revocation.id)).group_by(Revocation.device_id)
    quarantined = (
        select(func.count())
        .select_from(Revocation)
        .where(Revocation.id.in_(newest), Revocation.change == "quarantined", Revocation.actor == BY_MEMBERS)
    )
    active = select(func.count()).where(
        Device.role != KEEPER_ROLE, Device.revoked_at.is_(None), Device.token_until > now
    )
    return session.scalar(quarantined) or 0, session.scalar(active) or 0


def _cut_off(session: Session, device: Device, verdict: QuarantineDecision, now: float) -> str:
    """Quarantine a device and record why. Return the log line, or "" if already in quarantine."""
    actor, reason = BY_KEEPER if verdict.by_keeper else BY_MEMBERS, verdict.reason
    if not put_in_quarantine(session, device, reason, actor, now):
        return ""  # already in quarantine
    add_refusal(session, "quarantine", "quarantined", f"{device.member.name}'s device: {reason}", device.id, now)
    add_entry(session, actor, "quarantine", device.member.name, f"{device.id} {reason}", now)
    return f"{device.member.name}'s device {device.id} is in quarantine: {reason}"


def _row(session: Session, device: Device, member: str) -> QuarantineRow:
    changes = select(Revocation).where(Revocation.device_id == device.id).order_by(Revocation.id.desc())
    newest = session.scalars(changes.limit(1)).one()
    words = (
        select(StoredSuspicion, Member.name)
        .join(Device, Device.id == StoredSuspicion.witness_id)
        .join(Member, Member.id == Device.member_id)
        .where(StoredSuspicion.device_id == device.id)
        .order_by(StoredSuspicion.id.desc())
        .limit(SHOWN_WORDS)
    )
    said = tuple(
        WordRow(word.at, witness, word.kind, word.step, word.detail) for word, witness in session.execute(words)
    )
    return QuarantineRow(device.id, member, newest.at, newest.reason, newest.actor, said)
