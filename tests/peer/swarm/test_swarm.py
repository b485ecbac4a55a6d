"""What a peer signs of a round, and how long it waits between downloads."""

from __future__ import annotations

import threading

from auth.receipts import open_receipt, read_receipt
from peer.swarm.swarm import MOST_PAUSE_S, DownloadPause, Witness
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
