"""Judgement of reports and receipts: which reports can be true, which samples count, and what a step comes to.

Every function is pure: `coordinator.ledger.ledger` gathers the facts, asks here, and writes down what follows.
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
STEPS_PER_SECOND = 2.0  # no swarm is faster: so far may it have come since the keeper last wrote
KEPT_OTHERS = 4  # beside the keeper's: without it and without the claimant's own, three decide, of whom one may lie
SPREAD = 0.25  # of the median loss, either way: microbatches of few samples differ by some percent
LEAST_SPREAD = 0.05  # where the loss itself is close to nothing


@dataclass(frozen=True)
class Delivery:
    """A report as a session brings it."""

    device_id: str
    session_id: str | None
    seq: int  # unique for the device
    report: StepReport
    completed_at: float  # Unix seconds, by the peer's clock

    @property
    def number(self) -> tuple[str, int]:
        """What tells that it has come before."""
        return self.device_id, self.seq

    @property
    def place(self) -> tuple[str, int, int]:
        """What a device reports once."""
        return self.device_id, self.report.era, self.report.step


@dataclass(frozen=True)
class ReportVerdict:
    """The answer to a report: counted or refused; of refused ones only a report ahead of the ledger is sent again."""

    accepted: bool
    reason: str = ""
    ahead: bool = False


@dataclass(frozen=True)
class Facts:
    """The ledger's knowledge when a report arrives."""

    now: float
    joined_at: float  # when the device joined the run
    current_era: int
    last_counting_step: int | None  # of the report's era; None: all its steps count
    horizon_step: int  # the highest step that can have been completed by now, in the report's era
    target_batch_size: int
    known: bool  # this very report is in the ledger
    reported_already: bool  # this device has another report for this step and era


class ReportOutcome(Enum):
    """The fate of a report."""

    COUNTED = "counted"  # stored; receipts decide how many of its samples count
    UNDONE = "undone"  # stored, and counts nowhere: its step was undone by a return to a checkpoint
    KNOWN = "known"  # it has come before: accepted, and counted once
    AHEAD = "ahead"  # nothing is kept of it: it waits at the peer until its step is known
    SECOND = "second"  # of a step that the device has reported: refused, and its receipt is taken
    REFUSED = "refused"  # it cannot be true


@dataclass(frozen=True)
class Judgement:
    """The fate of a report, its reason, and the losses and the time that are believed."""

    outcome: ReportOutcome
    reason: str = ""
    lost: Mapping[str, int] = field(default_factory=dict)  # samples by cause
    at: float = 0.0  # of the step, or of the refusal: Unix seconds

    @property
    def stored(self) -> bool:
        """Return whether the report becomes a row."""
        return self.outcome in (ReportOutcome.COUNTED, ReportOutcome.UNDONE)

    @property
    def refused(self) -> bool:
        """Return whether the report is refused for good."""
        return self.outcome in (ReportOutcome.SECOND, ReportOutcome.REFUSED)

    @property
    def brings_receipt(self) -> bool:
        """Return whether the report's receipt is evidence; that of a report that cannot be true is not."""
        return self.stored or self.outcome is ReportOutcome.SECOND

    @property
    def verdict(self) -> ReportVerdict:
        """The answer to the peer."""
        accepted = self.stored or self.outcome is ReportOutcome.KNOWN
        return ReportVerdict(accepted, self.reason, self.outcome is ReportOutcome.AHEAD)


def judge(delivery: Delivery, facts: Facts) -> Judgement:
    """Decide whether a report can be true, and what of it is believed.

    A step beyond the keeper's is no wrong claim while its era lasts: the swarm may go on when the keeper stands still.
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
    at = min(max(delivery.completed_at, facts.joined_at), facts.now)  # the peer's clock may be wrong
    return Judgement(ReportOutcome.UNDONE if undone else ReportOutcome.COUNTED, "", report.lost, at)


def _fault(delivery: Delivery, facts: Facts) -> str:
    """Why a report cannot be true, in a few words; empty if it can."""
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
    """The highest value of each number but the step's time; the lowest is 0."""
    claims = {name: bound.at(facts.target_batch_size) for name, bound in CLAIM_BOUNDS.items()}
    return claims | {"seq": MAX_LONG, "era": facts.current_era}


