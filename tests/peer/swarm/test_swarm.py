"""What a peer signs of a round, and what it makes of steps that it missed."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from auth.receipts import open_receipt, read_receipt
from peer.swarm.history import Lack
from peer.swarm.swarm import MOST_SILENT_LOOKS, Swarm, Witness
from tests.support.receipts import key_of


def test_who_reduced_signs_what_came() -> None:
    """Everybody's weight as whole samples, its own too, without the keeper, who has none."""
    ada, bob = key_of("ada"), key_of("bob")
    text = Witness(ada, "run").receipt(1, 7, {ada.peer_id: 12.0, bob.peer_id: 20.0, key_of("keeper").peer_id: 0.0})
    receipt = open_receipt(read_receipt(text), ada.public_key)
    assert (receipt.run, receipt.era, receipt.step) == ("run", 1, 7)
    assert receipt.samples == {ada.peer_id: 12, bob.peer_id: 20}


def test_who_reduced_nothing_signs_nothing() -> None:
    """A peer in client mode, one alone, or a round without any samples."""
    assert Witness(key_of("ada"), "run").receipt(0, 7, {}) == ""
    assert Witness(key_of("ada"), "run").receipt(0, 7, {key_of("bob").peer_id: 0.0}) == ""


def behind(*answers: list[Any] | Lack) -> Any:
    """A swarm whose peer is behind, and whose keeper answers so, one time after another."""
    followed: list[Any] = []
    left = list(answers)
    optimizer = SimpleNamespace(
        interrupted=SimpleNamespace(wait=lambda seconds: False),
        state_averager=SimpleNamespace(missed_average=lambda: left.pop(0)),
        keeps_late_samples=False,
        drop_gradients=lambda: 12,
        follow=followed.append,
    )
    swarm = SimpleNamespace(
        _optimizer=optimizer, _unfollowed=-1, _silent_looks=0, _why_lost=lambda: "late", step=4, followed=followed
    )
    swarm._caught_up = partial(Swarm._caught_up, swarm)
    return swarm


def test_what_a_peer_had_accumulated_is_lost_only_when_it_follows() -> None:
    """It says that it took a step, and why the samples are in none."""
    swarm = behind(Lack.NOT_YET, ["tensor"])
    assert Swarm._follow(swarm, lambda: None) is None
    outcome = Swarm._follow(swarm, lambda: None)
    assert outcome is not None
    assert (outcome.followed_steps, outcome.averaged, outcome.samples) == (1, False, 0)
    assert (outcome.lost_samples, outcome.lost_reason) == (12, "late")
    assert swarm.followed == [["tensor"]]


def test_late_samples_are_collected_and_kept_where_the_run_allows_it() -> None:
    """They count for the next step."""
    swarm, collected = behind(["tensor"]), list[str]()
    swarm._optimizer.keeps_late_samples = True
    outcome = Swarm._follow(swarm, lambda: collected.append("collected"))
    assert outcome is not None
    assert (outcome.lost_samples, outcome.lost_reason, collected) == (0, "", ["collected"])


def test_a_peer_follows_no_more_where_the_average_is_gone_or_nobody_answers() -> None:
    """It asks for the state then; a keeper that is a moment behind, or busy, is asked for the average again."""
    swarm = behind(Lack.GONE)
    assert Swarm._follow(swarm, lambda: None) is None
    assert swarm._unfollowed == 4
    swarm = behind(*[Lack.NOT_YET, Lack.BUSY] * 20, *[Lack.SILENT] * MOST_SILENT_LOOKS)
    for _ in range(40 + MOST_SILENT_LOOKS):
        assert swarm._unfollowed == -1
        assert Swarm._follow(swarm, lambda: None) is None
    assert swarm._unfollowed == 4


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
    swarm = SimpleNamespace(_overlapping=overlapping, _optimizer=SimpleNamespace(tracker=tracker), step=4)
    assert Swarm.is_behind.fget(swarm) is is_behind  # type: ignore[attr-defined]
