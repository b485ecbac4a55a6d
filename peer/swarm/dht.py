"""A peer's node of the swarm's DHT: started for members only, at the peer's place in the network, and watched.

Three coroutines run in the DHT's own process. `announce` tells the members where others reach this peer, `reach`
connects to another one there, and `greet` tells a DHT that has lost the keeper where it is, so that the two become one.

The traffic of a node must fit an ordinary home line. hivemind's nodes ask twenty others at each look and each report,
hold what they have found in a cache that they renew, and push it to further nodes. A node here asks a few of those that
hold the entries, for the news since its last look (`auth.swarm.protocol`).
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing as mp
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import psutil
from hivemind.averaging import DecentralizedAverager
from hivemind.dht import DHT
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID, DHTKey
from hivemind.p2p import P2P, PeerID
from hivemind.utils.multiaddr import Multiaddr

from auth.clock import swarm_time
from auth.credentials import Credentials
from auth.errors import SwarmError
from auth.swarm.addresses import own_addresses
from auth.swarm.authorizer import (
    Clock,
    MemberTokens,
    PeerRecordValidator,
    RecordKey,
    SwarmAuthorizer,
    addresses_subkey,
    peers_key,
)
from auth.swarm.hivemind_patches import DAEMON, patch_hivemind
from auth.swarm.protocol import node_id_of
from peer.averaging.rounds import freeze_imported
from peer.network.endpoints import one_for_each_peer
from peer.network.placement import Placement
from peer.runtime.processes import name_fork

logger = logging.getLogger(__name__)
DAEMON_START_TIMEOUT_S = 60.0
RELAY_TIMEOUT_S, RELAY_POLL_S = 8.0, 0.2
NODE_LOOK_S = 1.0
ADDRESSES_S, ADDRESSES_RENEWED_S = 600.0, 200.0  # how long others hold this peer's, and when it tells them again
ADDRESSES_RETRIED_S = 30.0  # after an error, of which each is logged
SILENT_LOOKS = 60  # without an answer of the daemon, which takes milliseconds; on a machine far too busy, seconds
REPLICAS = 4  # nodes that hold an entry
THRIFT = {  # hivemind's options of a node
    "bucket_size": 8,
    "num_replicas": REPLICAS,
    "cache_locally": False,
    "cache_nearest": 0,
    "cache_on_store": False,
    "cache_refresh_before_expiry": 0.0,
}
DAEMON_MEMORY = "256MiB"  # of the p2p daemon, which Go's collector keeps to; it takes about 90
REACHABILITY = {"direct": "public", "relayed": "relayed", "client": "private"}  # "relayed" is our own patch's


class Node(DHT):
    """hivemind's DHT, in a process of its own."""

    _held: ClassVar[set[asyncio.Task[Any] | None]] = set()  # in that process

    def __init__(self, *arguments: Any, **options: Any) -> None:
        patch_hivemind()  # the node's process and the averagers' are forked from this one
        super().__init__(*arguments, **(THRIFT | options))

    async def replicate_p2p(self) -> P2P:
        """Return this process's client of the p2p daemon, which finds members as the node does."""
        p2p: Any = await super().replicate_p2p()
        p2p.reach = self._reach
        return p2p

    async def _reach(self, peer_id: PeerID) -> bool:
        return bool(await self.run_coroutine(partial(reach, peer_id=peer_id), return_future=True))

    async def keep(self, key: DHTKey, subkey: bytes, value: Any, expiration_time: float) -> bool:
        """Store an entry, in the node's own process; return whether any node has taken it."""
        await self._look(key)
        stored = await self._node.store(key, value, expiration_time, subkey=subkey, beam_size=REPLICAS)
        return bool(stored)

    async def _get(self, key: DHTKey, latest: bool, future: Any, **options: Any) -> None:
        """Bring the news of a key before it is read, and then read what this node holds."""
        if latest:
            await self._look(key)
        await super()._get(key, latest=False, future=future, beam_size=REPLICAS, **options)

    async def _store(self, *arguments: Any, **options: Any) -> None:
        """Look only for as many nodes as are to store it, with the news known, or all of them would send the same."""
        await self._look(options["key"])
        await super()._store(*arguments, beam_size=REPLICAS, **options)

    async def _look(self, key: DHTKey) -> None:
        """Look for news; whatever goes wrong with that, what this node holds can be read."""
        try:
            await look(self._node, key)
        except Exception:
            logger.warning("a look at the DHT failed", exc_info=True)

    async def _run_coroutine(self, coro: Any, future: Any) -> None:
        """Hold the task: neither asyncio nor hivemind do, so one that only waits for a stream would go as garbage."""
        task = asyncio.current_task()
        self._held.add(task)
        try:
            await super()._run_coroutine(coro, future)
        finally:
            self._held.discard(task)

    def run(self) -> None:
        """Run the forked process, with all imported objects left out of garbage collection.

        The process remembers requests for minutes, so in time Python would search all objects that it was forked with
        for circles, and so copy some fifty megabytes.
        """
        name_fork("DHT")
        freeze_imported()
        super().run()


