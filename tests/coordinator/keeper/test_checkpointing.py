"""The keeper's checkpoints from one to the next."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from coordinator.checkpoints.manifest import stored_steps
from coordinator.context.open_run import OpenRun, open_run
from coordinator.keeper.checkpointing import JOINERS_EVERY_S, is_due, removable, why_withheld
from coordinator.ledger.recorded_checkpoints import checkpoints
from coordinator.statistics.alarms import MODEL_KINDS, Alarm, write_alarms
from peer.config.run import Checkpoints
from tests.support.clocks import Clock
from tests.support.small_run import make_small_run
from tests.support.standing_swarm import checkpointing_of, reach, turn_away

WHOLE = {"weight": torch.zeros(3), "bias": torch.ones(2)}
GOOD: dict[str, Any] = {"loss": 2.0, "last_loss": 2.0, "most_rise": 1.5, "is_own": True}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[OpenRun]:
    """A run that writes a checkpoint every five steps and keeps two."""
    made = make_small_run(tmp_path)
    settings = made.config.checkpoints.model_copy(update={"every_steps": 5, "keep": 2})
    (made.path / "run.yaml").write_text(made.config.model_copy(update={"checkpoints": settings}).to_yaml())
    with open_run(made.path) as opened:
        yield opened


def test_checkpoints_for_joiners_pass_and_displace_none(run: OpenRun) -> None:
    """One a minute at most, gone with the next, counted as none of those that are kept, and no reason to be late."""
    clock = Clock()
    checkpointing = checkpointing_of(run, clock)

    def reached(step: int, joiners: bool = False, after_s: float = JOINERS_EVERY_S) -> list[int]:
        clock.now += after_s
        reach(checkpointing, step)
        turn_away(checkpointing, int(joiners))
        assert [row.step for row in reversed(checkpoints(run.database))] == stored_steps(run.directory.checkpoints_dir)
        return stored_steps(run.directory.checkpoints_dir)

    assert reached(5) == [5]
    assert reached(6, joiners=True) == [5, 6]
    assert reached(6, joiners=True, after_s=1.0) == [5, 6]
    assert reached(7, joiners=True, after_s=1.0) == [5, 6]
    assert reached(8, joiners=True) == [5, 8]
    assert reached(10) == [5, 10]
    assert reached(14, joiners=True) == [5, 10, 14]
    assert reached(15) == [10, 15]


def test_the_checkpoint_that_an_alarm_names_is_kept_until_it_is_over(run: OpenRun) -> None:
    """Also one that was written for joiners, while newer ones displace the others."""
    clock = Clock()
    checkpointing = checkpointing_of(run, clock)
    alarm = Alarm("loss_diverges", 8, "the loss is 9, and was 4")
    for step in range(5, 25):
        clock.now += JOINERS_EVERY_S
        reach(checkpointing, step)
        if step == 7:
            turn_away(checkpointing, 1)
            run.database.transact(lambda session: write_alarms(session, MODEL_KINDS, [alarm], clock.now))
    assert stored_steps(run.directory.checkpoints_dir) == [7, 15, 20]
    run.database.transact(lambda session: write_alarms(session, MODEL_KINDS, [], clock.now))
    reach(checkpointing, 25)
    assert stored_steps(run.directory.checkpoints_dir) == [20, 25]


@pytest.mark.parametrize("change", [{}, {"last_loss": None}, {"loss": 3.0}, {"loss": 0.1}])
def test_a_sound_state_passes(change: dict[str, Any]) -> None:
    """The first of a run, one that learns, and one whose loss has risen within the bound."""
    assert why_withheld(WHOLE, **(GOOD | change)) == ""


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_no_numbers_are_named(value: float) -> None:
    """One such value in one tensor is enough."""
    broken = WHOLE | {"bias": torch.tensor([1.0, value])}
    assert "`bias`" in why_withheld(broken, **GOOD)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"loss": 3.1}, "1.5 times"),
        ({"loss": math.nan}, "not finite"),
        ({"loss": math.inf}, "not finite"),
        ({"is_own": False}, "taken from a member"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, Any], reason: str) -> None:
    """A loss that rose too far or is none, and a state that nobody else vouches for."""
    assert reason in why_withheld(WHOLE, **(GOOD | change))


FIVE = Checkpoints(every_steps=5)


@pytest.mark.parametrize(
    ("step", "newest", "stopping", "expected"),
    [
        (5, 0, False, True),  # due
        (4, 0, False, False),
        (10, 5, False, True),
        (7, 1, False, True),  # caught up over a due step: do not wait for the next multiple
        (6, 5, False, False),
        (6, 5, True, True),  # stopping: nothing is lost
        (5, 5, True, False),  # written already
        (0, 0, True, False),
    ],
)
def test_checkpoints_when_due_and_at_the_end(step: int, newest: int, stopping: bool, expected: bool) -> None:
    """Every five steps here, after a gap, and when stopping, but never the same step twice."""
    assert is_due(FIVE, step=step, newest=newest, age_s=0.0, boundaries=(), stopping=stopping) is expected


@pytest.mark.parametrize(
    ("step", "newest", "expected"),
    [
        (7, 5, False),  # the last step of the phase before
        (8, 5, True),  # the boundary
        (8, 8, False),
        (9, 5, True),  # the keeper was away at the boundary, or the disk was full
        (9, 8, False),
        (13, 8, True),  # due
        (14, 13, True),  # the next boundary
    ],
)
def test_a_phase_begins_with_a_checkpoint(step: int, newest: int, expected: bool) -> None:
    """The state with which a phase starts is written, or the first of the phase that the keeper has."""
    assert is_due(FIVE, step=step, newest=newest, age_s=0.0, boundaries=(8, 14)) is expected


@pytest.mark.parametrize(("step", "age_s", "expected"), [(6, 599, False), (6, 600, True), (5, 9999, False)])
def test_a_slow_step_does_not_put_it_off(step: int, age_s: float, expected: bool) -> None:
    """After so many minutes a checkpoint is due with the next step, however few there were."""
    settings = Checkpoints(every_steps=100, every_minutes=10)
    assert is_due(settings, step=step, newest=5, age_s=age_s, boundaries=()) is expected


def test_newest_round_and_best_stay() -> None:
    """The newest two, each tenth step, the best by held-out loss, and those that are spared by name."""
    settings = Checkpoints(keep=2, keep_every_steps=10, keep_best=1)
    steps = [5, 7, 10, 12, 15, 20, 22, 25]
    assert removable(settings, steps, best=[3, 12, 5], spared={7}) == [5, 15]


@given(
    steps=st.sets(st.integers(1, 1000), min_size=1),
    keep=st.integers(1, 10),
    every=st.integers(0, 50),
    best=st.lists(st.integers(1, 1000)),
)
def test_the_newest_is_never_removed(steps: set[int], keep: int, every: int, best: list[int]) -> None:
    """Whatever the settings: what a run resumes from stays, and no more goes than there is."""
    settings = Checkpoints(keep=keep, keep_every_steps=every)
    removed = removable(settings, steps, best)
    assert set(removed) < steps
    assert not set(removed) & set(sorted(steps)[-keep:])
