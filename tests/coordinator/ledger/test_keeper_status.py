"""The keeper's view of the swarm is one row: its last word."""

from __future__ import annotations

from coordinator.ledger.keeper_status import read_swarm_status, tell_keeper_addresses, write_swarm_status
from coordinator.store.engine import Database

NOW = 1_800_000_000.0


def write_status(database: Database, step: int, now: float = NOW) -> None:
    write_swarm_status(
        database,
        step=step,
        samples_accumulated=30,
        target_batch_size=100,
        peers=3,
        samples_per_second=9.5,
        eta_s=None,
        addresses=["/ip4/192.0.2.7/tcp/31337/p2p/QmKeeper"],
        now=now,
    )


def test_swarm_status_is_the_keepers_last_word(database: Database) -> None:
    """There is none at first, then always the newest."""
    assert read_swarm_status(database) is None
    write_status(database, step=1)
    write_status(database, step=2, now=NOW + 1)
    status = read_swarm_status(database)
    assert (status.step, status.era, status.updated_at) == (2, 0, NOW + 1)
    assert (status.samples_accumulated, status.peers, status.eta_s) == (30, 3, None)
    assert status.addresses == ("/ip4/192.0.2.7/tcp/31337/p2p/QmKeeper",)


def test_a_keeper_that_comes_back_says_where_it_is(database: Database) -> None:
    """And knows whether that is news; what it saw of the swarm before, and when, stays as it was."""
    old, new = "/ip4/192.0.2.7/tcp/31337/p2p/QmKeeper", "/ip4/192.0.2.8/tcp/31337/p2p/QmKeeper"
    assert not tell_keeper_addresses(database, [old])  # nobody ever saw another
    assert read_swarm_status(database) is None
    write_status(database, step=2)
    assert not tell_keeper_addresses(database, [old])
    assert tell_keeper_addresses(database, [new, old])
    assert not tell_keeper_addresses(database, [old, new])
    status = read_swarm_status(database)
    assert (status.addresses, status.step, status.updated_at) == ((old, new), 2, NOW)
