"""Decisions about averaging groups; real swarms are in tests/system."""

from __future__ import annotations

import threading
from concurrent import futures
from types import SimpleNamespace

import pytest

from peer.averaging import AveragedGroup
from peer.course import MEETING_S
from peer.round_counts import RoundCounts
from peer.swarm_optimizer import SwarmOptimizer
from tests.support.clocks import Clock
from tests.support.peer_records import SOUND, Scene, peers, record


class SlowRound:
    """A round that has begun and gives no result; after so many looks it has failed, or the others have stepped."""

    began_allreduce = True

    def __init__(self, fails_at: int, others_step_at: int) -> None:
        self.fails_at, self.others_step_at = fails_at, others_step_at
        self.looks = 0
        self.optimizer = SimpleNamespace(
            averaging_timeout=3600.0,
            local_epoch=4,
            interrupted=threading.Event(),
            tracker=SimpleNamespace(ready_to_update_epoch=True, swarm_step=4),
            grad_averager=SimpleNamespace(failed_rounds=7),
            _require_group=lambda: None,
        )

    def result(self, timeout: float) -> None:
        self.looks += 1
        if self.looks == self.fails_at:
            self.optimizer.grad_averager.failed_rounds += 1
        if self.looks == self.others_step_at:
            self.optimizer.tracker.swarm_step = 5
        raise futures.TimeoutError


@pytest.mark.parametrize(("fails_at", "others_step_at"), [(3, 9), (9, 3)])
def test_a_round_that_only_failed_here_is_not_waited_for(fails_at: int, others_step_at: int) -> None:
    """Neither a failed round alone, which is tried again, nor others that are quicker are a reason to give up."""
    slow = SlowRound(fails_at, others_step_at)
    with pytest.raises(futures.TimeoutError):
        SwarmOptimizer._await_group(slow.optimizer, slow)  # type: ignore[arg-type]
    assert slow.looks == 9


@pytest.mark.parametrize(("samples", "own", "all_rates", "ahead"), [(9, 2.0, 8.0, False), (10, 2.0, 8.0, True)])
def test_a_peer_trains_no_further_ahead_than_its_share(samples: int, own: float, all_rates: float, ahead: bool) -> None:
    """With a quarter of the swarm's speed, a peer has its part of the next batch of 40 when it has 10 samples of it."""
    tracker = SimpleNamespace(
        performance_ema=SimpleNamespace(samples_per_second=own), view=SimpleNamespace(rate=all_rates)
    )
    averager = SimpleNamespace(local_samples_accumulated=samples)
    optimizer = SimpleNamespace(tracker=tracker, grad_averager=averager, target_batch_size=40)
    assert SwarmOptimizer.is_ahead.fget(optimizer) is ahead  # type: ignore[attr-defined]


@pytest.mark.parametrize("late", [True, False])
def test_nobody_goes_on_alone_while_the_keeper_may_only_be_late(late: bool) -> None:
    """A record that is missing for a moment is no reason to take a step that the keeper does not see."""
    averager = SimpleNamespace(due_samples=64, load_accumulators_into_averager_=lambda: None)
    tracker = SimpleNamespace(view=SimpleNamespace(averaging=1), keeper_may_be_late=late)
    optimizer = SimpleNamespace(
        tracker=tracker, grad_averager=averager, target_batch_size=64, _cancel_scheduled=lambda: None
    )
    group = SwarmOptimizer.average(optimizer)  # type: ignore[arg-type]
    assert group == (None if late else AveragedGroup(size=1, samples=64, averaged_bytes=0))


def test_a_failed_averaging_is_tried_again_and_a_group_ends_it() -> None:
    """The group is what the step is taken with; nothing more is averaged, though the batch still looks full."""
    group = AveragedGroup(size=2, samples=64, averaged_bytes=0)
    results, rounds = iter([None, None, group, None]), RoundCounts(Clock())

    def average() -> AveragedGroup | None:
        rounds.begin()
        return next(results)

    optimizer = SimpleNamespace(average=average, is_due=True, rounds=rounds, attempts=0)
    assert SwarmOptimizer.average_when_due(optimizer) is group  # type: ignore[arg-type]
    assert (optimizer.attempts, rounds.tally.failed, rounds.tally.succeeded) == (2, 2, 1)


def test_the_members_word_for_a_state_is_waited_for() -> None:
    """Their records may reach the keeper a moment after the state that a donor gives it."""
    scene = Scene(is_keeper=True)
    records = peers(*[record(step=50).model_copy(update={"sketch": SOUND})] * 2)
    scene.look(records, 0.0)

    class Interval(threading.Event):
        """The records come while one waits."""

        def wait(self, timeout: float | None = None) -> bool:
            scene.look(records, MEETING_S)
            return False

    optimizer = SimpleNamespace(tracker=SimpleNamespace(course=scene.course), interrupted=Interval())
    assert SwarmOptimizer._await_sketch(optimizer, 50) == SOUND  # type: ignore[arg-type]
