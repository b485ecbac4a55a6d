"""Volunteers that relay for those who cannot be reached: whose word is taken for it, and which a joiner hears of.

A joiner's machine opens connections to what it hears of. So an address counts only if the coordinator sees the
volunteer there itself, and it names no other peer than the token does.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from coordinator.callers import Address
from peer.protocol import MAX_RELAYS
from peer.ways import is_peer_address, read_endpoint

MAX_CLAIMED = 8


def relay_of(claimed: Sequence[str], peer_id: str, caller: Address) -> str:
    """The TCP address at which this volunteer relays, of those that it claims; "" if none counts."""
    return next((maddr for maddr in claimed[:MAX_CLAIMED] if _counts(maddr, peer_id, caller)), "")


def some_of(relays: Iterable[str], peer_id: str, rng: random.Random) -> tuple[str, ...]:
    """A few at random, so that they share the work; never the joiner itself."""
    others = sorted(relay for relay in relays if relay and not relay.endswith(f"/{peer_id}"))
    return tuple(rng.sample(others, min(MAX_RELAYS, len(others))))


def _counts(maddr: str, peer_id: str, caller: Address) -> bool:
    endpoint = read_endpoint(maddr)
    named = is_peer_address(maddr) and maddr.endswith(f"/p2p/{peer_id}")
    return named and endpoint is not None and endpoint.transport == "tcp" and endpoint.host == str(caller)
