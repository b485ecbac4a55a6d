"""Relays for new peers: volunteers that relay traffic for unreachable peers.

New peers connect to relay addresses. An address is therefore accepted only if its host is the one
from which the volunteer is connected, and its peer ID is the one in the volunteer's token.

Replicas share the addresses in the database, so each replica can offer all relays. An address is
stored while its device is connected, and for five more minutes if the replica was killed. If a
device opens its next session on another replica, `ended_elsewhere` finds the old session.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from sqlalchemy import delete, or_, select

from coordinator.ledger.sessions import is_online
from coordinator.store.engine import Database
from coordinator.store.models import DeviceSession
from coordinator.store.service_models import RelayOffer
from coordinator.throttling.rate_limits import Address
from peer.network.endpoints import is_peer_address, read_endpoint
from peer.protocol import MAX_RELAYS

FORGOTTEN_S = 300.0  # seconds without a message after which a session is considered lost
_AT_ONCE = 500  # maximum number of query parameters
MAX_CLAIMED = 8


def relay_of(claimed: Sequence[str], peer_id: str, caller: Address) -> str:
    """Return the first claimed address acceptable as this peer's TCP relay, or "" if there is none."""
    return next((maddr for maddr in claimed[:MAX_CLAIMED] if _counts(maddr, peer_id, caller)), "")


def some_of(relays: Iterable[str], peer_id: str, rng: random.Random) -> tuple[str, ...]:
    """Select random relays, to spread the load, excluding the peer `peer_id` itself."""
    others = sorted(relay for relay in relays if relay and not relay.endswith(f"/{peer_id}"))
    return tuple(rng.sample(others, min(MAX_RELAYS, len(others))))


def offer_relay(database: Database, session_id: str, address: str) -> None:
    """Store the relay address of a session's device; "" withdraws the offer."""
    with database.begin() as session:
        session.execute(delete(RelayOffer).where(RelayOffer.session_id == session_id))
        if address:
            session.add(RelayOffer(session_id=session_id, address=address))


def relays(database: Database, now: float) -> list[str]:
    """Return the relay addresses of all online devices."""
    offered = (
        select(RelayOffer.address).join(DeviceSession, DeviceSession.id == RelayOffer.session_id).where(is_online(now))
    )
    with database() as session:
        return list(session.scalars(offered.order_by(RelayOffer.session_id)))


def forget_relays_of_the_gone(database: Database, now: float) -> None:
    """Delete relay offers of ended or lost sessions, which a killed replica leaves behind."""
    offering = select(DeviceSession.id).join(RelayOffer, RelayOffer.session_id == DeviceSession.id)
    gone = offering.where(or_(DeviceSession.ended_at.is_not(None), DeviceSession.last_seen_at <= now - FORGOTTEN_S))
    with database.begin() as session:
        session.execute(delete(RelayOffer).where(RelayOffer.session_id.in_(gone)))


def ended_elsewhere(database: Database, session_ids: Sequence[str]) -> set[str]:
    """Return the sessions that ended because the device opened another session on any replica."""
    ended: set[str] = set()
    with database() as session:
        for start in range(0, len(session_ids), _AT_ONCE):
            some = session_ids[start : start + _AT_ONCE]
            over = select(DeviceSession.id).where(DeviceSession.id.in_(some), DeviceSession.ended_at.is_not(None))
            ended.update(session.scalars(over))
    return ended


def _counts(maddr: str, peer_id: str, caller: Address) -> bool:
    endpoint = read_endpoint(maddr)
    named = is_peer_address(maddr) and maddr.endswith(f"/p2p/{peer_id}")
    return named and endpoint is not None and endpoint.transport == "tcp" and endpoint.host == str(caller)
