"""A peer's pure decisions: its next move towards a global step, its group's sizes, and who leads.

Like torchft's `quorum_compute`, `decide` depends only on `Situation`, so every branch can be tested
and logged. `peer.swarm.moves` executes the move. `peer.swarm.step_rounds` computes the required
group sizes, and `peer.averaging.meetings` forms the group.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum

from peer.averaging.absences import unawaited
from peer.node.quorum import Quorum
from peer.progress.view import SwarmView

HELD_SHARE = 0.1  # longest wait for the last samples of a batch, as a share of a usual step
LONG_S = 2.0  # shortest microbatch beside which gradients are set aside early, which takes a small part of it
PARTED_SHARE = 0.25  # longest computation between checks of the swarm, as a share of a usual step
HELD_LOOKS = 3
WAITED_SHARE = 0.25  # shortest wait for absent peers with a full batch, as a share of a usual step
MOST_CANDIDATES = 8
FULL_GROUP_ATTEMPTS = 3  # number of failed rounds after which a majority of the peers suffices
RETRY_S = 2.0  # mean pause between attempts to take the first state
ASK_EVERY = 5  # attempts per checkpoint request, because the coordinator limits requests per IP address
REFUSED_PAUSE_S = 2.0  # pause if no donor could provide a state
MOST_PAUSE_S = 300.0  # longest pause, well below the timeout for an unresponsive worker


class Move(Enum):
    """A peer's next move."""

    ACCUMULATE = "accumulate"
    HOLD = "wait for the others' last samples"
    AVERAGE = "average"
    AVERAGE_BESIDE = "average while training goes on"  # once the batch is full
    FOLLOW = "follow"  # apply the average of the first missed step
    DOWNLOAD = "download the state"
    WAIT = "wait"  # do nothing until another download of the state is allowed
    STAND_BY = "stand by"  # do not train until the connection is fast enough


@dataclass(frozen=True)
class Situation:
    """A peer's own status and its view of the swarm at one moment."""

    step: int  # global steps included in this peer's state
    swarm_step: int  # global steps completed by the swarm, as far as this peer knows
    is_too_slow: bool = False  # the connection cannot send this peer's gradients within a round
    is_undone: bool = False  # this peer's state predates the run's last rewind to a checkpoint
    has_drifted: bool = False  # the keeper has a different state after the same step
    can_follow: bool = True  # the average for the step after `step` may still be available
    may_download: bool = True  # the pause after the last download is over
    is_leaving: bool = False
    is_held: bool = False  # the operator has paused or ended the run
    is_full: bool = False  # the global batch of the step after `step` is full
    remaining_s: float = math.inf  # seconds until that batch is full at the reported rates
    microbatch_s: float = 0.0  # duration of this peer's next microbatch
    may_hold: bool = False  # the wait for the last samples of this batch has not timed out
    may_overlap: bool = False  # this peer may train while that batch is averaged
    may_set_aside: bool = False  # its gradients may be set aside before that batch is full


def decide(now: Situation) -> tuple[Move, str]:
    """Return this peer's next move and the reason; adopting the swarm's state takes precedence."""
    if now.is_too_slow:
        return Move.STAND_BY, "the line does not pass the gradients within a round"
    return _towards_the_state(now) or _towards_the_batch(now)


def _towards_the_state(now: Situation) -> tuple[Move, str] | None:
    """Return the move of a peer whose state differs from the swarm's; None if the states match."""
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
        if now.may_set_aside and now.microbatch_s >= LONG_S:
            return Move.AVERAGE_BESIDE, "the batch may be full before another microbatch is computed"
        return Move.ACCUMULATE, "the batch is not full"
    if not now.may_overlap:
        return Move.AVERAGE, "the batch is full"
    return Move.AVERAGE_BESIDE, "the batch is full"


