"""What a peer signs of a round, what it makes of steps that it missed, and how long it waits between downloads."""

from __future__ import annotations

import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

from auth.receipts import open_receipt, read_receipt
from peer.swarm.swarm import MOST_PAUSE_S, MOST_VAIN_LOOKS, DownloadPause, Swarm, Witness
from tests.support.clocks import Clock
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


class Waits(threading.Event):
    """Waits that pass at once, as long as they are asked for."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        self.clock.now += timeout or 0.0
        return False


def test_downloads_that_bring_no_step_are_further_and_further_apart() -> None:
    """Each takes the donors' lines; a step that was taken with the others ends that."""
    clock = Clock()
    pause, waits = DownloadPause(clock), list[float]()
    for _ in range(8):
        began = clock.now
        pause.wait(Waits(clock))
        waits.append(clock.now - began)
        pause.downloaded(20.0)
    assert waits == [0.0, 20.0, 40.0, 80.0, 160.0, 320.0, MOST_PAUSE_S, MOST_PAUSE_S]
    pause.end()
    began = clock.now
    pause.wait(Waits(clock))
    assert clock.now == began


def behind(*answers: list[Any] | None) -> Any:
    """A swarm whose peer is a step behind, and whose keeper answers so, one time after another."""
    followed: list[Any] = []
    left = list(answers)
    optimizer = SimpleNamespace(
        interrupted=Waits(Clock()),
        state_averager=SimpleNamespace(missed_averages=lambda: left.pop(0)),
        keeps_late_samples=False,
        drop_gradients=lambda: 12,
        follow=followed.append,
    )
    swarm = SimpleNamespace(
        _optimizer=optimizer, _unfollowed=-1, _vain_looks=0, _why_lost=lambda: "late", step=4, followed=followed
    )
    swarm._look_in_vain = partial(Swarm._look_in_vain, swarm)
    return swarm


def test_what_a_peer_had_accumulated_is_lost_only_when_it_follows() -> None:
    """It says how many steps it took, and why the samples are in none."""
    swarm = behind([], ["average", "average"])
    assert Swarm._follow(swarm, lambda: None) is None
    outcome = Swarm._follow(swarm, lambda: None)
    assert outcome is not None
    assert (outcome.followed_steps, outcome.averaged, outcome.samples) == (2, False, 0)
    assert (outcome.lost_samples, outcome.lost_reason) == (12, "late")
    assert swarm.followed == [["average", "average"]]


def test_late_samples_are_collected_and_kept_where_the_run_allows_it() -> None:
    """They count for the next step."""
    swarm, collected = behind(["average"]), list[str]()
    swarm._optimizer.keeps_late_samples = True
    outcome = Swarm._follow(swarm, lambda: collected.append("collected"))
    assert outcome is not None
    assert (outcome.lost_samples, outcome.lost_reason, collected) == (0, "", ["collected"])


def test_a_peer_follows_no_more_where_the_averages_are_gone_or_do_not_come() -> None:
    """It takes the state then; a keeper that is a moment behind is asked again."""
    swarm = behind(None)
    assert Swarm._follow(swarm, lambda: None) is None
    assert swarm._unfollowed == 4
    swarm = behind(*[[]] * MOST_VAIN_LOOKS)
    for _ in range(MOST_VAIN_LOOKS):
        assert swarm._unfollowed == -1
        assert Swarm._follow(swarm, lambda: None) is None
    assert swarm._unfollowed == 4
