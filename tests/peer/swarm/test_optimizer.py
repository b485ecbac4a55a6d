"""Decisions about averaging groups; real swarms are in tests/system."""

from __future__ import annotations

import math
import threading
import time
from concurrent import futures
from types import SimpleNamespace
from typing import Any

import pytest

from peer.averaging.averager import AveragedGroup
from peer.averaging.matchmaking import FULL_GROUP_ATTEMPTS, LEAST_WINDOW_S, NEVER, Gathering
from peer.averaging.rounds import LEAST_KNOWN, RoundDeadline
from peer.config.run import RunConfig
from peer.config.steering import Steering
from peer.reporting.metrics import RoundCounts
from peer.swarm.optimizer import SwarmOptimizer
from peer.swarm.view import MEETING_S, STEPS_AHEAD
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
            tracker=SimpleNamespace(ready_to_update_epoch=True, swarm_step=4, is_reducing=lambda reduces: None),
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


@pytest.mark.parametrize(("late", "live"), [(True, 1), (False, 2), (False, 1)])
def test_nobody_goes_on_alone_beside_others(late: bool, live: int) -> None:
    """A keeper's record that is missing for a moment is no reason for a step alone; nor do others at another step."""
    averager = SimpleNamespace(due_samples=64, load_accumulators_into_averager_=lambda: None)
    tracker = SimpleNamespace(view=SimpleNamespace(averaging=1, live=live), keeper_may_be_late=late)
    optimizer = SimpleNamespace(
        tracker=tracker, grad_averager=averager, target_batch_size=64, _cancel_scheduled=lambda: None
    )
    group = SwarmOptimizer.average(optimizer)  # type: ignore[arg-type]
    assert group == (None if late or live > 1 else AveragedGroup(size=1, samples=64, averaged_bytes=0))


def test_a_failed_averaging_is_tried_again_and_a_group_ends_it() -> None:
    """The group is what the step is taken with; nothing more is averaged, though the batch still looks full."""
    group = AveragedGroup(size=2, samples=64, averaged_bytes=0)
    results, rounds = iter([None, None, group, None]), RoundCounts(Clock())

    def average() -> AveragedGroup | None:
        rounds.begin()
        return next(results)

    tracker = SimpleNamespace(view=SimpleNamespace(averaging=2))
    optimizer = SimpleNamespace(average=average, is_due=True, rounds=rounds, attempts=0, tracker=tracker)
    assert SwarmOptimizer.average_when_due(optimizer) is group  # type: ignore[arg-type]
    assert (optimizer.attempts, rounds.tally.failed, rounds.tally.succeeded) == (2, 2, 1)


def test_a_peer_that_finds_itself_alone_trains_on() -> None:
    """Others at another step may come to this one; meanwhile it is not to stand still."""
    tracker = SimpleNamespace(view=SimpleNamespace(averaging=1))
    optimizer = SimpleNamespace(
        average=lambda: None, is_due=True, rounds=RoundCounts(Clock()), attempts=0, tracker=tracker
    )
    optimizer.rounds.begin()
    assert SwarmOptimizer.average_when_due(optimizer) is None  # type: ignore[arg-type]
    assert optimizer.attempts == 1


@pytest.mark.parametrize(("usual_s", "seconds"), [(0.0, 30.0), (60.0, 30.0), (400.0, 100.0)])
def test_everybody_is_waited_for_within_bounds(usual_s: float, seconds: float) -> None:
    """One whose microbatch takes minutes must not stop the rest; where steps are long, a part of one is short."""
    course = SimpleNamespace(allowances=SimpleNamespace(usual_s=usual_s))
    config = RunConfig.from_mapping({"averaging": {"averaging_timeout_s": 60.0}})
    assert told("_patience_s", SimpleNamespace(_config=config, tracker=SimpleNamespace(course=course))) == seconds
    optimizer = gathering_optimizer()
    optimizer._due_since = time.monotonic() - 2 * optimizer._patience_s
    assert required(optimizer)[1] == 3


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


def told(name: str, optimizer: SimpleNamespace) -> Any:
    """A property of the optimizer that consists of these parts."""
    return getattr(SwarmOptimizer, name).fget(optimizer)


def gathering_optimizer(attempts: int = 0, **changes: Any) -> SimpleNamespace:
    """One at step 4 with three others there and one on its way, which has noticed that in a view of its own."""
    view = SimpleNamespace(step=4, averaging=4, arriving=1, live=6, keepers=1)
    vars(view).update(changes)
    averager = SimpleNamespace(findings=SimpleNamespace(take=lambda: ["a finding"]), gathering=Gathering(5.0))
    heard: list[list[str]] = []
    tracker = SimpleNamespace(view=view, keeper_may_be_late=True, heed=heard.append, heard=heard)
    return SimpleNamespace(
        tracker=tracker,
        grad_averager=averager,
        state_averager=SimpleNamespace(era=2),
        local_epoch=4,
        attempts=attempts,
        _due_view="another view",
        _due_since=math.inf,
        _patience_s=3600.0,
    )


