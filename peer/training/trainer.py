"""THE loop: microbatch -> loss -> gradients -> accumulate -> step together.

While the operator has paused the run, the trainer waits for its next microbatch (`HeldBatches`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from peer.backends import Backend
from peer.reporting.messages import Lost, Progress, StepReport
from peer.training.tally import Tally

if TYPE_CHECKING:
    from peer.data.batching.batches import Batch
    from peer.swarm.swarm import StepOutcome, SwarmProgress

PROGRESS_INTERVAL_S = 1.0
POLL_S = 0.5  # while the run is paused


class Batches(Protocol):
    """A stream of microbatches that knows how long it kept its reader waiting."""

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
    """Train until `should_stop` or the end of the data; samples not averaged by then are reported as lost.

    A peer that is behind, or has as many samples as count, computes nothing before it has caught up or taken a step.
    The others wait for it after its first microbatch, for which a device may compile for minutes.
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
        batch = next(stream, None)  # drawn only now: an earlier one may be of a phase that has ended
        if batch is None or should_stop():
            break
        result = backend.accumulate(batch)
        tally.add(result)
        if result.finite:
            swarm.begin_training()
            swarm.add(result.samples)
        settle(swarm.advance(backend.collect))

    settle(swarm.finish(backend.collect))  # a step whose averaging went on beside the last microbatches
    lost = tally.leave()
    if lost:
        send(Lost(swarm.progress().step + 1, lost))


class HeldBatches:
    """A stream of microbatches that pauses while `is_held`; a loop that is told to stop gets the next one at once."""

    def __init__(
        self,
        batches: Batches,
        is_held: Callable[[], bool],
        wait: Callable[[float], bool],
        tell: Callable[[str], None],
    ) -> None:
        """`wait` sleeps so many seconds and says whether to stop; `tell` tells the person at the terminal."""
        self._batches, self._is_held, self._wait, self._tell = batches, is_held, wait, tell

    @property
    def wait_s(self) -> float:
        """The seconds that the stream kept its reader waiting, without pauses of the run."""
        return self._batches.wait_s

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._batches:
            if self._is_held():
                self._hold()
            yield batch

    def _hold(self) -> None:
        self._tell("The operator has paused the run: waiting.")
        while self._is_held():
            if self._wait(POLL_S):
                return
        self._tell("The run goes on.")
