"""What a peer does towards the next step, and what it makes of steps that it missed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from peer.averaging.bandwidth import LineEstimate
from peer.averaging.rounds import AveragedGroup
from peer.config.run import RunConfig
from peer.config.steering import Steering
from peer.node.average_history import Lack
from peer.progress.decision import LONG_S, Situation
from peer.reporting.event_log import NOWHERE
from peer.runtime.waits import FUTURE_POLL_S, POLL_S, ThreadWaits, run_blocking
from peer.swarm.moves import LOOK_AGAIN_S, MOST_SILENT_LOOKS, Moves, StepOutcome
from tests.support.clocks import Clock
from tests.support.turned_waits import TurnedWaits

GROUP = AveragedGroup(size=2, samples=64, averaged_bytes=8, peers=frozenset({"Qm1", "Qm2"}))
FAST = SimpleNamespace(line_is_too_slow=False)


def moves_with(*, overlapping: Any = None, rounds: Any = FAST, state: Any = None, **parts: Any) -> Any:
    """The moves of a peer of these parts at step 4; `overlapping`: its round in the background."""
    given: dict[str, Any] = {
        "config": RunConfig(),
        "role": "trainer",
        "tracker": SimpleNamespace(),
        "gradients": SimpleNamespace(),
        "averager": SimpleNamespace(),
        "training": SimpleNamespace(),
        "transfers": SimpleNamespace(),
        "line": SimpleNamespace(),
        "waits": TurnedWaits(),
        "receipt_of": lambda *_: "",
        "events": NOWHERE,
        "rng": random.Random(1),
    }
    moves: Any = Moves(**given | parts)
    moves._overlapping, moves.rounds, moves.state = overlapping, rounds, state or SimpleNamespace(step=4)
    moves._offer.set_running_or_notify_cancel()  # a round in the background has begun
    return moves


def tracker_of(*, rate: float, target: int, calls: list[str]) -> Any:
    """What a trainer at step 5, of this rate in a swarm of eight samples per second, knows of the swarm."""
    return SimpleNamespace(
        rate=SimpleNamespace(per_second=rate, pause=nullcontext),
        view=SimpleNamespace(rate=8.0),
        course=SimpleNamespace(steering=Steering()),
        target_batch_size=target,
        report=lambda samples: calls.append(f"has {samples} samples"),
        swarm_step=5,
        has_drifted=False,
        is_undone=False,
    )


class Behind:
    """A peer that is a step behind, and whose keeper answers so, one time after another."""

    def __init__(self, *answers: list[Any] | Lack, has_sent: bool = False, **parts: Any) -> None:
        self.left, self.followed, self.forgotten = list(answers), list[Any](), list[int]()
        self.waits = TurnedWaits()
        self.moves = moves_with(
            transfers=SimpleNamespace(average=self.average),
            gradients=SimpleNamespace(
                drop_all=lambda: 12,
                take_back=lambda: None,
                due_samples=0,
                forget_remainders=lambda: self.forgotten.append(5),
            ),
            rounds=SimpleNamespace(attempts=0, has_sent=has_sent),
            tracker=SimpleNamespace(is_undone=False, swarm_step=5, report=lambda samples: None),
            state=SimpleNamespace(step=4, era=0, shapes=[], follow=self.followed.append),
            waits=self.waits,
            **parts,
        )

    async def average(self, *_: object) -> list[Any] | Lack:
        """The keeper's next answer, which takes a while."""
        self.waits.clock.now += 0.25
        return self.left.pop(0)

    def follow(self, collect: Callable[[], object] = lambda: None) -> StepOutcome | None:
        """Ask for the missed average once."""
        outcome: StepOutcome | None = run_blocking(self.moves._follow(collect))
        return outcome


def test_a_step_is_taken_by_the_peers_that_averaged() -> None:
    """They decide on the next one; what this peer reduced is signed for the step that it takes."""
    taken: list[frozenset[str]] = []
    receipts: list[tuple[int, int, AveragedGroup]] = []

    def receipt_of(era: int, step: int, group: AveragedGroup) -> str:
        receipts.append((era, step, group))
        return "a receipt"

    moves = moves_with(
        gradients=SimpleNamespace(due_samples=12),
        receipt_of=receipt_of,
        state=SimpleNamespace(step=5, era=1, take_step=taken.append),
    )
    outcome = moves._step(GROUP, 0.1)
    assert (outcome.samples, outcome.group_samples, outcome.receipt) == (12, 64, "a receipt")
    assert taken == [GROUP.peers]
    assert receipts == [(1, 5, GROUP)]


