"""Which states of others a peer takes; how its own changes is in tests/system."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from peer.config.run import RunConfig
from peer.config.steering import Steering
from peer.node.states import DonatedState, JoinedTensors
from peer.progress.view import MEETING_S
from peer.runtime.waits import run_blocking
from peer.swarm.shared_state import CONFIRMATION_WAIT_S, DISAGREEMENT_S, FORGOTTEN_S, SharedState
from peer.swarm.training_state import TrainingState
from peer.swarm.transfers import MissedAverage
from tests.support.clocks import Clock
from tests.support.peer_records import SOUND, Scene, peers, record
from tests.support.turned_waits import TurnedWaits

OTHER, THIRD = (2.0,) * 32, (3.0,) * 32  # sketches of other states than `SOUND`


def state_of(course: Any, waits: TurnedWaits, role: str = "trainer") -> SharedState:
    """The state of a peer in a swarm at step 50."""
    tracker: Any = SimpleNamespace(course=course, swarm_step=50)
    parts: Any = SimpleNamespace()
    return SharedState(parts, parts, parts, tracker, parts, RunConfig(), waits, is_keeper=role == "keeper")


def nobody_waited_for() -> TurnedWaits:
    """The waits of a peer that is about to leave."""
    waits = TurnedWaits(Clock(100.0))
    waits.interrupt()
    return waits


def test_the_members_word_for_a_state_is_waited_for() -> None:
    """Their records may reach the keeper a moment after the state that a donor gives it."""
    scene = Scene(is_keeper=True)
    records = peers(*[record(step=50).model_copy(update={"sketch": SOUND})] * 2)
    scene.look(records, 0.0)
    waits = TurnedWaits(after_wait=lambda: scene.look(records, MEETING_S))
    assert run_blocking(state_of(scene.course, waits, "keeper")._await_sketch(50)) == SOUND
    assert len(waits.waits) == 1


def test_the_members_word_is_waited_for_in_vain_only_briefly() -> None:
    """Other donors may have a state that they confirm; a keeper that is told to leave waits for nothing."""
    scene = Scene(is_keeper=True)
    waits = TurnedWaits(Clock(0.0))
    state = state_of(scene.course, waits, "keeper")
    assert run_blocking(state._await_sketch(50)) == ()
    assert waits.now() == pytest.approx(CONFIRMATION_WAIT_S, abs=0.2)
    waits.interrupt()
    assert run_blocking(state._await_sketch(50)) == ()
    assert waits.waits[-1] == 0.0


@pytest.mark.parametrize(
    ("met_after_s", "leaves", "waited_s"),
    [(2.0, False, 2.0), (1e9, False, MEETING_S + CONFIRMATION_WAIT_S), (1e9, True, 0.0)],
)
def test_a_keeper_meets_those_who_look_for_it_before_it_takes_a_state(
    met_after_s: float, leaves: bool, waited_s: float
) -> None:
    """For a while: members that have a state find a restarted keeper only by and by."""
    waits = TurnedWaits(Clock(0.0))
    if leaves:
        waits.interrupt()
    course = SimpleNamespace(has_met_all=lambda now: now >= met_after_s)
    run_blocking(state_of(course, waits, "keeper")._meet_all())
    assert waits.now() == pytest.approx(waited_s, abs=0.2)


@pytest.mark.parametrize(
    ("role", "sketch", "known", "doubt"),
    [
        ("trainer", SOUND, SOUND, None),
        ("trainer", SOUND, (), None),
        ("trainer", OTHER, SOUND, "is not the swarm's"),
        ("keeper", SOUND, SOUND, None),
        ("keeper", SOUND, (), "is not confirmed by most members"),
    ],
)
def test_a_donors_state_is_taken_as_far_as_others_confirm_it(
    role: str, sketch: tuple[float, ...], known: tuple[float, ...], doubt: str | None
) -> None:
    """A trainer takes the keeper's word, the keeper what most members report; who gave another state is judged."""
    judged: list[tuple[object, ...]] = []
    step = 50
    course = SimpleNamespace(
        sketch_at=lambda at: known if at == step else (), judge_donor=lambda *facts: judged.append(facts)
    )
    course.is_most_reported = lambda *_: True
    state = state_of(course, nobody_waited_for(), role)
    assert run_blocking(state._doubt("Qm1", step, sketch)) == doubt
    assert judged == ([("Qm1", step, sketch)] if doubt == "is not the swarm's" else [])


