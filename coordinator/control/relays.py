"""Relays: volunteers that relay for peers which cannot be reached, and the relay addresses that joiners are told.

A joiner's machine opens connections to these addresses. So an address counts only if the coordinator itself sees the
volunteer there, and if it names the same peer as the volunteer's token.

All replicas of the service share the addresses in the database, because a joiner must learn of every relay, wherever it
is connected. An address is kept while its device is here, and five minutes longer if the device's replica was killed. A
device may also open its next session at another replica; `ended_elsewhere` finds the sessions that are over for that
reason.
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
_AT_ONCE = 500  # of a query's parameters
MAX_CLAIMED = 8


def relay_of(claimed: Sequence[str], peer_id: str, caller: Address) -> str:
    """The TCP address at which this volunteer relays, of those that it claims; "" if none counts."""
    return next((maddr for maddr in claimed[:MAX_CLAIMED] if _counts(maddr, peer_id, caller)), "")


def some_of(relays: Iterable[str], peer_id: str, rng: random.Random) -> tuple[str, ...]:
    """A few at random, so that they share the work; never the joiner itself."""
    others = sorted(relay for relay in relays if relay and not relay.endswith(f"/{peer_id}"))
    return tuple(rng.sample(others, min(MAX_RELAYS, len(others))))


def offer_relay(database: Database, session_id: str, address: str) -> None:
    """The device of this session relays at `address`; "": no longer."""
    with database.begin() as session:
        session.execute(delete(RelayOffer).where(RelayOffer.session_id == session_id))
        if address:
            session.add(RelayOffer(session_id=session_id, address=address))


def relays(database: Database, now: float) -> list[str]:
    """Where volunteers who are here now relay for others."""
    offered = (
        select(RelayOffer.address).join(DeviceSession, DeviceSession.id == RelayOffer.session_id).where(is_online(now))
    )
    with database() as session:
        return list(session.scalars(offered.order_by(RelayOffer.session_id)))


def forget_relays_of_the_gone(database: Database, now: float) -> None:
    """Remove what a replica that was killed has left: offers of devices that have been silent for long."""
    offering = select(DeviceSession.id).join(RelayOffer, RelayOffer.session_id == DeviceSession.id)
    gone = offering.where(or_(DeviceSession.ended_at.is_not(None), DeviceSession.last_seen_at <= now - FORGOTTEN_S))
    with database.begin() as session:
        session.execute(delete(RelayOffer).where(RelayOffer.session_id.in_(gone)))


def ended_elsewhere(database: Database, session_ids: Sequence[str]) -> set[str]:
    """The sessions among these that are over, because their device opened another one, here or at another replica."""
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
