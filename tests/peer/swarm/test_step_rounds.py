"""The rounds towards one step: whom they wait for, when they are given up; real swarms are in tests/system."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from peer.averaging.requirements import Requirements
from peer.averaging.rounds import AveragedGroup, SearchStage
from peer.averaging.shares import GroupLines
from peer.config.run import RunConfig
from peer.config.steering import Change, Steering
from peer.config.training import Averaging
from peer.node.quorum import Quorum
from peer.progress.decision import FULL_GROUP_ATTEMPTS
from peer.progress.tracker import StepTracker
from peer.runtime.waits import FUTURE_POLL_S, run_blocking
from peer.swarm.step_rounds import DOUBT_S, MOST_READY_S, RULING_S, StepRounds
from tests.support.clocks import Clock
from tests.support.turned_waits import TurnedWaits

FULL = AveragedGroup(size=2, samples=58, averaged_bytes=8, weights={"Qm1": 32.0}, traffic="traffic")  # type: ignore[arg-type]
SHORT = AveragedGroup(size=2, samples=57, averaged_bytes=8, weights={"Qm1": 25.0})


TIMEOUT_S = 3600.0
LINES = GroupLines((3e6, *[1e6] * 30), (True, *[False] * 30), (True, *[False] * 30), ())
HERE = frozenset({"own", "keeper", "alice", "mallory"})
ALONE, QUORUM, OTHERS = (Quorum(frozenset(voters)) for voters in (["own"], ["own", "keeper", "alice"], ["alice"]))


class Round:
    """A round of averaging that ends as it is told once it is begun: with a group, an error, or never (None)."""

    stage = SearchStage.LOOKING

    def __init__(self, ends: AveragedGroup | Exception | None, begins: bool = True) -> None:
        self.ends, self.has_averaged = ends, begins
        self.is_due, self.cancelled = False, False
        self.outcome = self  # a future, as far as rounds use one

    def result(self) -> AveragedGroup:
        assert self.ends is not None
        if isinstance(self.ends, Exception):
            raise self.ends
        return self.ends

    def done(self) -> bool:
        return self.is_due and self.ends is not None


class Scene:
    """Rounds of a peer at step 4 with three others there and one on its way; `heard` is what the parts were told."""

    def __init__(self, *rounds: Round, usual_s: float = 0.0, delay: bool = False, **view: Any) -> None:
        self.heard: list[Any] = []
        self.left = list(rounds)
        self.view = SimpleNamespace(step=4, samples=40, averaging=4, arriving=1, here=HERE)
        vars(self.view).update(view)
        self.tracker: Any = SimpleNamespace(
            view=self.view,
            step=4,
            era=2,
            own_id="own",
            swarm_step=4,
            target_batch_size=64,
            quorum=QUORUM,
            leaders=("keeper",),
            message=lambda: b"own record",
            remaining_s=3.0,
            is_full=True,
            is_held=False,
            is_told_full=False,
            batch_s=math.inf,
            course=SimpleNamespace(allowances=SimpleNamespace(usual_s=usual_s), steering=Steering()),
            is_reducing=lambda reduces: None,
            round_ended=lambda weights, _counted, _attested, samples, is_step: self.heard.append(
                (weights, samples, is_step)
            ),
        )
        averaging = RunConfig.from_mapping({"averaging": {"averaging_timeout_s": TIMEOUT_S, "delay": delay}}).averaging
        self.bytes_of = {"float16": 64, "8bit-blockwise": 32}
        self.gradients: Any = SimpleNamespace(
            due_samples=64,
            averaging=averaging,
            size_in=lambda averaging: self.bytes_of[averaging.compression],
            change=self.change,
            load=lambda: self.heard.append("loaded"),
            round_succeeded=lambda: self.heard.append("succeeded"),
        )
        self.rates: list[float] = []  # declared in searches
        self.averager: Any = SimpleNamespace(
            want=self.want,
            wanted=Requirements(),
            failed_rounds=7,
            seek=self.seek,
            begin=self.begin,
            give_up=self.give_up,
        )
        line: Any = SimpleNamespace(
            rate=5.0, passed=self.heard.append, failed=lambda: self.heard.append("the line may be slow")
        )
        self.waits = TurnedWaits(Clock(0.0))
        self.rounds = StepRounds(self.gradients, self.averager, self.tracker, line, averaging, self.waits, trains=True)

    @property
    def looks(self) -> int:
        """How often the peer has waited, for a round unless that has failed."""
        return len(self.waits.waits)

    def seek(self, rate: float) -> Round:
        """Begin a search, as the averager does."""
        self.rates.append(rate)
        return self.left.pop(0)

    def begin(self, search: Round, weight: int) -> None:
        """Begin a round, as the averager does."""
        self.heard.append(weight)
        search.is_due = True

    def give_up(self, search: Round) -> None:
        """Cancel a search, as the averager does."""
        search.cancelled = True

    def average(self) -> AveragedGroup | None:
        """Take one round."""
        return run_blocking(self.rounds.average())

    def average_when_due(self) -> AveragedGroup | None:
        """Take rounds until one succeeds, or none is due."""
        return run_blocking(self.rounds.average_when_due())

    def await_group(self, round_: Any) -> AveragedGroup:
        """Wait for a round that has begun."""
        round_.is_due = True
        return run_blocking(self.rounds._await_group(round_))

    def change(self, averaging: Averaging) -> bool:
        """Take up another code, as the averager does."""
        before, self.gradients.averaging = self.gradients.averaging, averaging
        return bool(before.code != averaging.code)

    def steer(self, *changes: Change) -> None:
        """Hear the operator's changes."""
        self.tracker.course.steering = Steering(changes=changes)

    def want(self, wanted: Requirements) -> None:
        """Be told of the next group, as the averager is."""
        self.averager.wanted = wanted

    def wanted(self) -> Requirements:
        """What the averager is told of the next group."""
        self.rounds._require_group()
        wanted: Requirements = self.averager.wanted
        return wanted

    def fail(self, round_: Round) -> AveragedGroup:
        """End a round that ran, and failed."""
        self.averager.failed_rounds += 1
        assert isinstance(round_.ends, Exception)
        raise round_.ends

    def required(self) -> tuple[int, int, int]:
        """Which step a group is sought for, how many it needs, and how many are waited for."""
        wanted = self.wanted()
        return wanted.step, wanted.required, wanted.expected


