"""What a step comes to: each report counted as far as receipts confirm it, and the sums over them.

A step is counted anew whenever a report or a receipt of it arrives, in the transaction that stores it, so that the
order of their arrival does not matter and reading the sums costs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from coordinator.receipts import KeptReceipt, kept_receipts
from coordinator.refusals import add_refusal
from coordinator.step_loss import loss_sums
from coordinator.store.models import Device, Member, Refusal, Report, Step
from peer.crediting import Word, credited, disproved

logger = logging.getLogger(__name__)
NAMED_EVERY_S = 3600.0  # who claims too much is named once in this time
CLAIM = "claim"  # the code of such a suspicion
_COUNTING_LOCK = 0x6D68  # of PostgreSQL's advisory locks: "mh"


@dataclass(frozen=True)
class Claim:
    """One report of the step, as far as counting it goes."""

    report_id: int
    device_id: str
    device_number: int
    member_id: int
    member: str
    samples: int
    counted: int | None
    loss: float | None
    era: int
    completed_at: float


def one_at_a_time(session: Session, step: int) -> None:
    """Let nobody else count this step until the transaction ends; on SQLite nobody else writes anyway."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(select(func.pg_advisory_xact_lock(_COUNTING_LOCK, step)))


def count_step(session: Session, step: int, target_batch_size: int, now: float) -> None:
    """Count the reports of a step and write its sums; nothing is written while nobody has reported it."""
    claims, receipts = _claims(session, step), kept_receipts(session, step)
    if not claims:
        return
    counted = {claim.report_id: _counted(claim, claims, receipts) for claim in claims}
    for claim in claims:
        if counted[claim.report_id] != claim.counted:
            values = {"counted": counted[claim.report_id]}
            session.execute(update(Report).where(Report.id == claim.report_id).values(values))
    false = [claim for claim in claims if disproved(claim.samples, str(claim.member_id), _words(claim, receipts))]
    _name_for_false_claims(session, step, false, counted, now)
    losses = _losses(session, step, claims, counted)
    row = session.get(Step, step)
    if row is None:
        row = Step(step=step, era=claims[0].era, target_batch_size=target_batch_size)
        session.add(row)
    row.devices, row.completed_at = len(claims), max(claim.completed_at for claim in claims)
    row.samples = sum(_believed(claim, counted[claim.report_id]) for claim in claims)
    row.loss_sum, row.loss_samples = losses
    session.flush()


def _claims(session: Session, step: int) -> list[Claim]:
    """In the order of their arrival."""
    query = (
        select(
            Report.id,
            Report.device_id,
            Device.number,
            Device.member_id,
            Member.name,
            Report.samples,
            Report.counted,
            Report.loss,
            Report.era,
            Report.completed_at,
        )
        .join(Device, Device.id == Report.device_id)
        .join(Member, Member.id == Device.member_id)
        .where(Report.step == step, Report.superseded.is_(False))
        .order_by(Report.id)
    )
    return [Claim(*tuple(row)) for row in session.execute(query)]


def _counted(claim: Claim, claims: Sequence[Claim], receipts: Sequence[KeptReceipt]) -> int | None:
    first = next(other for other in claims if other.device_id == claim.device_id)
    if first is not claim:  # the same step, reported for two eras: a device brings samples to it once
        return 0
    counted = credited(claim.samples, str(claim.member_id), _words(claim, receipts))
    return claim.counted if counted is None else counted  # what was counted before there were receipts stays


def _words(claim: Claim, receipts: Sequence[KeptReceipt]) -> list[Word]:
    return [
        Word(str(receipt.member_id), receipt.is_keeper, receipt.samples.get(claim.device_number, 0))
        for receipt in receipts
    ]


def _believed(claim: Claim, counted: int | None) -> int:
    """What the step's own sum takes, which is not to wait for receipts: the leaderboard does."""
    return claim.samples if counted is None else counted


def _losses(session: Session, step: int, claims: Sequence[Claim], counted: dict[int, int | None]) -> tuple[float, int]:
    """By what is confirmed; before anything is, by what is claimed."""
    before = session.get(Step, step - 1)
    known = None if before is None or not before.loss_samples else before.loss_sum / before.loss_samples
    losses = [(claim.loss, claim) for claim in claims if claim.loss is not None]
    confirmed = [(loss, counted[claim.report_id] or 0) for loss, claim in losses]
    if not any(samples for _, samples in confirmed):
        confirmed = [(loss, claim.samples) for loss, claim in losses]
    return loss_sums(confirmed, known)


def _name_for_false_claims(
    session: Session, step: int, false: Sequence[Claim], counted: dict[int, int | None], now: float
) -> None:
    """Each device once in a while, all looked up at once: many may be false."""
    if not false:
        return
    lately = select(Refusal.device_id).where(
        Refusal.at > now - NAMED_EVERY_S,
        Refusal.code == CLAIM,
        Refusal.device_id.in_([claim.device_id for claim in false]),
    )
    named = set(session.scalars(lately))
    for claim in false:
        if claim.device_id not in named:
            reason = (
                f"{claim.member}'s device claimed {claim.samples} samples for step {step}, "
                f"of which receipts confirm {counted[claim.report_id]}"
            )
            logger.warning("suspicious: %s (device %s)", reason, claim.device_id)
            add_refusal(session, "suspicion", CLAIM, reason, claim.device_id, now)