@pytest.mark.parametrize(
    ("reports", "taken_after_s", "disputed_after_s"),
    [
        ([SOUND, SOUND, OTHER], 0.0, None),
        ([SOUND, SOUND, OTHER, THIRD], DISAGREEMENT_S, None),
        ([SOUND, OTHER], None, 2 * DISAGREEMENT_S),
        ([OTHER, OTHER, SOUND, THIRD], None, 2 * DISAGREEMENT_S),
    ],
)
def test_a_keeper_that_is_behind_comes_back_however_the_members_differ(
    reports: list[tuple[float, ...]], taken_after_s: float | None, disputed_after_s: float | None
) -> None:
    """It takes what most members hold, else after a while the most common state, or else its own counts."""
    scene, waits = Scene(is_keeper=True), nobody_waited_for()
    records = peers(*(record(step=50).model_copy(update={"sketch": sketch}) for sketch in reports))
    for seen_at in (0.0, MEETING_S):
        scene.look(records, seen_at)
    state = state_of(scene.course, waits, "keeper")
    doubts: dict[float, str | None] = {}
    disputed: dict[float, bool] = {}
    for waited_s in (0.0, DISAGREEMENT_S / 2, DISAGREEMENT_S, 2 * DISAGREEMENT_S):
        waits.clock.now = 100.0 + waited_s
        doubts[waited_s] = run_blocking(state._doubt("Qm1", 50, SOUND))
        disputed[waited_s] = state.is_disputed
    assert next((waited for waited, doubt in doubts.items() if doubt is None), None) == taken_after_s
    assert next((waited for waited, is_so in disputed.items() if is_so), None) == disputed_after_s


def test_an_earlier_dispute_means_nothing_later() -> None:
    """The members of that time may be gone; nor is a state taken that is further than the swarm."""
    scene, waits = Scene(is_keeper=True), nobody_waited_for()
    reports = [record(step=50).model_copy(update={"sketch": sketch}) for sketch in (SOUND, SOUND, OTHER, THIRD)]
    for seen_at in (0.0, MEETING_S):
        scene.look(peers(*reports), seen_at)
    state = state_of(scene.course, waits, "keeper")
    assert run_blocking(state._doubt("Qm1", 50, SOUND)) is not None
    waits.clock.now += FORGOTTEN_S
    assert run_blocking(state._doubt("Qm1", 50, SOUND)) is not None
    waits.clock.now += DISAGREEMENT_S
    assert run_blocking(state._doubt("Qm1", 51, SOUND)) is not None
    assert run_blocking(state._doubt("Qm1", 50, SOUND)) is None


@pytest.mark.parametrize(("has_sent", "kept"), [(False, [("keep", 2, 50)]), (True, [])])
def test_remainders_that_were_in_a_round_are_not_kept(has_sent: bool, kept: list[object]) -> None:
    """A peer that leaves in the middle of a round does not know what others have counted of it."""
    calls: list[object] = []
    training: Any = SimpleNamespace(step=50, era=2)
    transfers: Any = SimpleNamespace()
    gradients: Any = SimpleNamespace(
        keep_remainders=lambda _file, era, step: calls.append(("keep", era, step)),
        resume_remainders=lambda _file, era, step: calls.append(("resume", era, step)),
    )
    rounds: Any = SimpleNamespace(has_sent=has_sent, take_up_code=lambda: calls.append("code"))
    tracker: Any = SimpleNamespace(swarm_step=53)
    state = SharedState(training, transfers, gradients, tracker, rounds, RunConfig(), TurnedWaits(), is_keeper=False)
    file: Any = None
    state.keep_remainders(file)
    assert calls == kept
    calls.clear()
    state.resume_remainders(file)
    assert calls == ["code", ("resume", 2, 53)]  # a change of the code drops them; averages lead to the swarm's step


