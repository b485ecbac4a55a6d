"""Nonces: fresh, used once, short-lived, and known again by every replica."""

from __future__ import annotations

from pathlib import Path

import pytest

from auth.errors import RequestError, StorageError
from coordinator.control.nonces import NonceStore, nonce_key
from coordinator.store.engine import Database
from coordinator.store.service_models import SpentNonce
from peer.protocol import NONCE_BYTES, NONCE_LIFETIME_S
from tests.support.clocks import Clock

KEY = b"k" * 32


@pytest.fixture
def store(database: Database, clock: Clock) -> NonceStore:
    return NonceStore(KEY, database, clock)


def test_a_nonce_is_taken_back_once(store: NonceStore, database: Database, clock: Clock) -> None:
    """The second answer to a challenge is refused, by the replica that took the first and by any other."""
    nonce = store.issue()
    assert len(nonce) == NONCE_BYTES
    another = NonceStore(KEY, database, clock)
    another.redeem(nonce)
    for replica in (store, another):
        with pytest.raises(RequestError):
            replica.redeem(nonce)


def test_checking_does_not_spend(store: NonceStore) -> None:
    """Only who proves a key uses a nonce up."""
    nonce = store.issue()
    for _ in range(2):
        store.check(nonce)
    store.redeem(nonce)


@pytest.mark.parametrize("nonce", [b"", b"\0" * 32, b"\xff" * 32, b"\0" * 31, b"\xff" * 1000])
def test_a_nonce_that_was_never_issued_is_refused(store: NonceStore, nonce: bytes) -> None:
    """Nobody brings his own."""
    with pytest.raises(RequestError):
        store.redeem(nonce)


def test_a_changed_nonce_is_refused(store: NonceStore) -> None:
    """No byte of it can be another, such as those of its expiry."""
    nonce = store.issue()
    for place in range(NONCE_BYTES):
        changed = bytearray(nonce)
        changed[place] ^= 1
        with pytest.raises(RequestError):
            store.check(bytes(changed))


def test_another_runs_nonce_is_refused(store: NonceStore, database: Database, clock: Clock) -> None:
    """It has another key."""
    with pytest.raises(RequestError):
        store.redeem(NonceStore(b"other", database, clock).issue())


def test_a_nonce_expires(store: NonceStore, clock: Clock) -> None:
    """It is good until its lifetime is over, in whole seconds."""
    in_time, too_late = store.issue(), store.issue()
    clock.now += NONCE_LIFETIME_S - 1
    store.redeem(in_time)
    clock.now += 1
    with pytest.raises(RequestError):
        store.redeem(too_late)


def test_only_redeemed_nonces_are_kept_and_not_for_ever(store: NonceStore, database: Database, clock: Clock) -> None:
    """A flood of challenges fills neither memory nor table; what is expired goes when the next is redeemed."""
    nonces = [store.issue() for _ in range(100)]
    for nonce in nonces[:2]:
        store.redeem(nonce)
    with database() as session:
        assert session.query(SpentNonce).count() == 2
    clock.now += NONCE_LIFETIME_S
    store.redeem(store.issue())
    with database() as session:
        assert session.query(SpentNonce).count() == 1


def test_replicas_with_the_same_tls_key_have_the_same(tmp_path: Path) -> None:
    """And others have another; a key that is missing is named."""
    for name, content in (("a", b"one"), ("b", b"one"), ("c", b"two")):
        (tmp_path / name).write_bytes(content)
    assert nonce_key(tmp_path / "a") == nonce_key(tmp_path / "b") != nonce_key(tmp_path / "c")
    with pytest.raises(StorageError, match="none"):
        nonce_key(tmp_path / "none")
