"""Validation of reports, sample counts from receipts, and the totals of each step.

All functions are pure; `coordinator.ledger.ledger` reads their inputs and writes their results.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import NamedTuple

from peer.reporting.messages import CLAIM_BOUNDS, MAX_LONG, MAX_REASON_CHARS, Lost, LostCause, StepReport
from peer.verification.receipts import Confirmation, credited

STEPS_AHEAD = 2
STEPS_PER_SECOND = 2.0  # above any swarm's speed; limits the plausible steps since the keeper's last status
KEPT_OTHERS = 4  # members' receipts kept; without the claimant's own, three remain, so one may be false
SPREAD = 0.25  # tolerated deviation as a fraction of the median loss; small microbatches differ by a few percent
LEAST_SPREAD = 0.05  # additional absolute deviation, for losses near zero


@dataclass(frozen=True)
class Delivery:
    """A report, with the device and session that sent it."""

    device_id: str
    session_id: str | None
    seq: int  # unique per device
    report: StepReport
    completed_at: float  # Unix time on the peer's clock

    @property
    def number(self) -> tuple[str, int]:
        """The device and sequence number, which identify retransmissions of a report."""
        return self.device_id, self.seq

    @property
    def place(self) -> tuple[str, int, int]:
        """The device, era and step; a device may report each step of an era only once."""
        return self.device_id, self.report.era, self.report.step


@dataclass(frozen=True)
class ReportVerdict:
    """The response to a report; peers retransmit rejected reports that are ahead of the keeper."""

    accepted: bool
    reason: str = ""
    ahead: bool = False


@dataclass(frozen=True)
class Facts:
    """The state of the ledger when a report arrives."""

    now: float
    joined_at: float  # time at which the device joined the run
    current_era: int
    last_counting_step: int | None  # last valid step of the report's era; None if all are valid
    horizon_step: int  # highest step currently plausible in the report's era
    target_batch_size: int
    known: bool  # True if the ledger already contains this report
    reported_already: bool  # True if the ledger has the device's report for this step and era


class ReportOutcome(Enum):
    """The possible outcomes for a report."""

    COUNTED = "counted"  # stored; receipts determine the number of counted samples
    UNDONE = "undone"  # stored but not counted; a rewind to a checkpoint has undone the step
    KNOWN = "known"  # retransmission: accepted, but not counted again
    AHEAD = "ahead"  # not stored; the peer retransmits it once the keeper reaches the step
    SECOND = "second"  # rejected as the device's second report for the step, but its receipt is used
    REFUSED = "refused"  # rejected as implausible


@dataclass(frozen=True)
class Judgement:
    """The outcome for a report and the reason, with the lost samples and the time to record."""

    outcome: ReportOutcome
    reason: str = ""
    lost: Mapping[str, int] = field(default_factory=dict)  # cause -> number of samples
    at: float = 0.0  # Unix time of the step, or of the rejection

    @property
    def stored(self) -> bool:
        """True if the report is added to the ledger."""
        return self.outcome in (ReportOutcome.COUNTED, ReportOutcome.UNDONE)

    @property
    def refused(self) -> bool:
        """True if the report is rejected permanently, so that retransmission is pointless."""
        return self.outcome in (ReportOutcome.SECOND, ReportOutcome.REFUSED)

    @property
    def brings_receipt(self) -> bool:
        """True if the receipt in the report is used; receipts in implausible reports are ignored."""
        return self.stored or self.outcome is ReportOutcome.SECOND

    @property
    def verdict(self) -> ReportVerdict:
        """The response to the peer."""
        accepted = self.stored or self.outcome is ReportOutcome.KNOWN
        return ReportVerdict(accepted, self.reason, self.outcome is ReportOutcome.AHEAD)


def judge(delivery: Delivery, facts: Facts) -> Judgement:
    """Judge whether a report is plausible; determine the lost samples and the time to record.

    Steps slightly ahead of the keeper are plausible: the swarm trains even while the keeper hangs.
    """
    report = delivery.report
    if facts.known:
        return Judgement(ReportOutcome.KNOWN)
    reason = _fault(delivery, facts)
    if facts.reported_already:
        return Judgement(ReportOutcome.SECOND, reason or f"step {report.step} was already reported by this device")
    if reason:
        believable = min(report.samples, int(CLAIM_BOUNDS["samples"].at(facts.target_batch_size)))
        return Judgement(ReportOutcome.REFUSED, reason, {LostCause.REFUSED.value: believable}, facts.now)
    if report.step > facts.horizon_step:
        reason = f"step {report.step} is ahead of the keeper, which knows those up to {facts.horizon_step}"
        return Judgement(ReportOutcome.AHEAD, reason)
    undone = facts.last_counting_step is not None and report.step > facts.last_counting_step
    at = min(max(delivery.completed_at, facts.joined_at), facts.now)  # limits the effect of a device's wrong clock
    return Judgement(ReportOutcome.UNDONE if undone else ReportOutcome.COUNTED, "", report.lost, at)


def _fault(delivery: Delivery, facts: Facts) -> str:
    """Return a short reason why a report is implausible, or "" if it is plausible."""
    report = delivery.report
    claims = {each.name: getattr(report, each.name) for each in fields(report)}
    claims |= {"seq": delivery.seq, "completed_at": delivery.completed_at}
    for name, value in claims.items():
        if isinstance(value, float) and not math.isfinite(value):
            return f"`{name}` is not finite"
    for name, most in _limits(facts).items():
        if isinstance(value := claims[name], int | float) and not 0 <= value <= most:
            return f"`{name}` ({value:.6g}) is not between 0 and {most:.6g}"
    if report.step < 1:
        return "`step` counts from 1"
    if report.era < facts.current_era and report.step > facts.horizon_step:
        return f"step {report.step} was not reached in era {report.era}, which is over"
    if len(report.lost_reason) > MAX_REASON_CHARS or not report.lost_reason.isprintable():
        return f"`lost_reason` is not a text of up to {MAX_REASON_CHARS} characters"
    return ""


def _limits(facts: Facts) -> dict[str, float]:
    """Return the upper limit of each numeric field of a report; the lower limit is 0."""
    claims = {name: bound.at(facts.target_batch_size) for name, bound in CLAIM_BOUNDS.items()}
    return claims | {"seq": MAX_LONG, "era": facts.current_era}


def step_horizon(known_step: int, known_for_s: float) -> int:
    """Return the highest plausible step `known_for_s` seconds after `known_step` was current."""
    return known_step + STEPS_AHEAD + int(max(0.0, known_for_s) * STEPS_PER_SECOND)


def judge_lost(lost: Lost, target_batch_size: int) -> str:
    """Return a reason why separately reported lost samples are implausible, or "" if plausible."""
    claimed, most = sum(lost.by_cause.values()), int(CLAIM_BOUNDS["lost_samples"].at(target_batch_size))
    return f"{claimed} lost samples are more than {most}" if claimed > most else ""


class SampleClaim(NamedTuple):
    """The report fields needed for counting; a tuple, for speed with thousands of reports."""

    report_id: int
    device_id: str
    device_number: int
    member_id: int
    samples: int
    counted: int | None  # result of the last count; None if there is no receipt yet
    loss: float | None
    era: int
    completed_at: float


@dataclass(frozen=True)
class KeptReceipt:
    """A stored receipt: a map from device numbers to the numbers of received samples."""

    receipt_id: int
    device_id: str
    member_id: int
    is_keeper: bool
    samples: Mapping[int, int]


class StepSums(NamedTuple):
    """The sums over the reports of one step."""

    devices: int
    completed_at: float
    samples: int
    loss_sum: float
    loss_samples: int


def chosen(step: int, receipts: Sequence[KeptReceipt]) -> set[int]:
    """Return the ids of the receipts to keep for a step: the keeper's and up to four members'.

    Members are ranked by a hash of step and member, so neither early arrival nor more devices give
    an advantage.
    """
    keepers = [receipt.receipt_id for receipt in receipts if receipt.is_keeper][:1]
    of_each_member: dict[int, int] = {}
    for receipt in sorted(receipts, key=lambda each: (_lot(step, each.member_id), _lot(step, each.device_id))):
        if not receipt.is_keeper:
            of_each_member.setdefault(receipt.member_id, receipt.receipt_id)
    return {*keepers, *list(of_each_member.values())[:KEPT_OTHERS]}


def _lot(step: int, who: object) -> bytes:
    return hashlib.sha256(f"{step} {who}".encode()).digest()


def count(claims: Sequence[SampleClaim], receipts: Sequence[KeptReceipt]) -> dict[int, int | None]:
    """Return each claim's counted samples by report id, or None for a claim without a receipt yet.

    `claims` must be in order of arrival: of two reports by one device, only the first counts.
    """
    counted: dict[int, int | None] = {}
    devices: set[str] = set()
    for claim in claims:
        if claim.device_id in devices:
            counted[claim.report_id] = 0
            continue
        devices.add(claim.device_id)
        confirmed = credited(claim.samples, str(claim.member_id), _words(claim, receipts))
        # If no receipt covers the claim, its previous count is kept.
        counted[claim.report_id] = claim.counted if confirmed is None else confirmed
    return counted


def _words(claim: SampleClaim, receipts: Sequence[KeptReceipt]) -> list[Confirmation]:
    """Return the number of samples that each receipt confirms for the claim's device."""
    return [
        Confirmation(str(receipt.member_id), receipt.is_keeper, receipt.samples.get(claim.device_number, 0))
        for receipt in receipts
    ]


