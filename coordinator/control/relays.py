"""Relays: volunteers that relay for unreachable peers, and the relay addresses sent to joiners.

A joiner's machine connects to these addresses. So an address counts only if the coordinator itself
sees the volunteer there, and if it names the same peer as the volunteer's token.

All replicas of the service share the addresses in the database, so that a joiner learns of every
relay, whichever replica it joins. An address is kept while its device is connected, and five
minutes longer if the device's replica was killed. A device may also open its next session at
another replica; `ended_elsewhere` finds the sessions that have ended for that reason.
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

FORGOTTEN_S = 300.0  # a device that is silent for so long has lost its session, or its replica was killed
_AT_ONCE = 500  # parameters of a query
MAX_CLAIMED = 8


def relay_of(claimed: Sequence[str], peer_id: str, caller: Address) -> str:
    """Return the first claimed address that counts as this peer's TCP relay; "" if none does."""
    return next((maddr for maddr in claimed[:MAX_CLAIMED] if _counts(maddr, peer_id, caller)), "")


def some_of(relays: Iterable[str], peer_id: str, rng: random.Random) -> tuple[str, ...]:
    """Choose a few relays at random, so that they share the work; never the joiner itself."""
    others = sorted(relay for relay in relays if relay and not relay.endswith(f"/{peer_id}"))
    return tuple(rng.sample(others, min(MAX_RELAYS, len(others))))


def offer_relay(database: Database, session_id: str, address: str) -> None:
    """Store the address at which a session's device relays; "": it relays no longer."""
    with database.begin() as session:
        session.execute(delete(RelayOffer).where(RelayOffer.session_id == session_id))
        if address:
            session.add(RelayOffer(session_id=session_id, address=address))


def relays(database: Database, now: float) -> list[str]:
    """Return the relay addresses of the volunteers who are connected now."""
    offered = (
        select(RelayOffer.address).join(DeviceSession, DeviceSession.id == RelayOffer.session_id).where(is_online(now))
    )
    with database() as session:
        return list(session.scalars(offered.order_by(RelayOffer.session_id)))


def forget_relays_of_the_gone(database: Database, now: float) -> None:
    """Delete relay offers that a killed replica has left: of ended or long silent sessions."""
    offering = select(DeviceSession.id).join(RelayOffer, RelayOffer.session_id == DeviceSession.id)
    gone = offering.where(or_(DeviceSession.ended_at.is_not(None), DeviceSession.last_seen_at <= now - FORGOTTEN_S))
    with database.begin() as session:
        session.execute(delete(RelayOffer).where(RelayOffer.session_id.in_(gone)))


def ended_elsewhere(database: Database, session_ids: Sequence[str]) -> set[str]:
    """Return the sessions that ended because their device opened another one, at any replica."""
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