def test_what_a_peer_had_accumulated_is_lost_only_when_it_follows() -> None:
    """It says that it took a step, and why the samples are in none."""
    behind = Behind(Lack.NOT_YET, ["tensor"])
    assert behind.follow() is None
    outcome = behind.follow()
    assert outcome is not None
    assert (outcome.followed_steps, outcome.averaged, outcome.samples) == (1, False, 0)
    assert (outcome.lost_samples, outcome.lost_reason) == (12, "late")
    assert outcome.averaging_s == pytest.approx(0.25)
    assert behind.followed == [["tensor"]]


def test_late_samples_are_collected_and_kept_where_the_run_allows_it() -> None:
    """They count for the next step."""
    config = RunConfig.from_mapping({"averaging": {"delay": True}})
    behind, collected = Behind(["tensor"], config=config), list[str]()
    outcome = behind.follow(lambda: collected.append("collected"))
    assert outcome is not None
    assert (outcome.lost_samples, outcome.lost_reason, collected) == (0, "", ["collected"])


def test_a_peer_follows_no_more_where_the_average_is_gone_or_nobody_answers() -> None:
    """It asks for the state then; a keeper that is a moment behind, or busy, is asked for the average again."""
    behind = Behind(Lack.GONE)
    assert behind.follow() is None
    assert behind.moves._unfollowed == 4
    assert behind.waits.waits == []
    behind = Behind(*[Lack.NOT_YET, Lack.BUSY] * 20, *[Lack.SILENT] * MOST_SILENT_LOOKS)
    for _ in range(40 + MOST_SILENT_LOOKS):
        assert behind.moves._unfollowed == -1
        assert behind.follow() is None
    assert behind.moves._unfollowed == 4
    waits = behind.waits.waits
    assert len(waits) == len(set(waits)) == 39 + MOST_SILENT_LOOKS
    assert LOOK_AGAIN_S[0] <= min(waits) <= max(waits) <= LOOK_AGAIN_S[1]


@pytest.mark.parametrize(
    ("swarm_step", "has_drifted", "is_undone", "overlapping", "is_behind"),
    [
        (4, False, False, None, False),
        (5, False, False, None, True),
        (4, True, False, None, True),
        (4, False, True, None, True),
        (5, False, False, "a round", False),
    ],
)
def test_a_peer_is_behind_until_it_has_the_swarms_state(
    swarm_step: int, has_drifted: bool, is_undone: bool, overlapping: Any, is_behind: bool
) -> None:
    """Whatever it computed before would be lost; a round of its own that is under way comes first."""
    tracker = SimpleNamespace(swarm_step=swarm_step, has_drifted=has_drifted, is_undone=is_undone)
    assert moves_with(overlapping=overlapping, tracker=tracker).is_behind is is_behind


@pytest.mark.parametrize(
    ("samples", "swarm_step", "paused", "wanted"),
    [(319, 4, False, True), (320, 4, False, False), (0, 5, False, False), (0, 4, True, False)],
)
def test_a_peer_computes_only_what_can_count(samples: int, swarm_step: int, paused: bool, wanted: bool) -> None:
    """No more than eight batches are believed, who is behind catches up first, and a paused run takes no step."""
    tracker = SimpleNamespace(swarm_step=swarm_step, has_drifted=False, is_undone=False, target_batch_size=40)
    tracker.course = SimpleNamespace(steering=Steering(paused=paused))
    gradients = SimpleNamespace(all_samples=samples)
    assert moves_with(tracker=tracker, gradients=gradients).wants_samples is wanted


@pytest.mark.parametrize(("holds", "reported"), [(False, [12]), (True, [])])
def test_a_microbatch_is_reported_unless_it_counts_for_the_step_after_the_next(
    holds: bool, reported: list[int]
) -> None:
    """As beside a round; its samples tell how fast the peer is, either way."""
    told, computed = list[int](), list[int]()
    moves = moves_with(
        tracker=SimpleNamespace(rate=SimpleNamespace(computed=computed.append), report=told.append),
        gradients=SimpleNamespace(holds=holds, due_samples=12),
    )
    moves.computed(8)
    assert (moves.last_samples, computed, told) == (8, [8], reported)


