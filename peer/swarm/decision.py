"""The pure decisions of a peer: its next move towards the next global step, and its demands on a group.

After torchft's `quorum_compute`: all that a move depends on is in `Situation`, so each branch of `decide` can be
tested, and named in the log. `peer.swarm.swarm` makes the move. `peer.swarm.step_rounds` makes the demands, and
`peer.averaging.matchmaking` looks for a group that meets them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum

from peer.averaging.absences import unawaited
from peer.averaging.matchmaking import keeperless_group_size, required_group_size
from peer.swarm.view import SwarmView

HELD_SHARE = 0.1  # of a usual step
PARTED_SHARE = 0.25  # of a usual step, too
HELD_LOOKS = 3
WAITED_SHARE = 0.25  # likewise
REFUSED_PAUSE_S = 2.0  # after a donor had no state to give
MOST_PAUSE_S = 300.0  # between two downloads of the state; well below the time after which a silent worker is ended


class Move(Enum):
    """A peer's next move."""

    ACCUMULATE = "accumulate"
    HOLD = "wait for the others' last samples"
    AVERAGE = "average"
    AVERAGE_BESIDE = "average while training goes on"
    FOLLOW = "follow"  # take the average of the first step that was missed
    DOWNLOAD = "download the state"
    WAIT = "wait"  # until the state may be downloaded again
    STAND_BY = "stand by"  # until the line passes the gradients in time


@dataclass(frozen=True)
class Situation:
    """One peer's situation in its swarm at a moment."""

    step: int  # global steps completed by this peer's state
    swarm_step: int  # by the swarm's, as far as this peer knows
    is_too_slow: bool = False  # the line does not pass this peer's gradients within a round
    is_undone: bool = False  # the run has returned to a checkpoint since this peer took its state
    has_drifted: bool = False  # the keeper has another state after the same step
    can_follow: bool = True  # the average after `step` may be had
    may_download: bool = True  # no download that brought this peer into no step was a short while ago
    is_leaving: bool = False
    is_held: bool = False  # the operator wants no further step, for now or for good
    is_full: bool = False  # the global batch of the step after `step`
    remaining_s: float = math.inf  # until it is, if all go on as they reported
    microbatch_s: float = 0.0  # that this peer's next microbatch takes
    may_hold: bool = False  # this peer has not waited long for that
    may_overlap: bool = False  # this peer may train on while that batch is averaged
    others_arrive: bool = False  # peers are about to take the step that this one has taken


def decide(now: Situation) -> tuple[Move, str]:
    """Return this peer's next move, and the reason: the swarm's state comes before its batch."""
    if now.is_too_slow:
        return Move.STAND_BY, "the line does not pass the gradients within a round"
    return _towards_the_state(now) or _towards_the_batch(now)


def _towards_the_state(now: Situation) -> tuple[Move, str] | None:
    """Return the move of a peer whose state is not the swarm's; None if it is."""
    state = Move.DOWNLOAD if now.may_download else Move.WAIT
    if now.is_undone:
        return state, "the run has returned to a checkpoint"
    if now.swarm_step > now.step:
        if now.can_follow:
            return Move.FOLLOW, f"the swarm has come to step {now.swarm_step}"
        return state, f"the averages up to step {now.swarm_step} are to be had no more"
    if now.has_drifted:
        return state, "the keeper has another state after this step"
    return None


def _towards_the_batch(now: Situation) -> tuple[Move, str]:
    if now.is_leaving:
        return Move.ACCUMULATE, "this peer is about to leave"
    if now.is_held:
        return Move.ACCUMULATE, "the operator wants no further step"
    if not now.is_full:
        if now.may_hold and now.remaining_s < now.microbatch_s / 2:
            return Move.HOLD, "the batch will be full before half of another microbatch is computed"
        return Move.ACCUMULATE, "the batch is not full"
    if not now.may_overlap:
        return Move.AVERAGE, "the batch is full"
    if now.others_arrive:
        return Move.ACCUMULATE, "others are about to arrive at this step"
    return Move.AVERAGE_BESIDE, "the batch is full"


def samples_at_once(microbatch: int, rate: float, usual_s: float) -> int:
    """Return how many samples of a microbatch to compute before the swarm is looked at: all, or a half, a quarter ...

    So many as take at most a quarter of a usual step at this peer's `rate`, in samples per second. A slow device whose
    microbatch lasts longer than a step would always be late.
    """
    samples = microbatch
    while samples > 1 and samples > PARTED_SHARE * usual_s * rate > 0:
        samples = -(-samples // 2)
    return samples


def longest_hold_s(usual_s: float, look_s: float, missing: int, faster_rate: float) -> float:
    """Return how long to wait for the last samples of a batch, where a step usually lasts `usual_s`.

    Reports and looks take a few times `look_s`. If samples are missing then, the fastest peer computes on first, and
    each other once those that are faster (`faster_rate` samples per second) have had the time for all of them: so one
    peer fills the batch, and not all.
    """
    others_s = missing / faster_rate if faster_rate > 0 else 0.0
    return min(HELD_SHARE * usual_s, HELD_LOOKS * look_s + others_s)


@dataclass(frozen=True)
class Demands:
    """The sizes of a group that one peer looks for, itself included."""

    required: int  # the least with which a group begins
    keeperless: int  # the least with which a group without the keeper may average
    expected: int  # with so many a group waits for nobody else; 0 if that is not known


def demands_on_group(
    view: SwarmView,
    *,
    step: int,
    own_id: str,
    left_out: Collection[str],
    attempts: int,
    has_waited: bool,
    keeper_may_be_late: bool,
    has_looked: bool,
) -> Demands:
    """Return the demands of a peer whose state is after `step`.

    `left_out`: peers (peer IDs) that stayed away from the last groups. `attempts`: rounds towards this step that
    failed. `has_looked`: this peer has looked again since its batch was full; who began just before is only seen then.
    """
    absent = len(unawaited(left_out, view.here - {own_id}))
    has_keeper = view.keepers > 0 or keeper_may_be_late
    is_known = has_looked and view.step == step and (view.keepers > 0 or not keeper_may_be_late)
    return Demands(
        required=required_group_size(view.averaging - absent, attempts, has_waited),
        keeperless=keeperless_group_size(view.live, has_keeper, is_taken=view.newest_step > step),
        expected=view.averaging + view.arriving - absent if is_known else 0,
    )


def may_average_alone(view: SwarmView, samples: int, target: int, keeper_may_be_late: bool) -> bool:
    """Return whether a peer that sees nobody else at its step may take its own mean gradient as the average.

    Not without a whole batch, for then the others have just moved on, or this is the keeper; not while the keeper may
    only be late, for it would be left behind; and not while others are at another step, of whom one peer is not most.
    """
    return samples >= target and not keeper_may_be_late and view.live <= 1


def patience_s(timeout_s: float, usual_s: float) -> float:
    """Return the seconds that a full batch waits for everybody: one microbatch may last minutes."""
    return max(timeout_s / 2, WAITED_SHARE * usual_s)


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
