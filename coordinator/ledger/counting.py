"""Counting of a step: how much of each report receipts confirm, and the step's sums of samples and loss.

A step is counted again whenever one of its reports or receipts arrives, in the transaction that stores it. So the order
of arrival does not matter, and reading the sums costs nothing.

The step's loss is the mean over samples with outliers clipped. Losses have no receipts. But the devices of one step
have the same parameters and samples of the same kind, so their losses are close together: a loss further than 25 % plus
0.05 from the weighted median is moved to that edge.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from sqlalchemy import Table, literal, select, update
from sqlalchemy.orm import Session

from coordinator.ledger.receipts import KeptReceipt, kept_receipts
from coordinator.ledger.shares import Recount, recounted
from coordinator.store.models import Device, Member, Refusal, Report, Step
from coordinator.store.notify import Topic, tell
from coordinator.store.refusals import add_refusal
from peer.verification.receipts import Word, credited, disproved, newcomer_share

logger = logging.getLogger(__name__)

SPREAD = 0.25  # of the median, either way: microbatches of few samples differ by some percent
LEAST_SPREAD = 0.05  # where the loss itself is close to nothing
NAMED_EVERY_S = 3600.0  # who claims too much is named once in this time
_REPORTS = cast(Table, Report.__table__)
CLAIM = "claim"  # the code of such a suspicion


class Claim(NamedTuple):
    """One report of the step, as far as counting it goes; a tuple, for there may be thousands."""

    report_id: int
    device_id: str
    device_number: int  # this and the member are 0 where no receipt needs them
    member_id: int
    samples: int
    counted: int | None
    loss: float | None
    era: int
    completed_at: float


def count_step(session: Session, step: int, target_batch_size: int, least_share: float, now: float) -> None:
    """Count the reports of a step and write its sums; nothing is written while nobody has reported it.

    `least_share`: of the batch that is believed of anybody, however many take part.
    """
    receipts = kept_receipts(session, step)
    claims = _claims(session, step, with_members=bool(receipts))
    if not claims:
        return
    words = _words(claims, receipts)
    counted = _counted(claims, words)
    changed = [claim for claim in claims if counted[claim.report_id] != claim.counted]
    if changed:
        values = [{"id": claim.report_id, "counted": counted[claim.report_id]} for claim in changed]
        session.execute(update(Report), values)
    recounted(session, (_recount(claim, counted[claim.report_id]) for claim in changed))
    false = _disproved(claims, words, {})
    if false:
        false = _disproved(false, words, _believed_of_each(session, claims, receipts, target_batch_size, least_share))
    _name_for_false_claims(session, step, false, counted, now)
    losses = _losses(session, step, claims, counted)
    row = session.get(Step, step)
    if row is None:
        row = Step(step=step, era=claims[0].era, target_batch_size=target_batch_size)
        session.add(row)
    confirmed = [claim for claim in claims if counted[claim.report_id]] or claims
    row.devices, row.completed_at = len(claims), max(claim.completed_at for claim in confirmed)
    row.samples = sum(_believed(claim, counted[claim.report_id]) for claim in claims)
    row.loss_sum, row.loss_samples = losses
    session.flush()
    tell(session, Topic.PROGRESS)


def _recount(claim: Claim, after: int | None) -> Recount:
    return Recount(claim.device_id, claim.completed_at, claim.samples, claim.counted, after)


def _claims(session: Session, step: int, *, with_members: bool) -> list[Claim]:
    """In the order of their arrival."""
    whose: tuple[Any, ...] = (Device.number, Device.member_id) if with_members else (literal(0), literal(0))
    query = (
        select(
            _REPORTS.c.id,
            _REPORTS.c.device_id,
            *whose,
            _REPORTS.c.samples,
            _REPORTS.c.counted,
            _REPORTS.c.loss,
            _REPORTS.c.era,
            _REPORTS.c.completed_at,
        )
        .where(_REPORTS.c.step == step, _REPORTS.c.superseded.is_(False))
        .order_by(_REPORTS.c.id)
    )
    if with_members:
        query = query.join(Device, Device.id == _REPORTS.c.device_id)
    # past the mapper, which is slow with thousands of rows
    return [Claim._make(row) for row in session.connection().execute(query)]


def _counted(claims: Sequence[Claim], words: Mapping[int, Sequence[Word]]) -> dict[int, int | None]:
    """The samples that each report counts, by its id; a step that a device reported for two eras counts once."""
    counted: dict[int, int | None] = {}
    devices: set[str] = set()
    for claim in claims:
        if claim.device_id in devices:
            counted[claim.report_id] = 0
            continue
        devices.add(claim.device_id)
        confirmed = credited(claim.samples, str(claim.member_id), words.get(claim.device_number, ()))
        # what was counted before there were receipts stays
        counted[claim.report_id] = claim.counted if confirmed is None else confirmed
    return counted


def _words(claims: Sequence[Claim], receipts: Sequence[KeptReceipt]) -> dict[int, list[Word]]:
    """The words of all receipts on each device, by its number; empty without receipts."""
    if not receipts:
        return {}
    return {
        claim.device_number: [
            Word(str(receipt.member_id), receipt.is_keeper, receipt.samples.get(claim.device_number, 0))
            for receipt in receipts
        ]
        for claim in claims
    }


def _believed(claim: Claim, counted: int | None) -> int:
    """The samples for the step's own sum, which does not wait for receipts as the leaderboard does."""
    return claim.samples if counted is None else counted