def test_a_peer_of_a_paused_run_waits() -> None:
    """A call waits a moment, so that the loop that calls it again and again rests; leaving ends the wait."""
    waits = TurnedWaits()
    moves = moves_with(
        tracker=SimpleNamespace(
            course=SimpleNamespace(steering=Steering(paused=True)), rate=SimpleNamespace(pause=nullcontext)
        ),
        waits=waits,
        rounds=SimpleNamespace(prepare=lambda: None),
    )
    moves._situation = lambda: Situation(step=4, swarm_step=4, is_held=True)
    assert run_blocking(moves.advance()) is None
    assert waits.waits == [POLL_S]
    waits.interrupt()
    assert run_blocking(moves.advance()) is None
    assert waits.waits == [POLL_S, 0.0]


@pytest.mark.parametrize(("has_sent", "forgotten"), [(False, []), (True, [5])])
def test_who_follows_keeps_remainders_that_were_in_no_round(has_sent: bool, forgotten: list[int]) -> None:
    """After a round, others may have counted values that this peer sent of them."""
    behind = Behind(["tensor"], has_sent=has_sent)
    outcome = behind.follow()
    assert outcome is not None
    assert outcome.lost_samples == 12
    assert behind.forgotten == forgotten


def test_a_peer_on_a_line_too_slow_for_a_round_stands_by_until_the_line_is_faster() -> None:
    """It drops its samples, and the others do not wait for it; it says so once, and computes nothing."""
    calls: list[str] = []
    told: list[float | None] = []
    rounds = SimpleNamespace(
        line_is_too_slow=True,
        round_bytes=36_000_000,
        attempts=0,
        has_sent=False,
        cancel=lambda: calls.append("gave up its group"),
    )
    tracker = SimpleNamespace(
        swarm_step=4,
        has_drifted=False,
        is_undone=False,
        target_batch_size=40,
        stand_by=told.append,
        report=lambda samples: calls.append(f"has {samples} samples"),
        course=SimpleNamespace(allowances=SimpleNamespace(usual_s=30.0), steering=Steering()),
        rate=SimpleNamespace(per_second=1.0),
    )
    moves = moves_with(
        line=LineEstimate(0.1e6, Clock(), random.Random(1)),
        gradients=SimpleNamespace(drop_all=lambda: 12, due_samples=0, all_samples=0),
        rounds=rounds,
        tracker=tracker,
        waits=TurnedWaits(after_wait=lambda: calls.append("waits")),
    )
    assert not moves.wants_samples
    outcome = run_blocking(moves._stand_by())
    assert (outcome.averaged, outcome.lost_samples, outcome.lost_reason) == (False, 12, "slow line")
    assert calls == ["gave up its group", "has 0 samples"]
    assert moves.stands_by
    assert run_blocking(moves._stand_by()) is None
    assert calls[2:] == ["waits"]
    assert told == [0.1e6, 0.1e6]
    tracker.course.steering, tracker.swarm_step = Steering(last_step=9), 8
    assert not moves.has_ended
    tracker.swarm_step = 9  # which this peer has not followed
    assert moves.has_ended
    tracker.swarm_step = 4
    rounds.line_is_too_slow = False
    assert moves.wants_samples


@pytest.mark.parametrize(("samples", "own", "all_rates", "ahead"), [(9, 2.0, 8.0, False), (10, 2.0, 8.0, True)])
def test_a_peer_trains_no_further_ahead_than_its_share(samples: int, own: float, all_rates: float, ahead: bool) -> None:
    """With a quarter of the swarm's speed, a peer has its part of the next batch of 40 when it has 10 samples of it."""
    tracker = SimpleNamespace(
        rate=SimpleNamespace(per_second=own),
        view=SimpleNamespace(rate=all_rates),
        course=SimpleNamespace(steering=Steering()),
        target_batch_size=40,
    )
    gradients = SimpleNamespace(samples=samples, all_samples=samples)
    assert moves_with(tracker=tracker, gradients=gradients)._is_ahead is ahead
    gradients.all_samples = 320  # with those that are being averaged: more are not believed of anybody
    assert moves_with(tracker=tracker, gradients=gradients)._is_ahead


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
    averaging = {"delay": delay, "target_batch_size": 32}
    config = RunConfig.from_mapping({"averaging": averaging, "phases": phases})
    tracker = SimpleNamespace(course=SimpleNamespace(steering=Steering()), target_batch_size=32)
    gradients = SimpleNamespace(all_samples=0)
    moves = moves_with(config=config, role=role, state=SimpleNamespace(step=step), tracker=tracker, gradients=gradients)
    assert (moves._may_overlap, moves._may_set_aside) == (may, may)
    moves._config = RunConfig.from_mapping({"averaging": averaging | {"local_steps": 2}})
    assert not moves._may_set_aside  # what local steps bring cannot be added up