def step_horizon(known_step: int, known_for_s: float) -> int:
    """The highest plausible step, when the swarm was at `known_step` so many seconds ago."""
    return known_step + STEPS_AHEAD + int(max(0.0, known_for_s) * STEPS_PER_SECOND)


def judge_lost(lost: Lost, target_batch_size: int) -> str:
    """Why losses beside reports cannot be true; empty if they can."""
    claimed, most = sum(lost.by_cause.values()), int(CLAIM_BOUNDS["lost_samples"].at(target_batch_size))
    return f"{claimed} lost samples are more than {most}" if claimed > most else ""


class SampleClaim(NamedTuple):
    """One report of a step, as far as counting it goes; a tuple, for there may be thousands."""

    report_id: int
    device_id: str
    device_number: int
    member_id: int
    samples: int
    counted: int | None  # before: as receipts confirmed; None while none said anything
    loss: float | None
    era: int
    completed_at: float


@dataclass(frozen=True)
class KeptReceipt:
    """A kept receipt's content, by devices' numbers."""

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
    """Which receipts of one step to keep, by id: the keeper's first, and by lot one of each of four members.

    Neither haste nor the number of a member's devices changes the lot.
    """
    keepers = [receipt.receipt_id for receipt in receipts if receipt.is_keeper][:1]
    of_each_member: dict[int, int] = {}
    for receipt in sorted(receipts, key=lambda receipt: _lot(step, receipt.device_id)):
        if not receipt.is_keeper:
            of_each_member.setdefault(receipt.member_id, receipt.receipt_id)
    return {*keepers, *list(of_each_member.values())[:KEPT_OTHERS]}


def _lot(step: int, device_id: str) -> bytes:
    return hashlib.sha256(f"{step} {device_id}".encode()).digest()


def count(claims: Sequence[SampleClaim], receipts: Sequence[KeptReceipt]) -> dict[int, int | None]:
    """The samples of each claim that count, by the report's id; None while no receipt says anything.

    The claims are in the order of arrival: a step that a device reported for two eras counts once.
    """
    counted: dict[int, int | None] = {}
    devices: set[str] = set()
    for claim in claims:
        if claim.device_id in devices:
            counted[claim.report_id] = 0
            continue
        devices.add(claim.device_id)
        confirmed = credited(claim.samples, str(claim.member_id), _words(claim, receipts))
        # what was counted before there were receipts stays
        counted[claim.report_id] = claim.counted if confirmed is None else confirmed
    return counted


def _words(claim: SampleClaim, receipts: Sequence[KeptReceipt]) -> list[Confirmation]:
    """The words of all receipts on the device of a claim."""
    return [
        Confirmation(str(receipt.member_id), receipt.is_keeper, receipt.samples.get(claim.device_number, 0))
        for receipt in receipts
    ]


def step_sums(claims: Sequence[SampleClaim], counted: Mapping[int, int | None], loss_before: float | None) -> StepSums:
    """The sums of a step with these claims, which do not wait for receipts as the leaderboard does.

    Losses weigh by confirmed samples, or by claimed ones while none is confirmed. `loss_before`: the step before's.
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
    """The sum of losses times samples and the samples it is over, of (loss, samples); (0.0, 0) if there are none.

    Losses have no receipts. But the devices of one step have the same parameters and samples of the same kind, so their
    losses are close together: a loss further than 25 % plus 0.05 from the weighted median is moved to that edge.
    `before`, the loss of the step before, decides where the samples are divided in equal halves.
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
