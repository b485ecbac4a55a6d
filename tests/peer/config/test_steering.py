"""What the beacon says of an operator's wishes, and what follows from it at a step."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from peer.config.steering import MAX_CHANGES, Change, Steering, in_force

CHANGES = tuple(Change(from_step=step, learning_rate_scale=1.0 / step) for step in (5, 10, 15))


@pytest.mark.parametrize(("step", "scale"), [(0, 1.0), (4, 1.0), (5, 1 / 5), (14, 1 / 10), (10**9, 1 / 15)])
def test_a_change_holds_from_its_step_until_the_next(step: int, scale: float) -> None:
    """Before the first everything is as the run file says."""
    assert Steering(changes=CHANGES).at(step).learning_rate_scale == scale
    assert Steering(changes=CHANGES).at(step).target_batch_size is None


@pytest.mark.parametrize("last_step", [None, 0, 7])
def test_the_run_ends_with_its_last_step(last_step: int | None) -> None:
    """At that step and after it; without one never."""
    steering = Steering(last_step=last_step)
    assert [steering.has_ended(step) for step in (6, 7, 8)] == [
        last_step is not None and step >= last_step for step in (6, 7, 8)
    ]


def test_the_beacon_has_what_is_in_force_and_what_comes() -> None:
    """Of what is over only the newest change; never more than a beacon may hold."""
    assert in_force(CHANGES, 4) == CHANGES
    assert in_force(CHANGES, 12) == CHANGES[1:]
    assert in_force(CHANGES, 99) == CHANGES[2:]
    many = [Change(from_step=step) for step in range(1, 30)]
    assert [change.from_step for change in in_force(many, 10)] == list(range(10, 10 + MAX_CHANGES))


@pytest.mark.parametrize(
    "words",
    [
        {"changes": [{"from_step": 1, "learning_rate_scale": 0.0}]},
        {"changes": [{"from_step": 1, "learning_rate_scale": float("nan")}]},
        {"changes": [{"from_step": 1, "learning_rate_scale": 1001.0}]},
        {"changes": [{"from_step": 1, "target_batch_size": 0}]},
        {"changes": [{"from_step": -1}]},
        {"changes": [{"from_step": 1, "compression": "zip"}]},
        {"changes": [{"from_step": 1, "powersgd_rank": 3}]},
        {"changes": [{"from_step": 1, "momentum": 0.5}]},
        {"changes": [{"from_step": step} for step in range(MAX_CHANGES + 1)]},
        {"paused": 1},
        {"last_step": -1},
    ],
)
def test_a_beacon_that_steers_out_of_bounds_is_refused(words: dict[str, object]) -> None:
    """Whoever signs it: a keeper in the wrong hands cannot send a peer to infinity."""
    with pytest.raises(ValidationError):
        Steering.model_validate(words)