class Holding:
    """A peer that could wait for others' last samples, which come during its fifth look, if it looks so often."""

    def __init__(self, usual_s: float) -> None:
        self.waits = TurnedWaits(after_wait=self._look)
        self.rounds = SimpleNamespace(prepare=lambda: None, line_is_too_slow=False, is_full=False)
        tracker = SimpleNamespace(
            view=SimpleNamespace(faster_rate=lambda own_id: 1.0),
            own_id="Qm1",
            course=SimpleNamespace(allowances=SimpleNamespace(usual_s=usual_s), sketch_at=lambda step: ()),
            rate=SimpleNamespace(per_second=8.0),
            look_now=lambda: None,
            is_led=False,
            sketch=(),
            swarm_step=4,
            is_undone=False,
            has_drifted=False,
            is_held=False,
            missing_samples=10_000,
            remaining_s=0.0,
        )
        self.moves = moves_with(waits=self.waits, rounds=self.rounds, tracker=tracker)
        self.moves.last_samples = 8

    def _look(self) -> None:
        self.rounds.is_full = len(self.waits.waits) == 5

    @property
    def may_hold(self) -> bool:
        """Whether the peer may wait now."""
        return bool(self.moves._situation().may_hold)

    def hold(self) -> None:
        """Wait as long as it is worth it."""
        run_blocking(self.moves._hold())


@pytest.mark.parametrize(("usual_s", "in_vain"), [(36_000.0, False), (0.5, True)])
def test_the_others_last_samples_are_waited_for_once_a_step(usual_s: float, in_vain: bool) -> None:
    """Until one of them reports them; where the batch stays short, this peer computes on, and waits no more for it."""
    holding = Holding(usual_s)
    assert holding.may_hold
    holding.hold()
    assert holding.rounds.is_full is not in_vain
    assert holding.moves._held[1] > 0
    assert holding.may_hold is not in_vain


def test_the_waits_of_one_step_count_together() -> None:
    """Each tenth of a usual step that passes between reports would add up; the next step has a wait of its own."""
    holding = Holding(usual_s=36_000.0)
    holding.moves._held = 4, 3599.9  # of a tenth of that
    began = holding.waits.now()
    holding.hold()
    assert not holding.may_hold
    assert holding.waits.now() - began == pytest.approx(0.1, abs=0.01)
    holding.moves.state.step = holding.moves._tracker.swarm_step = 5
    assert holding.may_hold


def test_who_leaves_waits_for_nobodys_samples() -> None:
    """Though the others' reports are about to come."""
    holding = Holding(usual_s=36_000.0)
    holding.waits.interrupt()
    began = holding.waits.now()
    holding.hold()
    assert holding.waits.now() == began


class Beside:
    """A peer of a quarter of the swarm's speed that trains beside a round, which ends during its fifth look."""

    def __init__(self, samples: int, group: AveragedGroup | None) -> None:
        self.round = futures.Future[tuple[AveragedGroup | None, float]]()
        self.waits = TurnedWaits(after_wait=self._look)
        self.calls: list[str] = []
        self._group = group
        self.moves = moves_with(
            overlapping=self.round,
            gradients=SimpleNamespace(
                samples=samples,
                all_samples=samples + 40,
                due_samples=40,
                take_back=lambda: self.calls.append("took its samples back"),
            ),
            tracker=tracker_of(rate=2.0, target=40, calls=self.calls),
            state=SimpleNamespace(step=5, era=0, take_step=lambda peers: self.calls.append("stepped")),
            waits=self.waits,
        )
        self.moves._situation = lambda: Situation(step=5, swarm_step=5)

    def _look(self) -> None:
        if len(self.waits.waits) == 5:
            self.round.set_result((self._group, 1.5))

    def collect(self) -> None:
        """Collect gradients accumulated elsewhere."""
        self.calls.append("collected")