OWN_STEP, OWN_ERA, SWARM_STEP = 3, 2, 50


def training_at(step: int, era: int) -> TrainingState:
    """The state of a small model at this step, with parameters and moments of its own."""
    state = TrainingState(torch.nn.Linear(48, 4), RunConfig())
    for parameter in state.parameters:
        parameter.grad = torch.zeros_like(parameter)  # as the averager does
    state.load_gradients(map(torch.randn, state.shapes))
    state.advance(())
    state.set_step(step, ["Qm7"])
    state.era = era
    return state


DONOR = training_at(SWARM_STEP, OWN_ERA)
DONATED = DonatedState("Qm1", DONOR.step, DONOR.era, ("Qm8", "Qm9"), JoinedTensors.join(list(DONOR.tensors)))
FALSE = JoinedTensors.join([2 * tensor for tensor in DONOR.tensors])


class Joiner:
    """A peer that is behind the swarm, its donors in order, and the sketch that the beacon has of each state."""

    def __init__(self, role: str, donated: list[DonatedState], beacon_era: int = OWN_ERA) -> None:
        self.training = training_at(OWN_STEP, OWN_ERA)
        self.refused: list[list[str]] = []  # of each request
        self.judged: list[tuple[str, int, str | None]] = []  # donors with the eras and faults of their states
        self.begun: list[object] = []

        async def state(shapes: list[torch.Size], refused: list[str]) -> DonatedState | None:
            assert shapes == DONATED.tensors.shapes
            self.refused.append(list(refused))
            return next((each for each in donated if each.donor not in refused), None)

        self.averages = [torch.ones_like(parameter) for parameter in self.training.parameters]
        self.kept: list[tuple[int, int, tuple[str, ...]]] = []  # averages with the voters of each

        def keep(
            era: int, step: int, averages: list[torch.Tensor], factors: object, code: object, voters: Collection[str]
        ) -> None:
            assert all(map(torch.equal, averages, self.averages))
            assert (factors, code) == ({}, RunConfig().averaging.wire_format)
            self.kept.append((era, step, tuple(voters)))

        def load_average(tensors: Iterable[torch.Tensor]) -> None:
            for ours, theirs in zip(self.averages, tensors, strict=True):
                ours.copy_(theirs)

        transfers: Any = SimpleNamespace(
            state=state,
            state_judged=lambda found, fault: self.judged.append((found.donor, found.era, fault)),
            keep=keep,
        )
        gradients: Any = SimpleNamespace(
            drop_all=lambda: self.begun.append("dropped"),
            forget_remainders=lambda: None,
            due_samples=0,
            shared=SimpleNamespace(used=lambda: nullcontext(self.averages)),
            load_average=load_average,
            making_room=nullcontext,
            hold=lambda: None,
            drop=lambda: None,
            factors={},
            averaging=RunConfig().averaging,
        )
        tracker: Any = SimpleNamespace(
            course=SimpleNamespace(
                era=beacon_era,
                steering=Steering(),
                sketch_at=lambda _: DONOR.sketch(),
                judge_donor=lambda *_: None,
                has_met_all=lambda _: True,
            ),
            swarm_step=SWARM_STEP,
            is_undone=role != "keeper" and beacon_era > OWN_ERA,
            begin_step=lambda step, era, voters, _sketch, _samples: self.begun.append((step, era, voters)),
        )
        rounds: Any = SimpleNamespace(begin_step=lambda: None)
        self.state = SharedState(
            self.training,
            transfers,
            gradients,
            tracker,
            rounds,
            RunConfig(),
            nobody_waited_for(),
            is_keeper=role == "keeper",
        )


