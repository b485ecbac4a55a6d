"""The loop of an auxiliary peer, which averages with the trainers and takes every step with them, and trains nothing.

Its line and its processor reduce a share of the others' gradients (DeDLOC, Diskin et al. 2021, arXiv 2106.10207,
section 3.2), which is what it is credited for. Its own gradient has no weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from peer.reporting.messages import Progress, StepReport
from peer.training.tally import Tally

if TYPE_CHECKING:
    from peer.swarm.swarm import StepOutcome, SwarmProgress

POLL_S = 0.03  # a full batch waits for this peer so long at most
PROGRESS_INTERVAL_S = 1.0


class AssistedSwarm(Protocol):
    """The part of `peer.swarm.swarm.Swarm` that the loop needs."""

    def begin_training(self) -> None: ...

    def advance(self) -> StepOutcome | None: ...

    def progress(self) -> SwarmProgress: ...


def assist(
    swarm: AssistedSwarm,
    send: Callable[[Progress | StepReport], None],
    should_stop: Callable[[], bool],
    clock: Callable[[], float],
    wait: Callable[[float], object],
) -> None:
    """Average until `should_stop`; reports name no samples, no losses and no time spent training."""
    swarm.begin_training()
    next_progress_at = clock()
    while not should_stop():
        outcome = swarm.advance()
        now = clock()
        if outcome is not None and outcome.averaged:
            send(Tally(began_at=now, data_wait_s=0.0).report(outcome, now, 0.0))
        if now >= next_progress_at:
            next_progress_at = now + PROGRESS_INTERVAL_S
            send(Tally(began_at=now, data_wait_s=0.0).progress(swarm.progress()))
        wait(POLL_S)