def test_a_peer_trains_beside_a_round_until_it_has_its_share() -> None:
    """Then it waits for the round, of which it takes the step with what it has accumulated for the next."""
    beside = Beside(9, GROUP)
    assert run_blocking(beside.moves.advance(beside.collect)) is None
    assert (beside.waits.waits, beside.calls) == ([], [])
    assert not beside.round.done()
    beside = Beside(10, GROUP)
    outcome = run_blocking(beside.moves.advance(beside.collect))
    assert beside.waits.waits == [FUTURE_POLL_S] * 5
    assert (outcome.averaged, outcome.samples, outcome.averaging_s) == (True, 40, 1.5)
    assert beside.calls == ["collected", "stepped"]
    assert beside.moves._overlapping is None


@pytest.mark.parametrize(
    ("group", "calls"), [(GROUP, ["collected", "stepped"]), (None, ["took its samples back", "has 40 samples"])]
)
def test_who_leaves_hears_what_became_of_its_round(group: AveragedGroup | None, calls: list[str]) -> None:
    """The round is told to end, and takes a while; a failed one leaves its samples where they were."""
    beside = Beside(9, group)
    outcome = run_blocking(beside.moves.finish(beside.collect))
    assert beside.waits.is_interrupted
    assert beside.round.done()
    assert (outcome is not None, beside.calls) == (group is not None, calls)
    assert run_blocking(beside.moves.finish(beside.collect)) is None
    assert beside.calls == calls


@pytest.mark.parametrize("delay", [False, True])
def test_a_full_batch_is_averaged_at_once_or_beside_training(delay: bool) -> None:
    """What was accumulated elsewhere is collected first, and beside training the samples are set aside."""
    calls: list[str] = []

    async def average_when_due() -> AveragedGroup:
        calls.append("averaged")
        waits.clock.now += 2.5
        return GROUP

    waits = TurnedWaits()
    moves = moves_with(
        config=RunConfig.from_mapping({"averaging": {"delay": delay}}),
        gradients=SimpleNamespace(hold=lambda: calls.append("set aside"), due_samples=40, samples=10, all_samples=50),
        rounds=SimpleNamespace(
            prepare=lambda: calls.append("met the others"), average_when_due=average_when_due, is_due=True
        ),
        tracker=tracker_of(rate=2.0, target=40, calls=calls),
        state=SimpleNamespace(step=5, era=0, take_step=lambda peers: calls.append("stepped")),
        waits=waits,
    )
    situations = iter([Situation(step=4, swarm_step=4, is_full=True, may_overlap=delay), Situation(5, 5)])
    moves._situation = lambda: next(situations)
    outcome = run_blocking(moves.advance(lambda: calls.append("collected")))
    if delay:
        assert outcome is None
        assert calls == ["met the others", "collected", "set aside", "averaged"]
        outcome = run_blocking(moves.finish(lambda: calls.append("collected")))
        assert calls[4:] == ["collected", "stepped"]
    else:
        assert calls == ["met the others", "collected", "averaged", "stepped"]
    assert outcome.averaging_s == pytest.approx(2.5)


@pytest.mark.parametrize("downloads", [True, False])
def test_who_cannot_follow_takes_the_state_and_pauses(downloads: bool) -> None:
    """Its samples are lost with a reason; the next download comes later, for it uses a donor's line."""
    waits = TurnedWaits()

    async def download() -> bool:
        waits.clock.now += 100.0
        return downloads

    moves = moves_with(
        gradients=SimpleNamespace(drop_all=lambda: 12, due_samples=0),
        rounds=SimpleNamespace(attempts=0, has_sent=False),
        tracker=SimpleNamespace(is_undone=True, swarm_step=4, report=lambda samples: None),
        state=SimpleNamespace(step=4, era=0, download=download),
        waits=waits,
    )
    outcome = run_blocking(moves._catch_up())
    assert (outcome.averaged, outcome.lost_samples, outcome.averaging_s) == (False, 12, 100.0)
    assert outcome.lost_reason == "undone"
    assert not moves._pause.is_over
    waits.clock.now += 99.0
    assert moves._pause.is_over is not downloads
    waits.clock.now += 1.0
    assert moves._pause.is_over