@pytest.mark.parametrize(("fails_at", "others_step_at"), [(3, 9), (9, 3)])
def test_a_round_that_only_failed_here_is_not_waited_for(fails_at: int, others_step_at: int) -> None:
    """Neither a failed round alone, which is tried again, nor others that are quicker are a reason to give up."""
    endless = Round(None)
    scene = Scene(endless)

    def look(reduces: bool) -> None:
        assert not reduces
        if scene.looks == fails_at:
            scene.averager.failed_rounds += 1
        if scene.looks == others_step_at:
            scene.tracker.swarm_step = 5

    scene.tracker.is_reducing = look
    with pytest.raises(TimeoutError):
        scene.await_group(endless)
    assert scene.looks == 9


MET, AVERAGING, CONFIRMING = SearchStage.MET, SearchStage.AVERAGING, SearchStage.CONFIRMING


@pytest.mark.parametrize(
    ("stage", "swarm_step", "leaves", "given_up_after_s"),
    [
        (MET, 4, False, None),
        (AVERAGING, 4, False, None),
        (CONFIRMING, 4, False, DOUBT_S),
        (MET, 5, False, 2 * TIMEOUT_S),
        (AVERAGING, 5, False, 2 * TIMEOUT_S),
        (CONFIRMING, 5, False, RULING_S),
        (MET, 4, True, 2 * TIMEOUT_S),
        (AVERAGING, 4, True, 2 * TIMEOUT_S),
        (CONFIRMING, 4, True, RULING_S),
    ],
)
@pytest.mark.parametrize("ends_early", [False, True])
def test_a_round_that_has_begun_is_given_up_only_where_its_average_is_of_no_use(
    stage: SearchStage, swarm_step: int, leaves: bool, given_up_after_s: float | None, ends_early: bool
) -> None:
    """After twice the time, or once the ruling is late; others receive from this peer, though its own part failed."""
    round_, lasts_s = Round(None), given_up_after_s or 3 * TIMEOUT_S
    round_.stage = stage
    scene = Scene(round_)
    scene.tracker.swarm_step, scene.tracker.is_full = swarm_step, False
    scene.waits.is_interrupted = leaves
    ends_at = scene.waits.now() + (0.9 if ends_early or given_up_after_s is None else 1.5) * lasts_s

    def look(reduces: bool) -> None:
        assert reduces
        scene.averager.failed_rounds += 1
        scene.waits.clock.now += lasts_s / 100
        round_.ends = FULL if scene.waits.now() >= ends_at else None

    scene.tracker.is_reducing = look
    began_at = scene.waits.now()
    if ends_early or given_up_after_s is None:
        assert scene.await_group(round_) is FULL
    else:
        with pytest.raises(TimeoutError):
            scene.await_group(round_)
        look_s = FUTURE_POLL_S + lasts_s / 100
        assert lasts_s < scene.waits.now() - began_at < lasts_s + 3 * look_s


