"""A trainer that waits while the run is paused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from peer.data.batches import Batch
from peer.holding import POLL_S, HeldBatches
from tests.support.tiny_albert import random_batch

COUNT = 4


@dataclass
class Text:
    """A few microbatches."""

    wait_s: float = 3.0

    def __iter__(self) -> Iterator[Batch]:
        return iter([random_batch(seed, samples=2) for seed in range(COUNT)])


@dataclass
class Scene:
    """Somebody who pauses the run for so many looks after the first microbatch, and may tell the trainer to stop."""

    looks: int = 0
    stops: bool = False
    waits: list[float] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    taken: int = 0

    def is_held(self) -> bool:
        return self.taken == 1 and len(self.waits) < self.looks

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return self.stops

    def run(self) -> None:
        for _ in HeldBatches(Text(), self.is_held, self.wait, self.told.append):
            self.taken += 1


def test_nothing_is_said_and_nobody_waits_without_a_pause() -> None:
    """All microbatches come, and what the reader says of its own waits is handed on."""
    scene = Scene()
    scene.run()
    assert (scene.taken, scene.waits, scene.told) == (COUNT, [], [])
    assert HeldBatches(Text(), scene.is_held, scene.wait, scene.told.append).wait_s == 3.0


def test_a_trainer_waits_as_long_as_the_run_is_paused_and_goes_on_by_itself() -> None:
    """It is told of both, once, and misses no microbatch."""
    scene = Scene(looks=3)
    scene.run()
    assert (scene.taken, scene.waits) == (COUNT, [POLL_S] * 3)
    assert scene.told == ["The operator has paused the run: waiting.", "The run goes on."]


def test_who_is_told_to_stop_does_not_wait_for_the_end_of_the_pause() -> None:
    """The next microbatch comes at once, so that the loop sees that it is to end."""
    scene = Scene(looks=10**6, stops=True)
    batches = iter(HeldBatches(Text(), scene.is_held, scene.wait, scene.told.append))
    next(batches)
    scene.taken = 1
    next(batches)
    assert scene.waits == [POLL_S]
    assert scene.told == ["The operator has paused the run: waiting."]
