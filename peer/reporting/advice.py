"""Rate-limited advice for volunteers about lost samples, and rate-limited warnings about data.

The doctor gives the same advice before joining (`why_late`). Every warning is also logged.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from peer.reporting.messages import LostCause, Notice
from peer.runtime.repeats import Repeats

logger = logging.getLogger(__name__)
REMEMBERED = 8  # number of recent steps to consider
LEAST_KNOWN = 4
LOST_SHARE = 0.5
SILENT_S = 3600.0  # minimum interval between advice on the same cause
PAUSE_S = 60.0  # minimum interval between two warnings
FASTER_ROUND = (
    "A cable instead of Wi-Fi, or less other traffic, helps; so do a longer `averaging.averaging_timeout_s` or a"
    " stronger `averaging.compression`, which the run's operator may choose."
)
SAME_PAUSE_S = 3600.0  # minimum interval between identical warnings


@dataclass(frozen=True)
class Conditions:
    """The durations that decide whether samples arrive in time for their step; 0 if unknown."""

    step_s: float = 0.0  # the swarm's usual time per step
    sample_s: float = 0.0  # this device's time per sample
    round_s: float = 0.0  # minimum time to transfer a step's gradients
    longest_round_s: float = 0.0  # maximum duration of an averaging round


class Adviser:
    """An adviser that tells the volunteer why most of the device's samples are lost."""

    def __init__(
        self, conditions: Callable[[], Conditions], tell: Callable[[Notice], None], clock: Callable[[], float]
    ) -> None:
        self._conditions, self._tell = conditions, tell
        self._outcomes: deque[tuple[int, int]] = deque(maxlen=REMEMBERED)  # (samples, lost samples)
        self._repeats = Repeats(clock, window_s=SILENT_S)

    def settled(self, samples: int, lost_samples: int, cause: str) -> None:
        """Record the outcome of a step; `cause` is a `LostCause` value, or "" if no samples were lost."""
        if cause == LostCause.SLOW_LINE.value:  # a device on standby computes no samples
            self._advise(cause)
            return
        if not samples and not lost_samples:
            return
        self._outcomes.append((samples, lost_samples))
        counted, lost = map(sum, zip(*self._outcomes, strict=True))
        share = lost / (counted + lost)
        if len(self._outcomes) >= LEAST_KNOWN and share > LOST_SHARE and lost_samples:
            self._advise(cause, f"{share:.0%} of this device's last samples are in no step. ")

    def _advise(self, cause: str, introduction: str = "") -> None:
        text = advice(cause, self._conditions())
        if text is not None and self._repeats.take(cause) is not None:
            self._tell(Notice("warning", f"{introduction}{text}"))


def advice(cause: str, now: Conditions) -> str | None:
    """Explain a cause of lost samples and suggest a remedy; return None for a temporary cause."""
    if cause == LostCause.AVERAGING.value:
        return (
            "Its rounds of averaging fail while the others' succeed: the line may be busy or unsteady. A cable instead"
            " of Wi-Fi, or less other traffic, helps; `manyhands doctor` measures the line."
        )
    if cause == LostCause.OUT_OF_SYNC.value:
        return (
            "Its model differs from the swarm's after steps that it took itself, so this device computes wrongly:"
            " check its memory, and undo any overclocking."
        )
    if cause == LostCause.SLOW_LINE.value:
        return (
            f"This line needs {now.round_s:.0f} s for a step's gradients, too long for rounds of averaging that last"
            f" {now.longest_round_s:.0f} s at most. This device computes nothing meanwhile, and measures the line again"
            f" now and then. {FASTER_ROUND}"
        )
    if cause != LostCause.LATE.value or not now.step_s:
        return None
    late = f"They come too late: the swarm takes a step every {now.step_s:.0f} s"
    reason, help_ = why_late(now) or ("", "The run's operator may let late samples count with `averaging.delay`.")
    return f"{late}{reason and ', and '}{reason}. {help_}"


def why_late(now: Conditions) -> tuple[str, str] | None:
    """Return the reason why this device is too slow, and a remedy, or None if the reason is unknown."""
    if now.sample_s > now.step_s:
        reason = f"one sample takes this device {now.sample_s:.0f} s"
        return reason, "`manyhands assist` with the same join link lends the swarm the line instead."
    if now.round_s > now.step_s / 2:
        reason = f"a step's gradients take this line {now.round_s:.0f} s"
        help_ = "A cable instead of Wi-Fi helps; so do longer steps or `averaging.delay`, which the run's operator may"
        return reason, f"{help_} choose."
    return None


class SparingReports:
    """A filter that forwards at most one warning a minute, and an identical one after an hour."""

    def __init__(self, tell: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._tell, self._clock = tell, clock
        self._lock = threading.Lock()
        self._silent_until = clock()
        self._withheld = 0
        self._last, self._last_until = "", clock()

    def __call__(self, text: str) -> None:
        logger.warning(text, stacklevel=2)  # the log detects repeats by the caller's line number
        with self._lock:
            now = self._clock()
            if now < self._silent_until or (text == self._last and now < self._last_until):
                self._withheld += 1
                return
            more = f" (The log has {self._withheld} more warnings since the last one.)" if self._withheld else ""
            self._silent_until, self._withheld = now + PAUSE_S, 0
            self._last, self._last_until = text, now + SAME_PAUSE_S
        self._tell(text + more)
