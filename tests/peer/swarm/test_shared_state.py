"""Which states of others a peer takes; how its own changes is in tests/system."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from peer.config.run import RunConfig
from peer.swarm.shared_state import DISAGREEMENT_S, FORGOTTEN_S, SharedState
from peer.swarm.view import MEETING_S
from tests.support.peer_records import SOUND, Scene, peers, record

OTHER, THIRD = (2.0,) * 32, (3.0,) * 32  # sketches of other states than `SOUND`


def state_of(
    course: Any, interrupted: threading.Event, role: str = "trainer", clock: Callable[[], float] = time.monotonic
) -> SharedState:
    """The state of a peer in a swarm at step 50."""
    tracker: Any = SimpleNamespace(course=course, swarm_step=50)
    parts: Any = SimpleNamespace()
    return SharedState(
        parts, parts, tracker, parts, RunConfig(), is_keeper=role == "keeper", interrupted=interrupted, clock=clock
    )


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

    assert state_of(scene.course, Interval(), "keeper")._await_sketch(50) == SOUND


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
    interrupted = threading.Event()
    interrupted.set()  # nobody is waited for
    assert state_of(course, interrupted, role)._doubt("Qm1", step, sketch) == doubt
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
    scene, now, interrupted = Scene(is_keeper=True), [100.0], threading.Event()
    interrupted.set()
    records = peers(*(record(step=50).model_copy(update={"sketch": sketch}) for sketch in reports))
    for seen_at in (0.0, MEETING_S):
        scene.look(records, seen_at)
    state = state_of(scene.course, interrupted, "keeper", clock=lambda: now[0])
    doubts: dict[float, str | None] = {}
    disputed: dict[float, bool] = {}
    for waited_s in (0.0, DISAGREEMENT_S / 2, DISAGREEMENT_S, 2 * DISAGREEMENT_S):
        now[0] = 100.0 + waited_s
        doubts[waited_s] = state._doubt("Qm1", 50, SOUND)
        disputed[waited_s] = state.is_disputed
    assert next((waited for waited, doubt in doubts.items() if doubt is None), None) == taken_after_s
    assert next((waited for waited, is_so in disputed.items() if is_so), None) == disputed_after_s


def test_an_earlier_dispute_means_nothing_later() -> None:
    """The members of that time may be gone; nor is a state taken that is further than the swarm."""
    scene, now, interrupted = Scene(is_keeper=True), [0.0], threading.Event()
    interrupted.set()
    reports = [record(step=50).model_copy(update={"sketch": sketch}) for sketch in (SOUND, SOUND, OTHER, THIRD)]
    for seen_at in (0.0, MEETING_S):
        scene.look(peers(*reports), seen_at)
    state = state_of(scene.course, interrupted, "keeper", clock=lambda: now[0])
    assert state._doubt("Qm1", 50, SOUND) is not None
    now[0] = FORGOTTEN_S
    assert state._doubt("Qm1", 50, SOUND) is not None
    now[0] += DISAGREEMENT_S
    assert state._doubt("Qm1", 51, SOUND) is not None
    assert state._doubt("Qm1", 50, SOUND) is None


@pytest.mark.parametrize(("attempts", "kept"), [(0, [("keep", 2, 50)]), (1, [])])
def test_remainders_that_were_in_a_round_are_not_kept(attempts: int, kept: list[object]) -> None:
    """A peer that leaves in the middle of a round does not know what others have counted of it."""
    calls: list[object] = []
    averager: Any = SimpleNamespace(local_epoch=50, era=2)
    gradients: Any = SimpleNamespace(
        keep_remainders=lambda _file, era, step: calls.append(("keep", era, step)),
        resume_remainders=lambda _file, era, step: calls.append(("resume", era, step)),
    )
    rounds: Any = SimpleNamespace(attempts=attempts, take_up_code=lambda: calls.append("code"))
    tracker: Any = SimpleNamespace(swarm_step=53)
    state = SharedState(
        averager, gradients, tracker, rounds, RunConfig(), is_keeper=False, interrupted=threading.Event()
    )
    file: Any = None
    state.keep_remainders(file)
    assert calls == kept
    calls.clear()
    state.resume_remainders(file)
    assert calls == ["code", ("resume", 2, 53)]  # a change of the code drops them; averages lead to the swarm's step