def join_dht(
    run: str,
    credentials: Credentials,
    initial_peers: Sequence[str],
    place: Placement,
    relays: Sequence[str] = (),
    clock: Clock = swarm_time,
) -> tuple[DHT, bool]:
    """Start a node at this place; return it and whether it is a client. Raises `SwarmError` if it cannot join.

    One relay that is gone would hold up all others for minutes: then the node starts again with the keeper alone.
    """
    dht = start_dht(run, credentials, initial_peers, place, clock, relays)
    if place.reach != "relayed":
        return dht, place.reach == "client"
    if waits_at_relay(dht):
        return dht, False
    if relays:
        logger.info("some of %d volunteers that relay do not answer: trying with the keeper alone", len(relays))
        dht.shutdown()
        dht = start_dht(run, credentials, initial_peers, place, clock)
        if waits_at_relay(dht):
            return dht, False
    logger.warning("no relay lets others reach this peer: it takes part as a client")
    return dht, True


def start_dht(
    run: str,
    credentials: Credentials,
    initial_peers: Sequence[str],
    place: Placement,
    clock: Clock = swarm_time,
    relays: Sequence[str] = (),
) -> DHT:
    """Start the p2p daemon and the DHT's process, which this forks. Raises `SwarmError` if the swarm cannot be joined.

    `relays`: addresses of volunteers, beside the keeper, through which others reach a relayed peer.
    """
    os.environ.setdefault("GOMEMLIMIT", DAEMON_MEMORY)
    mp.set_start_method("fork", force=True)  # a spawned process spawns by default; hivemind's must be forked
    key, tokens = RecordKey(credentials.device_key.private_der), MemberTokens(credentials, clock)
    try:
        node = Node(
            initial_peers=list(initial_peers),
            node_id=node_id_of(PeerID.from_base58(credentials.device_key.peer_id)),
            start=False,
            host_maddrs=list(place.host_maddrs),
            announce_maddrs=None if place.announce_maddrs is None else list(place.announce_maddrs),
            identity_path=str(Path(credentials.directory) / "device.key"),
            check_if_identity_free=False,
            client_mode=place.reach != "direct",  # only who can be reached directly holds the DHT's records
            use_auto_relay=place.reach == "relayed",
            trusted_relays=list(one_for_each_peer([*initial_peers, *relays])) if place.reach == "relayed" else None,
            force_reachability=REACHABILITY[place.reach],  # what libp2p would find out in minutes
            startup_timeout=DAEMON_START_TIMEOUT_S,
            use_ipfs=False,
            dht_mode="client" if place.reach == "relayed" else "off",  # libp2p finds relays by a DHT only
            nat_port_map=False,
            authorizer=SwarmAuthorizer(tokens, run),
            record_validators=[RSASignatureValidator(key), PeerRecordValidator(credentials, tokens, run)],
        )
        node.run_in_background(await_ready=False)
        await_outcome(node._ready, partial(_why_ended, node))
    except Exception as error:  # hivemind's, its daemon's and the system's own
        raise SwarmError(
            f"The swarm cannot be joined ({error}): check that this machine may open connections to "
            f"{', '.join(initial_peers) or 'others'} and that the run is being served."
        ) from error
    if place.reach != "client":
        node.run_coroutine(partial(announce, run=run, relayed=place.reach == "relayed"), return_future=True)
    return node