def required(optimizer: SimpleNamespace) -> tuple[int, int, int]:
    """Which step a group is sought for, how many it needs, and how many are waited for."""
    SwarmOptimizer._require_group(optimizer)  # type: ignore[arg-type]
    gathering = optimizer.grad_averager.gathering
    return gathering.position[1], gathering.required, gathering.expected


def test_a_group_waits_for_all_who_are_known() -> None:
    """Those at the step and those on their way; after repeated failure more than half are enough to begin."""
    optimizer = gathering_optimizer()
    assert required(optimizer) == (4, 4, 5)
    assert optimizer.tracker.heard == [["a finding"]]
    assert required(gathering_optimizer(attempts=FULL_GROUP_ATTEMPTS)) == (4, 3, 5)


def test_a_group_without_the_keeper_needs_most_of_all_peers() -> None:
    """Of those at other steps, too; and while the keeper is there, or may be, no such group averages."""
    optimizer = gathering_optimizer()
    required(optimizer)
    assert optimizer.grad_averager.gathering.keeperless == NEVER
    optimizer = gathering_optimizer(keepers=0)
    required(optimizer)
    assert optimizer.grad_averager.gathering.keeperless == NEVER
    optimizer.tracker.keeper_may_be_late = False
    required(optimizer)
    assert optimizer.grad_averager.gathering.keeperless == 4
    assert optimizer.grad_averager.gathering.position == (2, 4)


def test_a_group_begins_at_once_only_where_everybody_is_known() -> None:
    """Not by a view of another step, nor by that in which the batch was full, nor while the keeper is out of view."""
    assert required(gathering_optimizer(step=3))[2] == 0
    optimizer = gathering_optimizer()
    optimizer._due_view = optimizer.tracker.view
    assert required(optimizer)[2] == 0
    optimizer = gathering_optimizer(keepers=0)
    assert required(optimizer)[2] == 0
    optimizer.tracker.keeper_may_be_late = False  # it is gone
    assert required(optimizer)[2] == 5


@pytest.mark.parametrize("client_mode", [False, True])
def test_the_next_group_is_sought_as_long_as_that_takes_here(client_mode: bool) -> None:
    """Twice as long after one that was not found; a client follows leaders, whatever they take."""
    optimizer = SimpleNamespace(
        _window=RoundDeadline(60.0, LEAST_WINDOW_S),
        client_mode=client_mode,
        matchmaking_time=60.0,
        grad_averager=SimpleNamespace(gathering=Gathering(60.0)),
    )
    windows = []
    for waited_s in (*[0.5] * LEAST_KNOWN, None):
        SwarmOptimizer._follow_gathering(optimizer, waited_s)  # type: ignore[arg-type]
        windows.append((optimizer.matchmaking_time, optimizer.grad_averager.gathering.window_s))
    known = [60.0] * 2 if client_mode else [LEAST_WINDOW_S, 2 * LEAST_WINDOW_S]
    assert windows == [(seconds, seconds) for seconds in [*[60.0] * (LEAST_KNOWN - 1), *known]]


@pytest.mark.parametrize(
    ("steering", "held"),
    [(Steering(), False), (Steering(paused=True), True), (Steering(last_step=4), True), (Steering(last_step=5), False)],
)
def test_no_step_is_taken_while_the_operator_wants_none(steering: Steering, held: bool) -> None:
    """For now, or after the run's last one; nor by a peer that is about to leave, nor before the batch is full."""
    tracker = SimpleNamespace(course=SimpleNamespace(steering=steering), ready_to_update_epoch=True)
    optimizer = SimpleNamespace(tracker=tracker, local_epoch=4, interrupted=threading.Event())
    optimizer.is_held = told("is_held", optimizer)
    assert optimizer.is_held is held
    assert told("is_due", optimizer) is not held
    tracker.ready_to_update_epoch = False
    assert not told("is_due", optimizer)
    tracker.ready_to_update_epoch = True
    optimizer.interrupted.set()
    assert not told("is_due", optimizer)


@pytest.mark.parametrize(
    ("delay", "role", "step", "may"),
    [
        (True, "trainer", 2, True),
        (True, "trainer", 3, False),
        (True, "trainer", 4, True),
        (False, "trainer", 2, False),
        (True, "keeper", 2, False),
    ],
)
def test_no_sample_passes_a_phases_boundary_beside_a_round(delay: bool, role: str, step: int, may: bool) -> None:
    """A phase begins after step 4: who trains beside the round towards it would bring samples of the one before."""
    phases = [{"from_step": 4, "target_batch_size": 64}]
    config = RunConfig.from_mapping({"averaging": {"delay": delay, "target_batch_size": 32}, "phases": phases})
    assert told("may_overlap", SimpleNamespace(_config=config, _role=role, local_epoch=step)) is may


@pytest.mark.parametrize(("arriving", "since_s", "arrive"), [(1, 0.0, True), (0, 0.0, False), (1, 7200.0, False)])
def test_others_are_let_in_for_as_long_as_a_group_is_sought(arriving: int, since_s: float, arrive: bool) -> None:
    """Those who are still to take the step that this peer has taken."""
    optimizer = SimpleNamespace(
        _config=SimpleNamespace(averaging=SimpleNamespace(matchmaking_time_s=3600.0)),
        tracker=SimpleNamespace(view=SimpleNamespace(arriving=arriving)),
        _step_began_s=time.monotonic() - since_s,
    )
    assert told("others_arrive", optimizer) is arrive


