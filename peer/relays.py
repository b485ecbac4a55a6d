"""Volunteers' relays beside the keeper's: which a peer offers itself, and which of those that it hears of it takes.

libp2p waits minutes for a relay that does not answer before it settles for the others. So each is dialled first.
"""

from __future__ import annotations

from collections.abc import Sequence

from peer.dialling import answering
from peer.guest.limits import Limits
from peer.place import Place
from peer.protocol import MAX_RELAYS
from peer.ways import is_peer_address


def offered_relays(place: Place, limits: Limits, peer_id: str) -> tuple[str, ...]:
    """Where this peer relays for others: nowhere, if it cannot be reached or its volunteer limits its traffic."""
    limited = (limits.upload_rate, limits.download_rate, limits.upload_bytes, limits.download_bytes)
    if place.reach != "direct" or any(limit is not None for limit in limited):
        return ()
    return tuple(f"{maddr}/p2p/{peer_id}" for maddr in place.announce_maddrs or ())


async def answering_relays(relays: Sequence[str]) -> tuple[str, ...]:
    """Of the relays that the coordinator names, those of the right form whose port accepts a connection now."""
    return await answering([relay for relay in relays[:MAX_RELAYS] if is_peer_address(relay)])
