"""The next move of a peer towards the next global step: a pure decision with its reason.

After torchft's `quorum_compute`: all that a decision depends on is in `Situation`, so each of its branches can be
tested, and named in the log. `peer.swarm.swarm` makes the move.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

REFUSED_PAUSE_S = 2.0  # after a donor had no state to give
MOST_PAUSE_S = 300.0  # between two downloads of the state; well below the time after which a silent worker is ended


class Move(Enum):
    """A peer's next move."""

    ACCUMULATE = "accumulate"
    AVERAGE = "average"
    AVERAGE_BESIDE = "average while training goes on"
    FOLLOW = "follow"  # take the average of the first step that was missed
    DOWNLOAD = "download the state"
    WAIT = "wait"  # until the state may be downloaded again


@dataclass(frozen=True)
class Situation:
    """One peer's situation in its swarm at a moment."""

    step: int  # global steps completed by this peer's state
    swarm_step: int  # by the swarm's, as far as this peer knows
    is_undone: bool = False  # the run has returned to a checkpoint since this peer took its state
    has_drifted: bool = False  # the keeper has another state after the same step
    can_follow: bool = True  # the average after `step` may be had
    may_download: bool = True  # no download that brought this peer into no step was a short while ago
    is_leaving: bool = False
    is_held: bool = False  # the operator wants no further step, for now or for good
    is_full: bool = False  # the global batch of the step after `step`
    may_overlap: bool = False  # this peer may train on while that batch is averaged
    others_arrive: bool = False  # peers are about to take the step that this one has taken


def decide(now: Situation) -> tuple[Move, str]:
    """Return this peer's next move, and the reason."""
    state = Move.DOWNLOAD if now.may_download else Move.WAIT
    if now.is_undone:
        return state, "the run has returned to a checkpoint"
    if now.swarm_step > now.step:
        if now.can_follow:
            return Move.FOLLOW, f"the swarm has come to step {now.swarm_step}"
        return state, f"the averages up to step {now.swarm_step} are to be had no more"
    if now.has_drifted:
        return state, "the keeper has another state after this step"
    if now.is_leaving:
        return Move.ACCUMULATE, "this peer is about to leave"
    if now.is_held:
        return Move.ACCUMULATE, "the operator wants no further step"
    if not now.is_full:
        return Move.ACCUMULATE, "the batch is not full"
    if not now.may_overlap:
        return Move.AVERAGE, "the batch is full"
    if now.others_arrive:
        return Move.ACCUMULATE, "others are about to arrive at this step"
    return Move.AVERAGE_BESIDE, "the batch is full"


class DownloadPause:
    """A growing pause between downloads of the state that bring this peer into no step.

    Each takes the donor's line as long as it lasts, so the pause begins with that and doubles.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until, self._in_succession = float("-inf"), 0

    @property
    def is_over(self) -> bool:
        """Whether the next download may begin."""
        return self._clock() >= self._until

    def begin(self, seconds: float | None) -> None:
        """Begin the pause after a download that took so long; None: no donor had a state to give."""
        if seconds is None:
            self._until = self._clock() + REFUSED_PAUSE_S
            return
        self._until = self._clock() + min(MOST_PAUSE_S, max(1.0, seconds) * 2.0**self._in_succession)
        self._in_succession += 1

    def end(self) -> None:
        """End the pause: a step was taken with the others."""
        self._until, self._in_succession = float("-inf"), 0