def test_while_a_group_averages_the_node_is_told_only_who_leads_and_who_decides() -> None:
    """The ruling on the average depends on both; all else can wait for its end."""
    round_, told, other = Round(FULL), list[Quorum](), Quorum(frozenset({"other"}))
    scene = Scene(round_)
    vars(round_).update(stage=AVERAGING, done=lambda: scene.looks > 9)

    def want(wanted: Requirements) -> None:
        told.append(wanted.quorum)
        scene.averager.wanted, scene.tracker.quorum = wanted, other

    scene.averager.want = want
    assert scene.await_group(round_) is FULL
    assert told == [QUORUM, other]


def test_a_ruling_is_waited_for_from_the_others_report_on() -> None:
    """The all-reduce may have ended long before others report the step; from then on the ruling is due."""
    round_ = Round(None)
    round_.stage = CONFIRMING
    scene = Scene(round_)

    def look(_reduces: bool) -> None:
        scene.tracker.swarm_step = 5 if scene.waits.now() > 10 * RULING_S else 4

    scene.tracker.is_reducing = look
    with pytest.raises(TimeoutError):
        scene.await_group(round_)
    assert scene.waits.now() > 11 * RULING_S


def test_who_stayed_away_from_two_groups_is_not_waited_for() -> None:
    """For some groups; then once more, and the next time for twice as many."""
    group = replace(FULL, peers=HERE - {"mallory"}, traffic=None)
    scene = Scene(*[Round(group)] * 7)
    waited_for = []
    for _ in range(7):
        scene.average()
        waited_for.append(scene.required()[1:])
    assert waited_for == [(4, 5), *[(3, 4)] * 4, (4, 5), (3, 4)]


@pytest.mark.parametrize("quorum", [ALONE, QUORUM, OTHERS])
def test_a_step_is_taken_alone_only_by_who_is_a_quorum(quorum: Quorum) -> None:
    """Others that are out of view for a moment may take the step; the next one is this peer's alone, too."""
    scene = Scene(averaging=1)
    scene.tracker.quorum = quorum
    alone = AveragedGroup(size=1, samples=64, averaged_bytes=0, peers=frozenset({"own"}))
    assert scene.average() == (alone if quorum is ALONE else None)
    assert scene.heard == (["loaded"] if quorum is ALONE else [])
    scene.gradients.due_samples = 63
    assert scene.average() is None


def test_the_lines_of_a_round_tell_how_many_auxiliary_peers_are_missing() -> None:
    """Once a step's usual time is known; what one round has told holds until the next."""
    traffic: Any = SimpleNamespace(promised_s=342.0)
    group = AveragedGroup(size=31, samples=64, averaged_bytes=8, traffic=traffic, lines=LINES)
    unknown, known = Scene(Round(group)), Scene(Round(group), Round(SHORT), usual_s=300.0)
    unknown.average()
    assert unknown.rounds.missing_auxiliaries is None
    for _ in range(2):
        known.average()
        assert known.rounds.missing_auxiliaries == 2


def test_a_failed_averaging_is_tried_again_and_a_group_ends_it() -> None:
    """The group is what the step is taken with; nothing more is averaged, though the batch still looks full."""
    cut = Round(RuntimeError("the line is cut"))
    cut.result = lambda: scene.fail(cut)  # type: ignore[method-assign]
    scene = Scene(Round(SHORT), cut, Round(FULL), Round(SHORT))
    assert scene.average_when_due() is FULL
    tally = scene.rounds.counts.tally
    assert (scene.rounds.attempts, tally.failed, tally.succeeded, len(scene.left)) == (2, 2, 1, 1)
    assert scene.rounds.has_sent
    scene.rounds.begin_step()
    assert (scene.rounds.attempts, scene.rounds.has_sent) == (0, False)