async def announce(dht: Node, node: DHTNode, run: str, *, relayed: bool) -> None:
    """Tell the members where others reach this peer, whenever that changes and before they forget it."""
    key, subkey = peers_key(run), addresses_subkey(node.peer_id.to_base58())
    told: list[bytes] = []
    renew_at = 0.0
    while node.is_alive:
        try:
            addresses, now = await own_addresses(node.p2p, relayed=relayed), swarm_time()
            is_news = addresses != told or now >= renew_at
            if addresses and is_news and await dht.keep(key, subkey, addresses, now + ADDRESSES_S):
                told, renew_at = addresses, now + ADDRESSES_RENEWED_S
        except Exception as error:  # noqa: BLE001 - a fault boundary: hivemind's, the daemon's and the system's own
            if node.is_alive:
                logger.warning("the members could not be told where this peer is: %r", error)
                await asyncio.sleep(ADDRESSES_RETRIED_S)
        await asyncio.sleep(NODE_LOOK_S)


async def reach(_dht: DHT, node: DHTNode, peer_id: PeerID) -> bool:
    """Have the p2p daemon connect to a member where it says that it is; return whether it could."""
    protocol: Any = node.protocol
    return bool(await protocol.reach(peer_id))


async def look(node: DHTNode, key: DHTKey) -> None:
    """Bring to this node the news of a key: what any other node has read, and the rest from one that holds the entries.

    Both are drawn anew each time. Without the first the few that hold the entries would send everything to everybody.
    A node whose calls failed is in no routing table any more. Two that have lost each other so, and the keeper, would
    never meet again: so one that knows nobody asks those who have told where they are.
    """
    key_id = DHTID.generate(source=key)
    table: Any = node.protocol.routing_table
    holders = [peer_id for _, peer_id in table.get_nearest_neighbors(key_id, REPLICAS, exclude=node.node_id)]
    others = [peer_id for peer_id in table.peer_id_to_uid if peer_id not in holders]
    if not holders:
        holders = [peer_id for peer_id in node.protocol.told_addresses(key_id) if peer_id != node.peer_id]
    random.shuffle(holders)
    if others:
        await node._call_find_with_blacklist(random.choice(others), [key_id])
    for holder in holders[:REPLICAS]:
        if await node._call_find_with_blacklist(holder, [key_id]) is not None:
            break


def waits_at_relay(dht: DHT, timeout_s: float = RELAY_TIMEOUT_S) -> bool:
    """Wait until a relay lets others reach this peer through it; return whether one does within `timeout_s`.

    Raises `SwarmError` if the DHT's process ends meanwhile.
    """
    deadline = time.monotonic() + timeout_s

    def addresses() -> list[Multiaddr]:
        asked = dht.run_coroutine(partial(DHT._get_visible_maddrs, latest=True), return_future=True)
        return list(await_outcome(asked, partial(_why_ended, dht)))

    while not any("p2p-circuit" in str(address) for address in addresses()):
        if time.monotonic() > deadline:
            return False
        time.sleep(RELAY_POLL_S)
    logger.info("a relay lets others reach this peer")
    return True


