"""Plausibility of reports: each number is finite and in range, and the step plausible, or the report is refused.

A step beyond the keeper's is no wrong claim while its era lasts: the swarm may go on when the keeper stands still.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from peer.reporting.messages import StepReport

MAX_LOSS = 100.0
MAX_SHARE_OF_TARGET = 10  # of the target batch, by one device in one step: who waits for the others trains on
MAX_GROUP = 10_000  # peers that averaged together
MAX_GROUP_SHARE = 10  # total weight of a group, in target batches
MAX_LOST_SHARE = 100  # samples lost between two reports, in target batches
MAX_DURATION_S = 30 * 86_400.0
MAX_SAMPLES_PER_SECOND = 1e7
MAX_AVERAGED_BYTES = 2**45  # in one step
MAX_REASON_CHARS = 40
MAX_SEQ = 2**63 - 1
STEPS_AHEAD = 2
STEPS_PER_SECOND = 2.0  # no swarm is faster: so far may it have come since the keeper last wrote


@dataclass(frozen=True)
class Facts:
    """What the ledger knows when a report arrives."""

    current_era: int
    horizon_step: int  # the highest step that can have been completed by now, in the report's era
    target_batch_size: int
    reported_already: bool  # this device has another report for this step and era


def step_horizon(known_step: int, known_for_s: float) -> int:
    """The highest plausible step, when the swarm was at `known_step` so many seconds ago."""
    return known_step + STEPS_AHEAD + int(max(0.0, known_for_s) * STEPS_PER_SECOND)


def is_ahead(step: int, era: int, facts: Facts) -> bool:
    """Whether the step is not known yet, and may be later: the report is for then."""
    return era == facts.current_era and step > facts.horizon_step


def implausibility(seq: int, era: int, completed_at: float, report: StepReport, facts: Facts) -> str | None:
    """Why a report cannot be true, in a few words; None if it can."""
    numbers = {field.name: getattr(report, field.name) for field in fields(report)} | {"completed_at": completed_at}
    for name, value in numbers.items():
        if isinstance(value, float | int) and not math.isfinite(value):
            return f"`{name}` is not finite"
    for name, most in _limits(facts).items():
        value = {**numbers, "seq": seq, "era": era}[name]
        if value is not None and not 0 <= value <= most:
            return f"`{name}` ({value:.6g}) is not between 0 and {most:.6g}"
    if report.step < 1:
        return "`step` counts from 1"
    if era < facts.current_era and report.step > facts.horizon_step:
        return f"step {report.step} was not reached in era {era}, which is over"
    if len(report.lost_reason) > MAX_REASON_CHARS or not report.lost_reason.isprintable():
        return f"`lost_reason` is not a text of up to {MAX_REASON_CHARS} characters"
    if facts.reported_already:
        return f"step {report.step} was already reported by this device"
    return None


def _limits(facts: Facts) -> dict[str, float]:
    """The highest value of each number; the lowest is 0."""
    target = facts.target_batch_size
    return {
        "seq": MAX_SEQ,
        "era": facts.current_era,
        "samples": MAX_SHARE_OF_TARGET * target,
        "loss": MAX_LOSS,
        "mlm_loss": MAX_LOSS,
        "sop_loss": MAX_LOSS,
        "group_size": MAX_GROUP,
        "group_samples": MAX_GROUP_SHARE * target,
        "averaging_s": MAX_DURATION_S,
        "samples_per_second": MAX_SAMPLES_PER_SECOND,
        "lost_samples": MAX_LOST_SHARE * target,
        "data_wait_s": MAX_DURATION_S,
        "elapsed_s": MAX_DURATION_S,
        "averaged_bytes": MAX_AVERAGED_BYTES,
    }