def step_sums(claims: Sequence[SampleClaim], counted: Mapping[int, int | None], loss_before: float | None) -> StepSums:
    """Return the sums of a step, including samples that await a receipt.

    Training losses are weighted by confirmed samples, or by claimed samples if none are confirmed.
    `loss_before` is the previous step's loss, or None if it is unknown.
    """
    confirmed = [claim for claim in claims if counted[claim.report_id]]
    losses = [(claim.loss, counted[claim.report_id] or 0) for claim in claims if claim.loss is not None]
    if not any(samples for _, samples in losses):
        losses = [(claim.loss, claim.samples) for claim in claims if claim.loss is not None]
    return StepSums(
        len(claims),
        max(claim.completed_at for claim in confirmed or claims),
        sum(claim.samples if (known := counted[claim.report_id]) is None else known for claim in claims),
        *loss_sums(losses, loss_before),
    )


def loss_sums(reported: Sequence[tuple[float, int]], before: float | None) -> tuple[float, int]:
    """Return the sum of loss * samples and the sum of samples over (loss, samples) pairs.

    Receipts cannot confirm losses. However, all devices use the same parameters and similar samples
    in a step, so their losses are close. Each loss is therefore clamped to the weighted median plus
    or minus (25 % + 0.05). `before` (the previous step's loss or None) breaks a tie of two medians.
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
    """Return the weighted median loss; of two medians, the one closer to `before` (None: the lower)."""
    half, passed = sum(samples for _, samples in ordered) / 2, 0
    for place, (loss, samples) in enumerate(ordered):
        passed += samples
        if passed == half and before is not None:
            return min(loss, ordered[place + 1][0], key=lambda middle: abs(middle - before))
        if passed >= half:
            return loss
    raise AssertionError("half of the samples are passed before the last loss")
