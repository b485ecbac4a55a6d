"""What devices catch each other at: named in the operator's log, kept, and counted until it is enough.

A suspicion that comes over a session is a member's word against another's; the log says whose it is. What makes words
enough is `coordinator.strikes`'. The keeper, whose word counts alone, is never suspected into quarantine itself.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import get_args

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session, aliased

from auth.errors import RequestError
from coordinator.audit import add_entry
from coordinator.devices import KEEPER_ROLE
from coordinator.refusals import add_refusal
from coordinator.revocations import put_in_quarantine
from coordinator.store.engine import Sessions
from coordinator.store.locks import Lock, one_at_a_time
from coordinator.store.models import Device, Member, Revocation, Suspicion
from coordinator.strikes import INCIDENT_S, Policy, Verdict, Word, decide, members_may
from peer.suspicion import MAX_DETAIL_CHARS, UNPROVEN, SuspicionKind, weight_of

logger = logging.getLogger(__name__)
KEPT_WORDS = 1_000  # of each member; who says more loses its own
NOTE = "(unproven, by what others showed after the round: nobody is cut off for it)"
BY_KEEPER, BY_MEMBERS = "run:keeper", "run:members"  # who put a device in quarantine, if not a person


@dataclass(frozen=True)
class Claim:
    """What somebody says that the peer with this libp2p identity has done."""

    peer_id: str
    kind: str
    step: int
    detail: str

    def check(self) -> None:
        """Raise `RequestError` for nonsense."""
        kinds, detail = get_args(SuspicionKind), self.detail
        is_text = detail.isprintable() and self.peer_id.isprintable()
        if self.kind not in kinds or len(detail) > MAX_DETAIL_CHARS or not is_text:
            raise RequestError(
                f"A suspicion is of one of the kinds {', '.join(sorted(kinds))}, "
                f"with a text of up to {MAX_DETAIL_CHARS} characters."
            )


def hear(sessions: Sessions, policy: Policy, claim: Claim, witness_id: str, now: float) -> None:
    """Log and keep what the device `witness_id` says; cut the suspected off if that is enough.

    The same of the same, said again within the minute, is passed over. Raises `RequestError` if it is nonsense, or of
    nobody here.
    """
    claim.check()
    for line in sessions.transact(lambda session: _take(session, policy, claim, witness_id, now)):
        logger.warning("%s", line)


def with_proof(kind: str, detail: str) -> str:
    """What was said, with what it is worth where that is little."""
    return f"{detail} {NOTE}" if kind in UNPROVEN else detail


def _take(session: Session, policy: Policy, claim: Claim, witness_id: str, now: float) -> list[str]:
    """What is to be logged."""
    device = session.scalar(select(Device).where(Device.peer_id == claim.peer_id).with_for_update())
    if device is None:
        raise RequestError(f"No device here is the suspected peer {claim.peer_id!r:.80}.")
    witness = session.get_one(Device, witness_id)
    if _was_said(session, device, witness, claim.kind, now):
        return []
    said = with_proof(claim.kind, claim.detail)
    reason = f"{witness.member.name} noticed at step {claim.step}: {device.member.name}'s device {said}"
    add_refusal(session, "suspicion", claim.kind, reason, device.id, now)
    step = min(claim.step, 2**63 - 1)
    session.add(
        Suspicion(at=now, device_id=device.id, witness_id=witness.id, kind=claim.kind, step=step, detail=claim.detail)
    )
    session.flush()
    _forget_oldest(session, witness.member)
    lines = [f"{weight_of(claim.kind)}: {reason} (device {device.id}, peer {device.peer_id})"]
    verdict = None if device.role == KEEPER_ROLE else _judge(session, policy, device, now)
    return lines if verdict is None else [*lines, _cut_off(session, device, verdict, now)]


def _was_said(session: Session, device: Device, witness: Device, kind: str, now: float) -> bool:
    """Whether the witness's member has said so a moment ago, by whichever device."""
    same = (
        select(Suspicion.id)
        .join(Device, Device.id == Suspicion.witness_id)
        .where(
            Suspicion.device_id == device.id,
            Suspicion.kind == kind,
            Suspicion.at > now - INCIDENT_S,
            Device.member_id == witness.member_id,
        )
    )
    return session.scalar(same.limit(1)) is not None


def _forget_oldest(session: Session, member: Member) -> None:
    own = select(Suspicion.id).join(Device, Device.id == Suspicion.witness_id).where(Device.member_id == member.id)
    last_kept = session.scalar(own.order_by(Suspicion.id.desc()).offset(KEPT_WORDS - 1).limit(1))
    if last_kept is not None:
        session.execute(delete(Suspicion).where(Suspicion.id.in_(own.where(Suspicion.id < last_kept))))


def _judge(session: Session, policy: Policy, device: Device, now: float) -> Verdict | None:
    """What is said since the last quarantine was lifted, by others who are in good standing themselves."""
    lifted = select(func.max(Revocation.at)).where(Revocation.device_id == device.id, Revocation.change == "lifted")
    since = max(now - policy.window_s, session.scalar(lifted) or 0.0)
    witness = aliased(Device)
    words = (
        select(Suspicion.at, Suspicion.kind, witness.role, Member.name)
        .join(witness, witness.id == Suspicion.witness_id)
        .join(Member, Member.id == witness.member_id)
        .where(
            Suspicion.device_id == device.id,
            Suspicion.at > since,
            Member.id != device.member_id,
            witness.revoked_at.is_(None),
            witness.quarantined_at.is_(None),
        )
    )
    said = [Word(at, None if role == KEEPER_ROLE else name, kind) for at, kind, role, name in session.execute(words)]
    if decide(said, policy, True, now) is None:
        return None
    one_at_a_time(session, Lock.REVOCATIONS)  # no two may take the last place that members' words have
    return decide(said, policy, members_may(*_standing(session, now)), now)


def _standing(session: Session, now: float) -> tuple[int, int]:
    """How many devices are in quarantine by members' words, and how many are active or in quarantine."""
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


def _cut_off(session: Session, device: Device, verdict: Verdict, now: float) -> str:
    """Put it in quarantine, where the operator sees it; returns what to log."""
    actor, reason = BY_KEEPER if verdict.by_keeper else BY_MEMBERS, verdict.reason
    if not put_in_quarantine(session, device, reason, actor, now):
        return f"{device.member.name}'s device {device.id} is cut off already"
    add_refusal(session, "quarantine", "quarantined", f"{device.member.name}'s device: {reason}", device.id, now)
    add_entry(session, actor, "quarantine", device.member.name, f"{device.id} {reason}", now)
    return f"{device.member.name}'s device {device.id} is in quarantine: {reason}"
