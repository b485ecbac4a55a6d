"""A peer's node in the swarm's DHT: it joins, reads and stores the peers' entries, and tells where this peer is.

A node's traffic must fit a home connection. A node therefore requests only the changes since its
last read, from a few of the nodes that store the entries (`auth.swarm.protocol`), and searches for
these nodes once a minute.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import CompositeValidator, DHTRecord
from hivemind.p2p import P2P, PeerID
from hivemind.utils.multiaddr import Multiaddr
from hivemind.utils.timed_storage import ValueWithExpiration

from auth.clock import swarm_time
from auth.errors import SwarmError
from auth.swarm.addresses import own_addresses
from auth.swarm.authorizer import (
    MemberTokens,
    PeerRecordValidator,
    RecordKey,
    SwarmAuthorizer,
    addresses_subkey,
    peers_key,
)
from auth.swarm.directory import SwarmAccess
from auth.swarm.hivemind_patches import patch_hivemind
from auth.swarm.protocol import node_id_of
from peer.network.endpoints import one_for_each_peer
from peer.network.placement import Placement

logger = logging.getLogger(__name__)
DAEMON_START_TIMEOUT_S = 60.0
RELAY_TIMEOUT_S, RELAY_POLL_S = 8.0, 0.2
ADDRESSES_S, ADDRESSES_RENEWED_S = 600.0, 200.0  # lifetime and renewal interval of published addresses
ADDRESSES_LOOK_S = 5.0  # interval of looks for new addresses
ADDRESSES_RETRIED_S = 30.0  # delay before the next attempt after a logged error
REPLICAS = 4  # number of nodes that store each entry
SEARCHED_S = 60.0  # interval between searches for these nodes
THRIFT = {  # options of hivemind's DHT node to reduce traffic
    "bucket_size": 8,
    "num_replicas": REPLICAS,
    "cache_locally": False,
    "cache_nearest": 0,
    "cache_on_store": False,
    "cache_refresh_before_expiry": 0.0,
}
DAEMON_MEMORY = "256MiB"  # soft limit of the p2p daemon's garbage collector; the daemon uses about 90 MiB
REACHABILITY = {"direct": "public", "relayed": "relayed", "client": "private"}


class Board:
    """The entries that the swarm's peers store in its DHT, by subkey; all of them are under the run's one key."""

    def __init__(self, node: DHTNode, run: str, *, is_client: bool = False) -> None:
        """Use a node that has joined the DHT; `is_client`: whether other peers cannot connect to this peer."""
        self._node, self._key = node, peers_key(run)
        self._key_id = DHTID.generate(source=self._key)
        self.is_client = is_client
        self._holders: list[PeerID] = []  # nodes that store the entries, as the last search found them
        self._searched_at = -math.inf
        self._known: dict[Any, ValueWithExpiration[Any]] = {}  # the entries of the last read, decoded

    @property
    def p2p(self) -> P2P:
        """The client of this peer's p2p daemon."""
        return self._node.p2p

    async def entries(self) -> Mapping[Any, ValueWithExpiration[Any]]:
        """Fetch the changes from other nodes, and return all entries by subkey.

        If the changes cannot be fetched, the entries that this node holds are returned.
        """
        await self._fetch_changes()
        protocol, known = self._node.protocol, self._known
        held = protocol.storage.get(self._key_id)
        if held is None or not isinstance(held.value, DictionaryDHTValue):
            return {}
        self._known = {}
        for subkey, entry in held.value.items():
            decoded = known.get(subkey)
            if decoded is None or decoded.expiration_time != entry.expiration_time:  # a later version expires later
                named = self._key_id.to_bytes(), protocol.serializer.dumps(subkey)
                content = protocol.record_validator.strip_value(DHTRecord(*named, entry.value, entry.expiration_time))
                try:
                    decoded = ValueWithExpiration(protocol.serializer.loads(content), entry.expiration_time)
                except Exception as error:  # noqa: BLE001 - MessagePack's errors have no common base class
                    logger.info("an entry of the DHT cannot be read: %r", error)
                    continue
            self._known[subkey] = decoded
        return self._known

    async def _fetch_changes(self) -> None:
        """Fetch changes from one random reader and from one of the nodes that store the entries.

        Random readers reduce the load on the few storing nodes. A node whose calls fail is dropped
        from the routing tables, so two nodes could lose each other and the keeper permanently. A
        node with an empty table therefore contacts peers at their published addresses.
        """
        node, key_id = self._node, self._key_id
        table: Any = node.protocol.routing_table
        holders = [peer_id for _, peer_id in table.get_nearest_neighbors(key_id, REPLICAS, exclude=node.node_id)]
        others = [peer_id for peer_id in table.peer_id_to_uid if peer_id not in holders]
        if not holders:
            holders = [peer_id for peer_id in node.protocol.told_addresses(key_id) if peer_id != node.peer_id]
        random.shuffle(holders)
        try:
            if others:
                await node._call_find_with_blacklist(random.choice(others), [key_id])
            for holder in holders[:REPLICAS]:
                if await node._call_find_with_blacklist(holder, [key_id]) is not None:
                    break
        except Exception:
            logger.warning("no changes were fetched from the DHT", exc_info=True)

    async def put(self, subkey: bytes, value: Any, expiration_time: float) -> bool:
        """Store an entry at the nodes that hold the entries, or at the nearest known ones if none accepts it.

        Return whether a node has accepted it, or this node knows no other. Search for these nodes
        now and then: a search asks many nodes, and each answers with all entries that are new.
        """
        key_id, protocol = self._key_id, self._node.protocol
        if not self._holders or asyncio.get_running_loop().time() >= self._searched_at + SEARCHED_S:
            await self._search()
        dumps = protocol.serializer.dumps
        record = DHTRecord(key_id.to_bytes(), dumps(subkey), dumps(value), expiration_time)
        signed = protocol.record_validator.sign_value(record)
        protocol.storage.store_subkey(key_id, subkey, signed, expiration_time)
        near = protocol.routing_table.get_nearest_neighbors(key_id, REPLICAS, self._node.node_id)
        nearest = [peer for _, peer in near]
        for peers in self._holders, nearest:  # a liar may let a search find nodes that do not exist
            calls = [protocol.call_store(peer, [key_id], [signed], expiration_time, [subkey]) for peer in peers]
            answers = dict(zip(peers, await asyncio.gather(*calls), strict=True))
            self._holders = [peer for peer in self._holders if answers.get(peer, ()) is not None]
            if any(map(any, filter(None, answers.values()))):
                return True
        return not nearest

    async def _search(self) -> None:
        self._searched_at = asyncio.get_running_loop().time()
        await self._fetch_changes()  # otherwise, all nodes would answer with the same new entries
        try:
            found = await self._node.find_nearest_nodes([self._key_id], REPLICAS, REPLICAS, exclude_self=True)
            self._holders = list(found[self._key_id].values())
        except Exception:
            logger.warning("a search in the DHT failed", exc_info=True)

    async def announce(self, *, relayed: bool) -> None:
        """Publish this peer's addresses when they change and before they expire, until cancelled."""
        subkey = addresses_subkey(self._node.peer_id.to_base58())
        told: list[bytes] = []
        renew_at = 0.0
        while True:
            try:
                addresses, now = await own_addresses(self.p2p, relayed=relayed), swarm_time()
                is_news = addresses != told or now >= renew_at
                if addresses and is_news and await self.put(subkey, addresses, now + ADDRESSES_S):
                    told, renew_at = addresses, now + ADDRESSES_RENEWED_S
            except Exception as error:  # noqa: BLE001 - fault boundary: errors of hivemind or its daemon
                logger.warning("the members could not be told where this peer is: %r", error)
                await asyncio.sleep(ADDRESSES_RETRIED_S)
            await asyncio.sleep(ADDRESSES_LOOK_S)

    async def addresses(self) -> tuple[str, ...]:
        """Ask the p2p daemon for this peer's libp2p multiaddresses."""
        _, visible = await self.p2p._client.identify()
        return tuple(f"{address}/p2p/{self._node.peer_id.to_base58()}" for address in visible)

    async def greet(self, addresses: Iterable[str], peer_ids: Iterable[str]) -> None:
        """Ping these peers, so that this node and the peers add each other to their routing tables.

        The p2p daemon knows the peers' addresses at the time of joining; `addresses` are newer ones.
        """
        await asyncio.gather(*map(self._connect, addresses))
        await asyncio.gather(*(self._node.protocol.call_ping(PeerID.from_base58(peer_id)) for peer_id in peer_ids))

    async def _connect(self, address: str) -> None:
        where, _, peer_id = address.rpartition("/p2p/")
        try:
            await self.p2p._client.connect(PeerID.from_base58(peer_id), [Multiaddr(where)])
        except Exception as error:  # noqa: BLE001 - the daemon's own errors: retried in some seconds
            logger.info("the keeper does not answer at %s: %r", where, error)

    async def leave(self) -> None:
        """Shut down the node and its p2p daemon."""
        await self._node.shutdown()


