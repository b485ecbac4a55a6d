"""Nonces: fresh, used once, short-lived, bounded."""

from __future__ import annotations

import pytest

from auth.errors import RequestError
from coordinator.nonces import NonceStore
from peer.protocol import NONCE_LIFETIME_S
from tests.clocks import Clock


def test_a_nonce_is_taken_back_once() -> None:
    """The second answer to a challenge is refused."""
    store = NonceStore(Clock())
    nonce = store.issue()
    store.redeem(nonce)
    with pytest.raises(RequestError):
        store.redeem(nonce)


def test_a_nonce_that_was_never_issued_is_refused() -> None:
    """Nobody brings his own."""
    with pytest.raises(RequestError):
        NonceStore(Clock()).redeem(b"\0" * 32)


def test_a_nonce_expires() -> None:
    """It is good until its lifetime is over, and not at that moment."""
    clock = Clock()
    store = NonceStore(clock)
    in_time, too_late = store.issue(), store.issue()
    clock.now += NONCE_LIFETIME_S - 0.1
    store.redeem(in_time)
    clock.now += 0.1
    with pytest.raises(RequestError):
        store.redeem(too_late)


def test_a_flood_of_challenges_fills_no_memory() -> None:
    """Beyond the capacity the oldest go; what is expired goes at the next challenge."""
    clock = Clock()
    store = NonceStore(clock, capacity=3)
    nonces = [store.issue() for _ in range(5)]
    assert len(store) == 3
    with pytest.raises(RequestError):
        store.redeem(nonces[1])
    store.redeem(nonces[2])
    clock.now += NONCE_LIFETIME_S
    store.issue()
    assert len(store) == 1
