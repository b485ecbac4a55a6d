"""Volunteers' relays beside the keeper's: which a peer offers itself, and which of those that it hears of it takes.

libp2p waits minutes for a relay that does not answer before it settles for the others. So each is dialled first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from peer.guest.limits import Limits
from peer.place import Place
from peer.protocol import MAX_RELAYS
from peer.ways import is_peer_address, read_endpoint

CONNECT_TIMEOUT_S = 2.0


def offered_relays(place: Place, limits: Limits, peer_id: str) -> tuple[str, ...]:
    """Where this peer relays for others: nowhere, if it cannot be reached or its volunteer limits its traffic."""
    limited = (limits.upload_rate, limits.download_rate, limits.upload_bytes, limits.download_bytes)
    if place.reach != "direct" or any(limit is not None for limit in limited):
        return ()
    return tuple(f"{maddr}/p2p/{peer_id}" for maddr in place.announce_maddrs or ())


async def answering_relays(relays: Sequence[str]) -> tuple[str, ...]:
    """Of the relays that the coordinator names, those of the right form whose port accepts a connection now."""
    named = [relay for relay in relays[:MAX_RELAYS] if is_peer_address(relay)]
    answers = await asyncio.gather(*(_answers(relay) for relay in named))
    return tuple(relay for relay, answers_now in zip(named, answers, strict=True) if answers_now)


async def _answers(relay: str) -> bool:
    endpoint = read_endpoint(relay)
    if endpoint is None or endpoint.transport != "tcp":
        return False
    try:
        connecting = asyncio.open_connection(endpoint.host, endpoint.port)
        _, writer = await asyncio.wait_for(connecting, CONNECT_TIMEOUT_S)
    except (OSError, asyncio.TimeoutError):
        return False
    writer.close()
    return True