@pytest.mark.parametrize(
    ("role", "beacon_era", "changes", "fault"),
    [
        ("trainer", OWN_ERA, {}, None),
        ("trainer", OWN_ERA, {"step": OWN_STEP + 1}, None),
        ("trainer", OWN_ERA, {"step": OWN_STEP}, f"is none of step {OWN_STEP + 1} or later"),
        ("trainer", OWN_ERA, {"era": OWN_ERA - 1}, f"is none of era {OWN_ERA} or later"),
        ("trainer", OWN_ERA + 1, {}, f"is none of era {OWN_ERA + 1} or later"),
        ("trainer", OWN_ERA + 1, {"step": 0, "era": OWN_ERA + 1}, None),  # the run has returned to a checkpoint
        ("trainer", OWN_ERA, {"tensors": FALSE}, "is not the swarm's"),
        ("keeper", OWN_ERA, {"era": OWN_ERA + 5}, None),
        ("keeper", OWN_ERA, {"era": OWN_ERA - 1}, f"is none of era {OWN_ERA} or later"),
        ("keeper", OWN_ERA - 1, {"era": OWN_ERA - 1}, f"is none of era {OWN_ERA} or later"),
    ],
)
def test_a_donors_state_must_be_recent_and_the_swarms(
    role: str, beacon_era: int, changes: dict[str, Any], fault: str | None
) -> None:
    """The beacon says how recent; the keeper, which sets the eras, goes by its own, and believes nobody's voters."""
    donated = replace(DONATED, **changes)
    joiner = Joiner(role, [donated], beacon_era)
    before = [tensor.clone() for tensor in joiner.training.tensors]
    assert run_blocking(joiner.state.download()) is (fault is None)
    era = OWN_ERA if role == "keeper" else donated.era
    assert joiner.judged == [(DONATED.donor, era, fault)]
    assert joiner.refused == ([[]] if fault is None else [[], [DONATED.donor]])
    position = (donated.step, era) if fault is None else (OWN_STEP, OWN_ERA)
    voters = () if role == "keeper" else DONATED.voters
    assert joiner.begun == ["dropped", (*position, voters if fault is None else ["Qm7"])]
    assert (joiner.state.step, joiner.state.era) == position
    assert all(map(torch.equal, joiner.training.tensors, before if fault else donated.tensors.separate()))


@pytest.mark.parametrize("role", ["trainer", "keeper"])
def test_who_took_a_step_is_known_until_a_checkpoint_is_loaded(role: str) -> None:
    """To the tracker, to peers that take the state, and to those that missed the step."""
    joiner = Joiner(role, [])
    joiner.state.take_step(("Qm1", "Qm2"))
    assert joiner.kept == ([(OWN_ERA, OWN_STEP + 1, ("Qm1", "Qm2"))] if role == "keeper" else [])
    joiner.state.follow(MissedAverage([2 * average for average in joiner.averages], ("Qm3",)))
    assert torch.equal(joiner.averages[0], torch.full_like(joiner.averages[0], 2.0))
    assert joiner.training.copy().voters == ("Qm3",)
    joiner.state.restore(OWN_STEP)
    assert joiner.training.copy().voters == ()
    steps = [(OWN_STEP + 1, ("Qm1", "Qm2")), (OWN_STEP + 2, ("Qm3",)), (OWN_STEP, ())]
    assert joiner.begun == [(step, OWN_ERA, voters) for step, voters in steps]


def test_after_a_refused_state_the_next_donor_is_asked() -> None:
    """Each state that is refused has a reason."""
    older = replace(DONATED, donor="Qm2", step=OWN_STEP)
    other = replace(DONATED, donor="Qm3", tensors=FALSE)
    joiner = Joiner("trainer", [older, other, DONATED])
    assert run_blocking(joiner.state.download())
    assert joiner.refused == [[], ["Qm2"], ["Qm2", "Qm3"]]
    assert [fault is None for _, _, fault in joiner.judged] == [False, False, True]
    assert joiner.training.sketch() == DONOR.sketch()