class Slow:
    """A peer at step 5 whose microbatches take long, in a run whose rounds pass beside training."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.waits = TurnedWaits()
        self.waits.start = self._start  # type: ignore[assignment]
        self.background: list[Any] = []
        self.rounds = SimpleNamespace(
            prepare=lambda: self.calls.append("met the others"),
            average_when_due=self._average,
            is_due=False,
            line_is_too_slow=False,
        )
        self.situation = Situation(step=5, swarm_step=5, may_set_aside=True, microbatch_s=LONG_S)
        self.moves = moves_with(
            config=RunConfig.from_mapping({"averaging": {"delay": True}}),
            gradients=SimpleNamespace(
                hold=lambda: self.calls.append("set aside"),
                take_back=lambda: self.calls.append("took back"),
                due_samples=3,
                samples=1,
                all_samples=4,
            ),
            rounds=self.rounds,
            tracker=tracker_of(rate=0.1, target=4000, calls=self.calls),
            state=SimpleNamespace(step=5, era=0, take_step=lambda peers: self.calls.append("stepped")),
            waits=self.waits,
        )
        self.moves._situation = lambda: self.situation

    async def _average(self) -> AveragedGroup:
        self.calls.append("averaged")
        return GROUP

    def _start(self, coroutine: Any) -> futures.Future[Any]:
        self.background.append((coroutine, future := futures.Future[Any]()))
        return future

    def begin(self) -> None:
        """Let the background of the newest offer run, after the group has begun."""
        self.rounds.is_due = True
        coroutine, future = self.background.pop()
        future.set_result(run_blocking(coroutine))

    def advance(self) -> StepOutcome | None:
        """End a microbatch; return what was done, and forget it."""
        self.calls.clear()
        outcome: StepOutcome | None = run_blocking(self.moves.advance(lambda: self.calls.append("collected")))
        return outcome


@pytest.fixture
def slow() -> Iterator[Slow]:
    """A slow device, whose background ends with the test."""
    device = Slow()
    yield device
    for coroutine, _ in device.background:
        coroutine.close()


def test_a_slow_device_holds_up_no_round(slow: Slow) -> None:
    """What it has is set aside beside each microbatch, also the next one after a step, so a group may begin anywhen."""
    for taken_back in ([], ["took back", "has 3 samples"]):
        assert slow.advance() is None
        assert slow.calls == [*taken_back, "met the others", "collected", "set aside"]
    assert slow.moves.wants_samples
    slow.begin()
    assert slow.calls[3:] == ["collected", "set aside", "averaged"]
    outcome = slow.advance()
    assert outcome is not None
    assert (outcome.averaged, outcome.samples) == (True, 3)
    assert slow.calls == ["collected", "stepped", "met the others", "set aside"]


def test_gradients_taken_back_are_in_no_round(slow: Slow) -> None:
    """A group that begins just then waits for this peer, which sets them aside again, with those of the microbatch."""
    slow.advance()
    slow.situation = replace(slow.situation, is_leaving=True)
    assert slow.advance() is None
    assert slow.calls == ["took back", "has 3 samples", "met the others"]
    slow.begin()
    assert slow.calls == ["took back", "has 3 samples", "met the others"]
    assert slow.moves._overlapping is None


def test_who_leaves_takes_back_what_waits_for_a_round(slow: Slow) -> None:
    """Its samples are in nobody's average."""
    slow.advance()
    assert run_blocking(slow.moves.finish(lambda: None)) is None
    assert slow.calls[3:] == ["took back", "has 3 samples"]
    assert slow.waits.waits == []


def test_who_may_compute_no_more_waits_beside_its_round(slow: Slow) -> None:
    """Otherwise, the loop that asks for the next microbatch would take the gradients back before the round begins."""
    slow.moves._gradients.all_samples = 8 * 4000
    assert not slow.moves._may_set_aside
    slow.situation = replace(slow.situation, may_set_aside=False)
    assert slow.advance() is None
    assert (slow.calls, len(slow.waits.waits)) == (["met the others"], 1)
    slow.situation = replace(slow.situation, may_overlap=True, is_full=True)
    assert slow.advance() is None
    assert (slow.calls, len(slow.waits.waits)) == (["met the others", "collected", "set aside"], 2)


def test_an_offer_ends_with_its_peer() -> None:
    """Though a failure ends the training without a word about it, the background ends, and the process with it."""
    waits = ThreadWaits()
    moves = moves_with(rounds=SimpleNamespace(is_due=False, average_when_due=_nothing), waits=waits)
    offer = futures.Future[None]()
    background = waits.start(moves._average_beside(offer))
    waits.close()
    assert background.result(0)[0] is None


async def _nothing() -> None:
    return None
