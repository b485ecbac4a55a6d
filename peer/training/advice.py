"""Tells a volunteer why its samples do not count and what would help, when most of them are lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from peer.reporting.messages import LostCause, Notice

if TYPE_CHECKING:
    from peer.swarm.swarm import Conditions, StepOutcome

REMEMBERED = 8  # outcomes with samples, this peer's or lost ones
LEAST_KNOWN = 4
LOST_SHARE = 0.5
SILENT_S = 3600.0  # between two pieces of advice about the same cause


class Adviser:
    """The watch over one peer's outcomes."""

    def __init__(
        self, conditions: Callable[[], Conditions], tell: Callable[[Notice], None], clock: Callable[[], float]
    ) -> None:
        self._conditions, self._tell, self._clock = conditions, tell, clock
        self._outcomes: deque[StepOutcome] = deque(maxlen=REMEMBERED)
        self._told_at: dict[str, float] = {}

    def settled(self, outcome: StepOutcome) -> None:
        """Take in the outcome of an attempt at a step; tell the person if most of the last samples are lost."""
        if not outcome.samples and not outcome.lost_samples:
            return
        self._outcomes.append(outcome)
        lost = sum(each.lost_samples for each in self._outcomes)
        share = lost / (lost + sum(each.samples for each in self._outcomes))
        cause, now = outcome.lost_reason, self._clock()
        if len(self._outcomes) < LEAST_KNOWN or share <= LOST_SHARE or not outcome.lost_samples:
            return
        if now - self._told_at.get(cause, float("-inf")) < SILENT_S:
            return
        text = advice(cause, self._conditions())
        if text is not None:
            self._told_at[cause] = now
            self._tell(Notice("warning", f"{share:.0%} of this device's last samples are in no step. {text}"))


def advice(cause: str, now: Conditions) -> str | None:
    """Return why samples are lost again and again, and what would help; None for causes that pass by themselves."""
    if cause == LostCause.AVERAGING.value:
        return (
            "Its rounds of averaging fail while the others' succeed: the line may be busy or unsteady. A cable instead"
            " of Wi-Fi, or less other traffic, helps; `manyhands doctor` measures the line."
        )
    if cause == LostCause.OUT_OF_SYNC.value:
        return (
            "Its model differs from the swarm's after steps that it took itself, so this device computes wrongly:"
            " check its memory, and take back any overclocking."
        )
    if cause != LostCause.LATE.value or not now.step_s:
        return None
    late = f"They come too late: the swarm takes a step every {now.step_s:.0f} s"
    if now.sample_s > now.step_s:
        return (
            f"{late}, and one sample takes this device {now.sample_s:.0f} s. `manyhands assist` with the same join link"
            " lends the swarm the line instead."
        )
    if now.round_s > now.step_s / 2:
        return (
            f"{late}, and a step's gradients take this line {now.round_s:.0f} s. A cable instead of Wi-Fi helps; so do"
            " longer steps or `averaging.delay`, which the run's operator may choose."
        )
    return f"{late}. The run's operator may let late samples count with `averaging.delay`."
