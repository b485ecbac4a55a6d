"""Which states of others a peer takes; how its own changes is in tests/system."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from peer.config.run import RunConfig
from peer.swarm.shared_state import SharedState
from peer.swarm.view import MEETING_S
from tests.support.peer_records import SOUND, Scene, peers, record


def state_of(course: Any, interrupted: threading.Event, role: str = "trainer") -> SharedState:
    """The state of a peer in a swarm at step 50."""
    tracker: Any = SimpleNamespace(course=course, swarm_step=50)
    parts: Any = SimpleNamespace()
    return SharedState(parts, parts, tracker, parts, RunConfig(), is_keeper=role == "keeper", interrupted=interrupted)


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
        ("trainer", (2.0,) * 32, SOUND, "is not the swarm's"),
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
    interrupted = threading.Event()
    interrupted.set()  # nobody is waited for
    assert state_of(course, interrupted, role)._doubt("Qm1", step, sketch) == doubt
    assert judged == ([("Qm1", step, sketch)] if doubt == "is not the swarm's" else [])


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