def _losses(session: Session, step: int, claims: Sequence[Claim], counted: dict[int, int | None]) -> tuple[float, int]:
    """The sums of losses, weighted by confirmed samples, or by claimed ones while none is confirmed."""
    before = session.get(Step, step - 1)
    known = None if before is None or not before.loss_samples else before.loss_sum / before.loss_samples
    losses = [(claim.loss, claim) for claim in claims if claim.loss is not None]
    confirmed = [(loss, counted[claim.report_id] or 0) for loss, claim in losses]
    if not any(samples for _, samples in confirmed):
        confirmed = [(loss, claim.samples) for loss, claim in losses]
    return loss_sums(confirmed, known)


def _disproved(
    claims: Sequence[Claim], words: Mapping[int, Sequence[Word]], believed: Mapping[int, float]
) -> list[Claim]:
    """The claims that receipts disprove; `believed`: samples by device's number, for a missing one the whole claim."""
    return [
        claim
        for claim in claims
        if claim.device_number in words
        and disproved(
            claim.samples,
            str(claim.member_id),
            words[claim.device_number],
            believed.get(claim.device_number, float(claim.samples)),
        )
    ]


def _believed_of_each(
    session: Session,
    claims: Sequence[Claim],
    receipts: Sequence[KeptReceipt],
    target_batch_size: int,
    least_share: float,
) -> dict[int, float]:
    """The samples believed of each device, by its number: each member's equal share, split among its devices.

    Most who took part are in the receipts before they have reported.
    """
    members = {claim.device_number: claim.member_id for claim in claims}
    numbers = {number for receipt in receipts for number in receipt.samples} - members.keys()
    others = select(Device.number, Device.member_id).where(Device.number.in_(numbers))
    members |= dict(session.execute(others).all())
    devices = Counter(members.values())
    believed = newcomer_share(len(devices), least_share) * target_batch_size
    return {number: believed / devices[member_id] for number, member_id in members.items()}


def _name_for_false_claims(
    session: Session, step: int, false: Sequence[Claim], counted: dict[int, int | None], now: float
) -> None:
    """Each device once in a while, all looked up at once: many may be false."""
    if not false:
        return
    device_ids = [claim.device_id for claim in false]
    lately = select(Refusal.device_id).where(
        Refusal.at > now - NAMED_EVERY_S, Refusal.code == CLAIM, Refusal.device_id.in_(device_ids)
    )
    named = set(session.scalars(lately))
    members = select(Device.id, Member.name).join(Device.member).where(Device.id.in_(set(device_ids) - named))
    names: dict[str, str] = dict(session.execute(members).all())
    for claim in false:
        if claim.device_id in names:
            reason = (
                f"{names[claim.device_id]}'s device claimed {claim.samples} samples for step {step}, "
                f"of which receipts confirm {counted[claim.report_id]}"
            )
            logger.warning("suspicious: %s (device %s)", reason, claim.device_id)
            add_refusal(session, "suspicion", CLAIM, reason, claim.device_id, now)


def loss_sums(reported: Sequence[tuple[float, int]], before: float | None) -> tuple[float, int]:
    """The sum of losses times samples and the samples it is over, of (loss, samples); (0.0, 0) if there are none.

    `before` is the loss of the step before, if known: it decides where the samples are divided in equal halves.
    """
    reported = [(loss, samples) for loss, samples in reported if samples > 0]
    if not reported:
        return 0.0, 0
    middle = _median(sorted(reported), before)
    spread = SPREAD * middle + LEAST_SPREAD
    return sum(min(max(loss, middle - spread), middle + spread) * samples for loss, samples in reported), sum(
        samples for _, samples in reported
    )


def _median(ordered: Sequence[tuple[float, int]], before: float | None) -> float:
    """The loss that half of the samples lie below; of two such the one nearer to `before`, or the lower."""
    half, passed = sum(samples for _, samples in ordered) / 2, 0
    for place, (loss, samples) in enumerate(ordered):
        passed += samples
        if passed == half and before is not None:
            return min(loss, ordered[place + 1][0], key=lambda middle: abs(middle - before))
        if passed >= half:
            return loss
    raise AssertionError("half of the samples are passed before the last loss")
