"""The training loop: compute microbatches, accumulate their gradients, and step with the swarm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from peer.backends import Backend
from peer.reporting.messages import Lost, Progress, StepReport
from peer.training.tally import Tally

if TYPE_CHECKING:
    from peer.data.batching.batches import Batch
    from peer.swarm.moves import StepOutcome
    from peer.swarm.swarm import SwarmProgress

PROGRESS_INTERVAL_S = 1.0


class Batches(Protocol):
    """A stream of microbatches that measures the total time its reader waits."""

    @property
    def wait_s(self) -> float: ...

    def __iter__(self) -> Iterator[Batch]: ...


class TrainingSwarm(Protocol):
    """The part of `peer.swarm.swarm.Swarm` that the loop needs."""

    @property
    def wants_samples(self) -> bool: ...

    def begin_training(self) -> None: ...

    def add(self, samples: int) -> None: ...

    def advance(self, collect: Callable[[], None]) -> StepOutcome | None: ...

    def finish(self, collect: Callable[[], None]) -> StepOutcome | None: ...

    def progress(self) -> SwarmProgress: ...


def train(
    backend: Backend,
    batches: Batches,
    swarm: TrainingSwarm,
    send: Callable[[Progress | StepReport | Lost], None],
    should_stop: Callable[[], bool],
    clock: Callable[[], float],
    on_outcome: Callable[[StepOutcome], None] = lambda _: None,
) -> None:
    """Train until `should_stop` returns True or the data ends.

    Samples not averaged at the end are reported as lost. A peer that is behind, or has reached the
    maximum of samples, computes nothing until it has caught up or taken a step. No peer computes
    while the operator has paused the run. Other peers wait for this peer only after its first
    microbatch, because a device may compile for minutes.
    """
    tally = Tally(began_at=clock(), data_wait_s=batches.wait_s)
    next_progress_at = clock()

    def settle(outcome: StepOutcome | None) -> None:
        nonlocal next_progress_at
        if outcome is not None:
            backend.synchronize()
            on_outcome(outcome)
            report = tally.settle(outcome, clock(), batches.wait_s)
            if report is not None:
                send(report)
        if clock() >= next_progress_at:
            next_progress_at = clock() + PROGRESS_INTERVAL_S
            send(tally.progress(swarm.progress()))

    stream = iter(batches)
    while not should_stop():
        if not swarm.wants_samples:
            settle(swarm.advance(backend.collect))
            continue
        batch = next(stream, None)  # fetched late, because the phase may have changed
        if batch is None or should_stop():
            break
        result = backend.accumulate(batch)
        tally.add(result)
        if result.finite:
            swarm.begin_training()
            swarm.add(result.samples)
        settle(swarm.advance(backend.collect))

    settle(swarm.finish(backend.collect))  # including a step averaged during the last microbatches
    lost = tally.leave()
    if lost:
        send(Lost(swarm.progress().step + 1, lost))