@pytest.mark.parametrize("averaging", [1, 4])
def test_a_peer_that_meets_nobody_trains_on_for_as_long_as_it_has_waited(averaging: int) -> None:
    """The others may wait for samples, or come to this step; not once its group begins, nor after another step."""
    scene = Scene(*[Round(RuntimeError("beside these 5 others may take this step")) for _ in range(3)])
    scene.view.averaging, clock = averaging, scene.waits.clock
    scene.gradients.change = lambda _: vars(clock).update(now=clock.now + 100.0)
    began = clock.now
    assert scene.average_when_due() is None
    assert (scene.rounds.attempts, scene.rounds.is_full) == (1, False)
    waited_s = clock.now - began
    clock.now += waited_s - 0.5
    assert not scene.rounds.is_due
    clock.now += 1.0
    assert scene.rounds.is_due
    assert scene.average_when_due() is None
    assert not scene.rounds.is_due
    scene.rounds.prepare()
    scene.rounds._search.stage = MET  # type: ignore[union-attr]
    assert scene.rounds.is_due
    scene.rounds.begin_step()
    assert scene.rounds.is_due


@pytest.mark.parametrize(
    ("begins", "fails", "has_sent"), [(False, False, False), (True, False, True), (False, True, True)]
)
def test_samples_that_met_nobody_were_sent_to_nobody(begins: bool, fails: bool, has_sent: bool) -> None:
    """So they may count for a later step; not after a round that ran, whatever ended it."""
    round_ = Round(TimeoutError("no group"), begins=begins)
    scene = Scene(round_)
    if fails:
        round_.result = lambda: scene.fail(round_)  # type: ignore[method-assign]
    assert scene.average() is None
    assert scene.rounds.has_sent is has_sent


@pytest.mark.parametrize(("delay", "keepers"), [(False, 0), (False, 1), (True, 0)])
def test_the_leaders_count_is_reason_enough_to_average(delay: bool, keepers: int) -> None:
    """More samples would overfill the batch; but who stops computing must not be stopped by any volunteer's lie."""
    scene = Scene(Round(FULL), delay=delay, averaging=1)
    scene.tracker.is_full, scene.tracker.view.keepers = False, keepers
    assert not scene.rounds.is_due
    scene.tracker.is_told_full = True
    assert scene.rounds.is_due is bool(delay or keepers)
    assert scene.average_when_due() == (FULL if delay or keepers else None)


def test_a_leader_waits_the_longer_for_peers_that_compute_the_longer_a_round_takes() -> None:
    """Their wait would be part of the round's time limit."""
    scene = Scene(*[Round(replace(FULL, traffic=None, seconds=seconds)) for seconds in (8.0, 60.0)])
    for ready_s in (0.0, 2.0, MOST_READY_S):
        assert scene.wanted().ready_s == ready_s
        if ready_s < MOST_READY_S:
            scene.average()


@pytest.mark.parametrize(("delay", "free_s"), [(False, 0.0), (True, 30.0)])
def test_late_peers_are_waited_for_while_that_costs_nobody_time(delay: bool, free_s: float) -> None:
    """Beside training, a round may begin as late as it then ends with the next batch; who stays away is waited for."""
    scene = Scene(*[Round(replace(FULL, peers=HERE - {"mallory"}, traffic=None, seconds=10.0))] * 2, delay=delay)
    scene.tracker.batch_s = 40.0
    for _ in range(2):
        scene.average()
    assert scene.wanted().free_s == free_s
    scene.rounds._due_since = scene.waits.now()
    assert scene.required()[1:] == ((4, 5) if delay else (3, 4))
    scene.waits.clock.now += 30.0
    assert scene.required()[1:] == (3, 4)
    scene.tracker.batch_s = math.inf  # nobody computes yet
    assert scene.wanted().free_s == 0.0
    scene.tracker.batch_s = 10 * TIMEOUT_S  # who waits for longer than this finds no group at all
    assert scene.wanted().free_s == (0.5 * TIMEOUT_S if delay else 0.0)


@pytest.mark.parametrize(("usual_s", "seconds"), [(0.0, 1800.0), (60.0, 1800.0), (10_000.0, 2500.0)])
def test_everybody_is_waited_for_within_bounds(usual_s: float, seconds: float) -> None:
    """One whose microbatch takes minutes must not stop the rest; where steps are long, a part of one is short."""
    scene = Scene(usual_s=usual_s)
    clock = scene.waits.clock
    scene.rounds._due_since = clock.now
    clock.now += seconds
    assert scene.required()[1] == 4
    clock.now += 1.0
    assert scene.required()[1] == 3