class Round:
    """A round of averaging with others that ends as it is told."""

    def __init__(self, ends: AveragedGroup | Exception, begins: bool = True) -> None:
        self.ends, self.began_allreduce = ends, begins
        self.triggered, self.cancelled = False, False
        self.heard: list[Any] = []
        self.optimizer = SimpleNamespace(
            averaging_timeout=3600.0,
            local_epoch=4,
            target_batch_size=64,
            scheduled_grads=None,
            interrupted=threading.Event(),
            rounds=RoundCounts(Clock()),
            tracker=SimpleNamespace(
                view=SimpleNamespace(averaging=2),
                heed=lambda findings: self.heard.append(findings),
                is_reducing=lambda reduces: None,
                round_ended=lambda weights, short: self.heard.append((weights, short)),
            ),
            grad_averager=SimpleNamespace(
                failed_rounds=0,
                due_samples=32,
                schedule_step=lambda timeout: self,
                step=lambda **options: self.heard.append(options["weight"]),
                findings=SimpleNamespace(take=lambda: "findings"),
            ),
            line=SimpleNamespace(passed=lambda traffic: self.heard.append(traffic)),
            declare_line=lambda: self.heard.append("the line is declared"),
            _require_group=lambda: None,
            _follow_gathering=lambda waited_s: self.heard.append("not found" if waited_s is None else "found"),
            _await_group=lambda control: control.result(None),
        )
        self.optimizer._give_up = lambda control: SwarmOptimizer._give_up(self.optimizer, control)  # type: ignore[arg-type]

    def result(self, _timeout: float | None) -> AveragedGroup:
        if isinstance(self.ends, Exception):
            raise self.ends
        return self.ends

    def done(self) -> bool:
        return False

    def cancel(self) -> None:
        self.cancelled = True

    def average(self) -> AveragedGroup | None:
        return SwarmOptimizer.average(self.optimizer)  # type: ignore[arg-type]


def test_a_group_that_fills_the_batch_is_what_the_step_is_taken_with() -> None:
    """How long it was sought, what passed and what each brought is remembered for the next."""
    traffic: Any = "traffic"
    group = AveragedGroup(size=2, samples=64, averaged_bytes=8, weights={"Qm1": 32.0}, traffic=traffic)
    round_ = Round(group)
    assert round_.average() is group
    heard = [32, "findings", "found", "traffic", "the line is declared", ({"Qm1": 32.0}, False)]
    assert round_.heard == heard


def test_a_group_that_does_not_fill_the_batch_takes_no_step() -> None:
    """A peer was lost on the way, or has not what it claimed: the tracker is told that the group was short."""
    round_ = Round(AveragedGroup(size=2, samples=63, averaged_bytes=8, weights={"Qm1": 31.0}))
    assert round_.average() is None
    assert round_.heard == [32, "findings", "found", ({"Qm1": 31.0}, True)]


@pytest.mark.parametrize("begins", [True, False])
def test_a_round_that_fails_is_given_up(begins: bool) -> None:
    """Only one that had not begun says that a group was sought in vain."""
    round_ = Round(RuntimeError("the line is cut"), begins)
    assert round_.average() is None
    assert round_.cancelled
    assert round_.heard == [32, *([] if begins else ["not found"]), "findings"]


@pytest.mark.parametrize(
    ("role", "sketch", "known", "ahead", "doubt"),
    [
        ("trainer", SOUND, SOUND, 0, None),
        ("trainer", SOUND, (), 0, None),
        ("trainer", (2.0,) * 32, SOUND, 0, "is not the swarm's"),
        ("keeper", SOUND, SOUND, 0, None),
        ("keeper", SOUND, (), 0, "is not confirmed by most members"),
        ("keeper", SOUND, SOUND, STEPS_AHEAD, None),
        ("keeper", SOUND, SOUND, STEPS_AHEAD + 1, None),
    ],
)
def test_a_donors_state_is_taken_as_far_as_others_confirm_it(
    role: str, sketch: tuple[float, ...], known: tuple[float, ...], ahead: int, doubt: str | None
) -> None:
    """A trainer takes the keeper's word, the keeper what most members report; what is far from it is named."""
    suspected: list[tuple[object, ...]] = []
    sketches, step = {50 + ahead: known}, 50 + ahead
    course = SimpleNamespace(sketch_at=sketches.get, suspect=lambda *facts: suspected.append(facts))
    optimizer = SimpleNamespace(
        tracker=SimpleNamespace(course=course, swarm_step=50), _role=role, _await_sketch=sketches.get
    )
    assert SwarmOptimizer._doubt(optimizer, "Qm1", step, sketch) == doubt  # type: ignore[arg-type]
    false = "gave a state that is not the swarm's" if doubt == "is not the swarm's" else ""
    named = false or (f"gave a state of step {step}" if ahead > STEPS_AHEAD else "")
    assert suspected == ([("Qm1", "state", step, named)] if named else [])