def samples_at_once(microbatch: int, rate: float, usual_s: float) -> int:
    """Return the number of samples to compute before the next check of the swarm.

    The microbatch is halved until it takes at most a quarter of a usual step at `rate` (samples per
    second). A slow device with microbatches longer than a step would otherwise always be late.
    """
    samples = microbatch
    while samples > 1 and samples > PARTED_SHARE * usual_s * rate > 0:
        samples = -(-samples // 2)
    return samples


def longest_hold_s(usual_s: float, look_s: float, missing: int, faster_rate: float) -> float:
    """Return the longest wait for the last samples of a batch, given a step's usual duration.

    Publishing and reading a report takes a few times `look_s`. After that, the fastest peer resumes
    computing; a slower peer resumes once all faster peers (`faster_rate` samples per second) could
    have computed the missing samples. One peer therefore fills the batch instead of all.
    """
    others_s = missing / faster_rate if faster_rate > 0 else 0.0
    return min(HELD_SHARE * usual_s, HELD_LOOKS * look_s + others_s)


@dataclass(frozen=True)
class Demands:
    """The group sizes that one peer requires, including itself."""

    required: int  # smallest group that may begin to average
    expected: int  # size at which the group stops waiting for others; 0: unknown


def demands_on_group(
    view: SwarmView,
    *,
    step: int,
    own_id: str,
    left_out: Collection[str],
    attempts: int,
    has_waited: bool,
) -> Demands:
    """Return the group sizes that a peer requires when its state is after `step`.

    `left_out`: IDs of peers absent from recent groups. `attempts`: failed rounds of this step.
    """
    absent = len(unawaited(left_out, view.here - {own_id}))
    return Demands(
        required=required_group_size(view.averaging - absent, attempts, has_waited),
        expected=view.averaging + view.arriving - absent if view.step == step else 0,
    )


def required_group_size(averaging: int, attempts: int, has_waited: bool) -> int:
    """Return the required group size: all peers, or a majority after failures or a long wait."""
    return averaging // 2 + 1 if has_waited or attempts >= FULL_GROUP_ATTEMPTS else averaging


def candidates(
    keepers: Collection[str], reachable: Collection[str], run: str, position: tuple[int, int]
) -> tuple[str, ...]:
    """Return the IDs of the peers that may lead the group at `position` (era, step), preferred first.

    The keeper leads. If nobody hears the keeper, a hash ranks the peers at this position that
    others can connect to (rendezvous hashing). All peers with the same view choose the same leader,
    and each step has another one.
    """
    if keepers:
        return tuple(sorted(keepers))
    ranked = sorted(reachable, key=lambda peer: hashlib.sha256(repr((run, position, peer)).encode()).digest())
    return tuple(ranked[:MOST_CANDIDATES])


def may_average_alone(own_id: str, quorum: Quorum, samples: int, target: int) -> bool:
    """Return whether a peer that sees no other peer at its step may use its own mean gradient.

    The peer needs a whole batch: without one, the others have just taken the step, or this peer is
    the keeper.
    """
    return samples >= target and quorum.is_in({own_id})


def patience_s(timeout_s: float, usual_s: float) -> float:
    """Return the seconds to wait for absent peers, which may be computing, once a batch is full."""
    return max(timeout_s / 2, WAITED_SHARE * usual_s)


class DownloadPause:
    """An exponential backoff between downloads of the state that do not lead to a step.

    A download uses the donor's bandwidth, so the pause starts at the download's duration and
    doubles each time.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until, self._in_succession = float("-inf"), 0

    @property
    def is_over(self) -> bool:
        """Whether the next download may begin."""
        return self._clock() >= self._until

    def begin(self, seconds: float | None) -> None:
        """Begin the pause after a download that took `seconds`; None if no donor had a state."""
        if seconds is None:
            self._until = self._clock() + REFUSED_PAUSE_S
            return
        self._until = self._clock() + min(MOST_PAUSE_S, max(1.0, seconds) * 2.0**self._in_succession)
        self._in_succession += 1

    def end(self) -> None:
        """Reset the pause after a step taken with the others."""
        self._until, self._in_succession = float("-inf"), 0