def test_a_group_waits_for_all_who_are_known() -> None:
    """At the step and on their way, not by a view of another step; after repeated failure most are enough to begin."""
    scene = Scene()
    assert scene.required() == (4, 4, 5)
    scene.rounds.attempts = FULL_GROUP_ATTEMPTS
    assert scene.required() == (4, 3, 5)
    assert Scene(step=3).required()[2] == 0


def test_the_averager_is_told_what_the_trainer_knows() -> None:
    """Before each look at the round."""
    scene = Scene(arriving=7)
    assert scene.wanted() == Requirements(
        era=2,
        step=4,
        code=("float16", 0),
        target=64,
        leaders=("keeper",),
        required=4,
        expected=11,
        quorum=QUORUM,
        report=b"own record",
        samples=40,
    )
    assert scene.averager.wanted.remaining_s == 3.0
    assert Scene(step=3).wanted().samples == 0  # its followers count another batch


@pytest.mark.parametrize(
    ("steering", "held"),
    [(Steering(), False), (Steering(paused=True), True), (Steering(last_step=4), True), (Steering(last_step=5), False)],
)
def test_no_step_is_taken_while_the_operator_wants_none(steering: Steering, held: bool) -> None:
    """For now, or after the run's last one; nor by a peer that is about to leave, nor before the batch is full."""
    tracker: Any = SimpleNamespace(course=SimpleNamespace(steering=steering), step=4)
    assert StepTracker.is_held.fget(tracker) is held  # type: ignore[attr-defined]
    scene = Scene()
    scene.tracker.is_held = held
    assert scene.rounds.is_due is not held
    scene.tracker.is_full = False
    assert not scene.rounds.is_due
    scene.tracker.is_full = True
    scene.bytes_of["float16"] = 36_000  # which this line passes in two hours, and a round lasts one at most
    assert not scene.rounds.is_due
    scene.bytes_of["float16"] = 64
    scene.waits.interrupt()
    assert not scene.rounds.is_due


@pytest.mark.parametrize(
    ("stage", "full"),
    [
        (SearchStage.LOOKING, False),
        (SearchStage.MET, True),
        (SearchStage.CONFIRMING, False),
    ],
)
@pytest.mark.parametrize("averaging", [1, 4])
def test_a_batch_is_full_for_who_would_hold_up_its_group(stage: SearchStage, full: bool, averaging: int) -> None:
    """The leader has begun; a peer that believes less of others' claims, or sees nobody else yet, averages, too."""
    ahead = Round(FULL)
    scene = Scene(ahead, averaging=averaging)
    scene.tracker.is_full = False
    scene.rounds.prepare()
    ahead.stage = stage
    assert scene.rounds.is_due is full
    assert scene.average_when_due() == (FULL if full else None)
    assert scene.heard[:2] == (["loaded", 64] if full else [])


def test_who_would_hold_up_its_group_still_does_as_the_operator_wants() -> None:
    """And a group of the step before is none of this one."""
    ahead = Round(FULL)
    ahead.stage = SearchStage.MET
    scene = Scene(ahead)
    scene.tracker.is_full = False
    scene.rounds.prepare()
    scene.tracker.is_held = True
    assert not scene.rounds.is_due
    scene.tracker.is_held = False
    assert scene.rounds.is_due
    scene.rounds.begin_step()
    assert not scene.rounds.is_due


def test_a_round_that_begins_just_when_it_is_looked_at_is_not_given_up() -> None:
    """Others take the step between two looks of this peer, at the round and at the batch, in whatever order."""
    looks: list[None] = []

    def before_and_after(before: object, after: object) -> Any:
        def look(_: object) -> object:
            looks.append(None)
            return before if len(looks) == 1 else after

        return property(look)

    class Beginning(Round):
        stage = before_and_after(SearchStage.LOOKING, SearchStage.AVERAGING)

    class Tracker(SimpleNamespace):
        is_full = before_and_after(before=True, after=False)

    round_ = Beginning(None)
    scene = Scene(round_)
    del scene.tracker.is_full
    scene.rounds._tracker = Tracker(**vars(scene.tracker))  # type: ignore[assignment]
    scene.averager.want = lambda wanted: vars(round_).update(ends=FULL)
    assert scene.await_group(round_) is FULL


