"""THE loop: microbatch -> loss -> gradients -> accumulate -> step together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from peer.backends import Backend
from peer.lost_causes import Lost, LostCause
from peer.messages import Progress, StepReport
from peer.tally import Tally

if TYPE_CHECKING:
    from peer.data.batches import Batch
    from peer.swarm import StepOutcome, SwarmProgress

PROGRESS_INTERVAL_S = 1.0


class Batches(Protocol):
    """A stream of microbatches that knows how long it kept its reader waiting."""

    @property
    def wait_s(self) -> float: ...

    def __iter__(self) -> Iterator[Batch]: ...


class Swarm(Protocol):
    """What the loop needs of `peer.swarm.Swarm`."""

    def begin_training(self) -> None: ...

    def add(self, samples: int) -> None: ...

    def advance(self, collect: Callable[[], None]) -> StepOutcome | None: ...

    def finish(self, collect: Callable[[], None]) -> StepOutcome | None: ...

    def progress(self) -> SwarmProgress: ...


def train(
    backend: Backend,
    batches: Batches,
    swarm: Swarm,
    send: Callable[[Progress | StepReport | Lost], None],
    should_stop: Callable[[], bool],
    clock: Callable[[], float],
) -> None:
    """Train until `should_stop` or the end of the data; what the swarm has not taken by then is lost, and told."""
    waiting_samples = 0  # accumulated, and neither averaged in nor lost yet
    tally = Tally(began_at=clock(), data_wait_s=batches.wait_s)
    next_progress_at = clock()
    for batch in batches:
        if should_stop():
            break
        result = backend.accumulate(batch)
        if not result.finite:
            tally.lose(result.samples, LostCause.NON_FINITE.value)
        else:
            tally.add(result)
            waiting_samples += result.samples
            swarm.begin_training()
            swarm.add(result.samples)

        outcome = swarm.advance(backend.collect)
        if outcome is not None:
            backend.synchronize()
            waiting_samples -= outcome.samples + outcome.lost_samples
            if outcome.averaged:
                send(tally.report(outcome, clock(), batches.wait_s))
                tally = Tally(began_at=clock(), data_wait_s=batches.wait_s)
            else:  # the swarm was ahead: its state was taken, this peer's samples are lost
                tally.lose(outcome.lost_samples, outcome.lost_reason)
                tally.forget_losses()

        if clock() >= next_progress_at:
            next_progress_at = clock() + PROGRESS_INTERVAL_S
            send(tally.progress(swarm.progress()))

    outcome = swarm.finish(backend.collect)  # a step whose averaging went on beside the last microbatches
    if outcome is not None:
        send(tally.report(outcome, clock(), batches.wait_s))
        waiting_samples -= outcome.samples
        tally = Tally(began_at=clock(), data_wait_s=batches.wait_s)
    tally.lose(max(0, waiting_samples), LostCause.LEFT.value)
    if tally.lost:
        send(Lost(swarm.progress().step + 1, dict(tally.lost)))