class NodeWatch:
    """A watch over a peer's node: once a second, whether its processes live and its p2p daemon answers.

    Without one of them the peer would stay at its step for good and not know it, and hivemind's calls may never return.
    So `on_lost`, called once by a thread of its own, is to end the process at once. That thread calls nothing of
    hivemind's: another listens to the daemon.
    """

    def __init__(self, dht: DHT, on_lost: Callable[[SwarmError], object], clock: Clock) -> None:
        self._dht, self._on_lost, self._clock = dht, on_lost, clock
        self._processes: Mapping[str, psutil.Process | None] = _processes_of(dht)
        self.lost: SwarmError | None = None
        self.heard_at = clock()  # when the daemon last answered
        self._answers, self._answers_seen = 0, 0
        self._silent_looks = 0  # not seconds: a machine that slept has not listened either
        self._stop = threading.Event()
        self._watching = threading.Thread(target=self._watch, name="node watch", daemon=True)
        self._listening = threading.Thread(target=self._listen, name="daemon watch", daemon=True)
        self._watching.start()
        self._listening.start()

    def start(self, averager: DecentralizedAverager, name: str) -> None:
        """Start an averager's process, and watch it, too. Raises `SwarmError` if the node is lost meanwhile."""
        averager.run_in_background(await_ready=False)
        self._processes = {**self._processes, name: _process(averager.pid)}
        await_outcome(averager._ready, lambda: self.lost)

    def stop(self) -> None:
        """Look no more: the node is about to be shut down."""
        self._stop.set()
        self._watching.join()
        self._listening.join(NODE_LOOK_S)  # a daemon that is silent may stay so

    def look(self) -> SwarmError | None:
        """Return an error if a process of the node has died or its daemon is silent; None if the node lives."""
        for name, process in self._processes.items():
            if process is None or _has_died(process):
                return SwarmError(
                    f"The {name} of this peer's swarm node has died: without it no other peer is reached."
                )
        self._silent_looks += 1
        if self._answers != self._answers_seen:
            self._answers_seen, self._silent_looks = self._answers, 0
        if self._silent_looks > SILENT_LOOKS:
            return SwarmError(f"The p2p daemon of this peer's swarm node has not answered for {SILENT_LOOKS} s.")
        return None

    def _watch(self) -> None:
        while not self._stop.wait(NODE_LOOK_S):
            self.lost = self.look()
            if self.lost is not None:
                self._on_lost(self.lost)
                return

    def _listen(self) -> None:
        while not self._stop.wait(NODE_LOOK_S):
            with suppress(Exception):  # hivemind's, the daemon's and the system's own: no answer is no sign of life
                self._dht.run_coroutine(call_daemon, return_future=True).result()
                self.heard_at, self._answers = self._clock(), self._answers + 1


def await_outcome(future: Any, why_lost: Callable[[], SwarmError | None]) -> Any:
    """Wait for what one of hivemind's processes is to bring. Raises what went wrong in it, or `why_lost`.

    hivemind would wait for ever for a process that was killed, and for one that waits for another such.
    """
    while not future.done():
        lost = why_lost()
        with suppress(futures.TimeoutError):
            future.result(NODE_LOOK_S)
        if lost is not None and not future.done():  # its last words may have been on their way
            raise lost
    return future.result()


def _processes_of(dht: DHT) -> dict[str, psutil.Process | None]:
    """Return the processes of a node by their names; None for one that has died by now."""
    process, daemon = _process(dht.pid), None
    with suppress(psutil.NoSuchProcess):
        for child in process.children() if process else ():
            with suppress(psutil.NoSuchProcess):
                daemon = child if child.name() == DAEMON else daemon
    return {"DHT process": process, "p2p daemon": daemon}


def _process(pid: int | None) -> psutil.Process | None:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid)
    return None


def _why_ended(dht: DHT) -> SwarmError | None:
    return None if dht.is_alive() else SwarmError("The DHT process of this peer's swarm node was killed as it started.")


def _has_died(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # between the two
        return True


async def call_daemon(_dht: DHT, node: DHTNode) -> None:
    """Ask the node's p2p daemon for its peers, as a sign of life."""
    await node.protocol.p2p.list_peers()


def peer_ids_of(addresses: Iterable[str]) -> tuple[PeerID, ...]:
    """Return the peer IDs in these addresses, each once."""
    return tuple(PeerID.from_base58(name) for name in dict.fromkeys(each.rpartition("/p2p/")[2] for each in addresses))


async def greet(_dht: DHT, node: DHTNode, peer_ids: Sequence[PeerID], addresses: Sequence[str]) -> None:
    """Ping these peers, which makes them add this one to their routing tables, and this one them.

    The p2p daemon knows where they were when this peer joined, and hears of `addresses` here.
    """
    await asyncio.gather(*(_connect(node, address) for address in addresses))
    await asyncio.gather(*(node.protocol.call_ping(peer_id) for peer_id in peer_ids))


async def _connect(node: DHTNode, address: str) -> None:
    where, _, peer_id = address.rpartition("/p2p/")
    try:
        await node.p2p._client.connect(PeerID.from_base58(peer_id), [Multiaddr(where)])
    except Exception as error:  # noqa: BLE001 - the daemon's own errors: it is tried again in some seconds
        logger.info("the keeper does not answer at %s: %r", where, error)