EIGHT_BITS = Change(from_step=4, compression="8bit-blockwise")


@pytest.mark.parametrize(
    ("step", "changes", "compression"),
    [
        (4, [], "float16"),
        (3, [EIGHT_BITS], "float16"),
        (4, [EIGHT_BITS], "8bit-blockwise"),
        (9, [EIGHT_BITS], "8bit-blockwise"),
        (9, [EIGHT_BITS, Change(from_step=9)], "float16"),
    ],
)
def test_a_round_has_the_code_in_force_after_its_step(step: int, changes: list[Change], compression: str) -> None:
    """Also that of a peer that went back before a change; the run file's where no change names one."""
    scene = Scene(Round(FULL))
    scene.steer(EIGHT_BITS)
    scene.rounds.take_up_code()
    scene.steer(*changes)
    scene.tracker.step = step
    scene.average()
    assert scene.gradients.averaging.compression == compression


def test_a_group_sought_in_another_code_is_given_up() -> None:
    """A change may be heard of late: before the round, and while its group is looked for."""
    ahead, waiting = Round(FULL), Round(None)
    scene = Scene(waiting)
    scene.rounds._search = ahead  # type: ignore[assignment]
    scene.steer(EIGHT_BITS)
    scene.tracker.is_reducing = lambda _reduces: scene.steer() if scene.looks == 2 else None
    assert scene.average() is None
    assert ahead.cancelled
    assert waiting.cancelled
    assert scene.looks == 2


def test_a_line_is_judged_by_the_code_of_the_swarms_step() -> None:
    """A peer that stands by stays at its step, and comes back when the swarm averages what its line can pass."""
    scene = Scene()
    scene.bytes_of["float16"] = 36_000
    scene.steer(Change(from_step=6, compression="8bit-blockwise"))
    assert scene.rounds.line_is_too_slow
    scene.tracker.swarm_step = 6
    assert not scene.rounds.line_is_too_slow
    assert scene.rounds.round_bytes == 32


@pytest.mark.parametrize(
    ("group", "heard"), [(FULL, ["traffic", ({"Qm1": 32.0}, 58, True)]), (SHORT, [({"Qm1": 25.0}, 57, False)])]
)
def test_a_step_is_taken_with_a_group_that_fills_the_batch(group: AveragedGroup, heard: list[object]) -> None:
    """If a peer was lost, or had not what it claimed, the tracker is told; what passed is remembered for the next."""
    scene = Scene(Round(group))
    assert scene.average() is (FULL if group is FULL else None)
    assert scene.heard == ["loaded", 64, "succeeded", *heard]
    assert scene.rates == [5.0]


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("error", [RuntimeError("the line is cut"), None])
def test_a_round_that_fails_is_given_up(begins: bool, error: Exception | None) -> None:
    """Also one that nothing ends but this peer's patience; a slow line may be the reason, if there was a group."""
    failing = Round(error, begins)
    scene = Scene(failing)
    scene.waits.after_wait = lambda: vars(scene.tracker).update(is_full=False)  # another peer has left
    assert scene.average() is None
    assert failing.cancelled or failing.done()
    assert failing.done() is (error is not None)
    assert ("the line may be slow" in scene.heard) is begins


def test_a_round_that_cannot_be_begun_is_cancelled() -> None:
    """Or the others would wait for this peer."""
    failing = Round(FULL)
    scene = Scene(failing)
    scene.averager.begin = lambda *_: scene.fail(Round(RuntimeError("the averager has died")))
    assert scene.average() is None
    assert failing.cancelled


def test_others_are_met_before_the_batch_is_full() -> None:
    """In one round, until it is used; not while the operator wants no step. A step taken otherwise gives it up."""
    first, second = Round(FULL), Round(None)
    scene = Scene(first, second)
    scene.tracker.is_full = False
    scene.tracker.is_held = True
    scene.rounds.prepare()
    assert scene.left == [first, second]
    scene.tracker.is_held = False
    for _ in range(2):
        scene.rounds.prepare()
        assert scene.left == [second]
    assert scene.average() is FULL
    scene.rounds.prepare()
    assert scene.left == []
    second.is_due = True
    scene.rounds.begin_step()
    assert second.cancelled