async def join_dht(
    access: SwarmAccess, initial_peers: Sequence[str], place: Placement, relays: Sequence[str] = ()
) -> Board:
    """Start a p2p daemon and join the swarm's DHT. Raises `SwarmError` on failure.

    `relays`: addresses of volunteers that relay, in addition to the keeper. A single dead relay
    blocks all others for minutes, so the second attempt uses only the keeper.
    """
    patch_hivemind()
    node = await _start_node(access, initial_peers, place, relays)
    if place.reach != "relayed":
        return Board(node, access.run, is_client=place.reach == "client")
    is_reached = await _waits_at_relay(node)
    if relays and not is_reached:
        logger.info("some of %d volunteers that relay do not answer: trying with the keeper alone", len(relays))
        await node.shutdown()
        node = await _start_node(access, initial_peers, place)
        is_reached = await _waits_at_relay(node)
    if not is_reached:
        logger.warning("no relay lets others reach this peer: it takes part as a client")
    return Board(node, access.run, is_client=not is_reached)


async def _start_node(
    access: SwarmAccess, initial_peers: Sequence[str], place: Placement, relays: Sequence[str] = ()
) -> DHTNode:
    os.environ.setdefault("GOMEMLIMIT", DAEMON_MEMORY)
    credentials, run = access.credentials, access.run
    key, tokens = RecordKey(credentials.device_key.private_der), MemberTokens(credentials, access.clock)
    is_relayed = place.reach == "relayed"
    try:
        return await DHTNode.create(
            initial_peers=list(initial_peers),
            node_id=node_id_of(PeerID.from_base58(credentials.device_key.peer_id)),
            host_maddrs=list(place.host_maddrs),
            announce_maddrs=None if place.announce_maddrs is None else list(place.announce_maddrs),
            identity_path=str(Path(credentials.directory) / "device.key"),
            check_if_identity_free=False,
            client_mode=place.reach != "direct",  # only directly reachable nodes store the DHT's records
            use_auto_relay=is_relayed,
            trusted_relays=list(one_for_each_peer([*initial_peers, *relays])) if is_relayed else None,
            force_reachability=REACHABILITY[place.reach],  # libp2p would take minutes to detect the reachability
            startup_timeout=DAEMON_START_TIMEOUT_S,
            use_ipfs=False,
            dht_mode="client" if is_relayed else "off",  # libp2p finds relays only through its own DHT
            nat_port_map=False,
            authorizer=SwarmAuthorizer(tokens, run),
            record_validator=CompositeValidator(
                [RSASignatureValidator(key), PeerRecordValidator(credentials, tokens, run)]
            ),
            **THRIFT,
        )
    except Exception as error:  # errors of hivemind, its daemon or the operating system
        raise SwarmError(
            f"The swarm cannot be joined ({error}): check that this machine may open connections to "
            f"{', '.join(initial_peers) or 'others'} and that the run is being served."
        ) from error


async def _waits_at_relay(node: DHTNode, timeout_s: float = RELAY_TIMEOUT_S) -> bool:
    """Wait until a relay forwards connections to this peer; return False on timeout."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not any("p2p-circuit" in str(address) for address in await node.p2p.get_visible_maddrs(latest=True)):
        if loop.time() > deadline:
            return False
        await asyncio.sleep(RELAY_POLL_S)
    logger.info("a relay lets others reach this peer")
    return True
