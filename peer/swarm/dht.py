"""A peer's node in the swarm's DHT, open to members only, and a watchdog for its processes.

Three coroutines run in the DHT process. `announce` publishes this peer's addresses, `reach`
connects to a member at its published address, and `greet` reconnects a DHT that has lost the
keeper.

Before each fork, all existing objects are excluded from garbage collection (`gc.freeze`): a
collection in either process would touch them, and copy about 100 MB of pages that both share.

A node's traffic must fit a home connection. A node therefore requests only the changes since its
last read, from a few of the nodes that store the entries (`auth.swarm.protocol`), and searches for
these nodes once a minute (`Holders`). Plain hivemind nodes query twenty others for each read and
write, and cache, refresh and replicate the results.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
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
import torch
from hivemind.dht import DHT
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID, DHTKey
from hivemind.dht.validation import DHTRecord
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
from peer.network.endpoints import one_for_each_peer
from peer.network.placement import Placement
from peer.runtime.processes import name_fork, raise_descriptor_limit
from peer.swarm.averager import Averager

logger = logging.getLogger(__name__)
DAEMON_START_TIMEOUT_S = 60.0
RELAY_TIMEOUT_S, RELAY_POLL_S = 8.0, 0.2
NODE_LOOK_S = 1.0
ADDRESSES_S, ADDRESSES_RENEWED_S = 600.0, 200.0  # lifetime and renewal interval of published addresses
ADDRESSES_RETRIED_S = 30.0  # delay before the next attempt after a logged error
SILENT_LOOKS = 60  # failed checks in a row, one per second, after which the daemon counts as hung
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
# Shared memory without names in the file system needs no `torch_shm_manager` (60 MB), and none is left by a
# killed process. Each process needs a few descriptors per parameter of the model.
BY_DESCRIPTOR, DESCRIPTORS = "file_descriptor", 2**16
REACHABILITY = {"direct": "public", "relayed": "relayed", "client": "private"}


class Node(DHT):
    """hivemind's DHT, running in its own process."""

    _held: ClassVar[set[asyncio.Task[Any] | None]] = set()  # used in the DHT's process only

    def __init__(self, *arguments: Any, **options: Any) -> None:
        patch_hivemind()  # must precede the forks of the node's and the averager's processes
        self._holders = Holders()  # used in the DHT's process
        super().__init__(*arguments, **(THRIFT | options))

    async def replicate_p2p(self) -> P2P:
        """Return this process's p2p client, which looks up members' addresses through the node."""
        p2p: Any = await super().replicate_p2p()
        p2p.reach = self._reach
        return p2p

    async def _reach(self, peer_id: PeerID) -> bool:
        return bool(await self.run_coroutine(partial(reach, peer_id=peer_id), return_future=True))

    async def keep(self, key: DHTKey, subkey: bytes, value: Any, expiration_time: float) -> bool:
        """Store an entry from within the node's process; return whether any node accepted it."""
        await self._look(key)
        stored = await self._node.store(key, value, expiration_time, subkey=subkey, beam_size=REPLICAS)
        return bool(stored)

    async def _get(self, key: DHTKey, latest: bool, future: Any, **options: Any) -> None:
        """Fetch changes of a key from other nodes, then read the local copy."""
        if latest:
            await self._look(key)
        await super()._get(key, latest=False, future=future, beam_size=REPLICAS, **options)

    async def _store(self, key: DHTKey, subkey: Any, value: Any, expiration_time: float, future: Any) -> None:
        """Store an entry; a failure is an error to the process that waits for it."""
        try:
            future.set_result(await self._holders.store(self._node, key, subkey, value, expiration_time))
        except Exception as error:  # noqa: BLE001 - the caller is in another process, and decides what to do
            future.set_exception(error)

    async def _look(self, key: DHTKey) -> None:
        """Fetch a key's changes from other nodes; if that fails, the local copy can still be read."""
        try:
            await look(self._node, key)
        except Exception:
            logger.warning("a look at the DHT failed", exc_info=True)

    async def _run_coroutine(self, coro: Any, future: Any) -> None:
        """Keep a strong reference to the running task, or it could be garbage-collected."""
        task = asyncio.current_task()
        self._held.add(task)
        try:
            await super()._run_coroutine(coro, future)
        finally:
            self._held.discard(task)

    def run(self) -> None:
        """Run the forked process."""
        name_fork("DHT")
        super().run()


def join_dht(
    run: str,
    credentials: Credentials,
    initial_peers: Sequence[str],
    place: Placement,
    relays: Sequence[str] = (),
    clock: Clock = swarm_time,
) -> tuple[DHT, bool]:
    """Start a node; return it and whether it is in client mode. Raises `SwarmError` on failure.

    A single dead relay blocks all others for minutes, so the second attempt uses only the keeper.
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
    """Start the p2p daemon and fork the DHT's process. Raises `SwarmError` if the swarm cannot be joined.

    `relays`: addresses of volunteers that relay, in addition to the keeper.
    """
    os.environ.setdefault("GOMEMLIMIT", DAEMON_MEMORY)
    memory: Any = torch.multiprocessing
    if BY_DESCRIPTOR in memory.get_all_sharing_strategies():  # hivemind chooses files
        memory.set_sharing_strategy(BY_DESCRIPTOR)
        raise_descriptor_limit(DESCRIPTORS)
    mp.set_start_method("fork", force=True)  # hivemind's processes must be forked
    gc.collect()
    gc.freeze()
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
            client_mode=place.reach != "direct",  # only directly reachable nodes store the DHT's records
            use_auto_relay=place.reach == "relayed",
            trusted_relays=list(one_for_each_peer([*initial_peers, *relays])) if place.reach == "relayed" else None,
            force_reachability=REACHABILITY[place.reach],  # libp2p would take minutes to detect the reachability
            startup_timeout=DAEMON_START_TIMEOUT_S,
            use_ipfs=False,
            dht_mode="client" if place.reach == "relayed" else "off",  # libp2p finds relays only through its own DHT
            nat_port_map=False,
            authorizer=SwarmAuthorizer(tokens, run),
            record_validators=[RSASignatureValidator(key), PeerRecordValidator(credentials, tokens, run)],
        )
        node.run_in_background(await_ready=False)
        await_outcome(node._ready, partial(_why_ended, node))
    except Exception as error:  # errors of hivemind, its daemon or the operating system
        raise SwarmError(
            f"The swarm cannot be joined ({error}): check that this machine may open connections to "
            f"{', '.join(initial_peers) or 'others'} and that the run is being served."
        ) from error
    if place.reach != "client":
        node.run_coroutine(partial(announce, run=run, relayed=place.reach == "relayed"), return_future=True)
    return node


async def announce(dht: Node, node: DHTNode, run: str, *, relayed: bool) -> None:
    """Publish this peer's addresses when they change and before they expire."""
    key, subkey = peers_key(run), addresses_subkey(node.peer_id.to_base58())
    told: list[bytes] = []
    renew_at = 0.0
    while node.is_alive:
        try:
            addresses, now = await own_addresses(node.p2p, relayed=relayed), swarm_time()
            is_news = addresses != told or now >= renew_at
            if addresses and is_news and await dht.keep(key, subkey, addresses, now + ADDRESSES_S):
                told, renew_at = addresses, now + ADDRESSES_RENEWED_S
        except Exception as error:  # noqa: BLE001 - fault boundary: errors of hivemind or its daemon
            if node.is_alive:
                logger.warning("the members could not be told where this peer is: %r", error)
                await asyncio.sleep(ADDRESSES_RETRIED_S)
        await asyncio.sleep(NODE_LOOK_S)


async def reach(_dht: DHT, node: DHTNode, peer_id: PeerID) -> bool:
    """Connect the p2p daemon to a member at its published address; return whether that succeeded."""
    protocol: Any = node.protocol
    return bool(await protocol.reach(peer_id))


async def look(node: DHTNode, key: DHTKey) -> None:
    """Fetch a key's changes from one random reader and from one of the nodes that store the entries.

    Random readers reduce the load on the few storing nodes. A node whose calls fail is dropped from
    the routing tables, so two nodes could lose each other and the keeper permanently. A node with
    an empty table therefore contacts peers at their published addresses.
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


class Holders:
    """The nodes that store the entries of a key, as the last search found them.

    A search asks many nodes, and each answers with all entries that are new. Records change so often
    that a search for each of them would be most of a peer's traffic.
    """

    def __init__(self) -> None:
        self._peers: list[PeerID] = []
        self._searched_at = -math.inf

    async def store(self, node: DHTNode, key: DHTKey, subkey: Any, value: Any, expiration_time: float) -> bool:
        """Store an entry at the holders, or at the nearest nodes that this node knows if none accepts it.

        Return whether a node has accepted it, or this node knows no other. Search now and then.
        """
        key_id, protocol = DHTID.generate(source=key), node.protocol
        if not self._peers or asyncio.get_running_loop().time() >= self._searched_at + SEARCHED_S:
            await self._search(node, key)
        dumps = protocol.serializer.dumps
        record = DHTRecord(key_id.to_bytes(), dumps(subkey), dumps(value), expiration_time)
        signed = protocol.record_validator.sign_value(record)
        protocol.storage.store_subkey(key_id, subkey, signed, expiration_time)
        nearest = [peer for _, peer in protocol.routing_table.get_nearest_neighbors(key_id, REPLICAS, node.node_id)]
        for peers in self._peers, nearest:  # a liar may let a search find nodes that do not exist
            calls = [protocol.call_store(peer, [key_id], [signed], expiration_time, [subkey]) for peer in peers]
            answers = dict(zip(peers, await asyncio.gather(*calls), strict=True))
            self._peers = [peer for peer in self._peers if answers.get(peer, ()) is not None]
            if any(map(any, filter(None, answers.values()))):
                return True
        return not nearest

    async def _search(self, node: DHTNode, key: DHTKey) -> None:
        key_id, self._searched_at = DHTID.generate(source=key), asyncio.get_running_loop().time()
        try:
            await look(node, key)  # otherwise, all nodes would answer with the same new entries
            found = await node.find_nearest_nodes([key_id], REPLICAS, REPLICAS, exclude_self=True)
            self._peers = list(found[key_id].values())
        except Exception:
            logger.warning("a search in the DHT failed", exc_info=True)


def waits_at_relay(dht: DHT, timeout_s: float = RELAY_TIMEOUT_S) -> bool:
    """Wait until a relay forwards connections to this peer; return False on timeout.

    Raises `SwarmError` if the DHT's process ends during the wait.
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
    """A watchdog that checks the node's processes and its p2p daemon once per second.

    Without the watchdog, the peer would remain at its step without an error, and hivemind's calls
    might never return. `on_lost` is called once, on the watchdog's thread, and should end the
    process at once. That thread makes no hivemind calls; a second thread polls the daemon.
    """

    def __init__(self, dht: DHT, on_lost: Callable[[SwarmError], object], clock: Clock) -> None:
        self._dht, self._on_lost, self._clock = dht, on_lost, clock
        self._processes: Mapping[str, psutil.Process | None] = _processes_of(dht)
        self.lost: SwarmError | None = None
        self.heard_at = clock()  # time of the daemon's last answer
        self._answers, self._answers_seen = 0, 0
        self._silent_looks = 0  # counts checks, not seconds, because a suspended machine makes no checks
        self._stop = threading.Event()
        self._watching = threading.Thread(target=self._watch, name="node watch", daemon=True)
        self._listening = threading.Thread(target=self._listen, name="daemon watch", daemon=True)
        self._watching.start()
        self._listening.start()

    def start(self, averager: Averager) -> None:
        """Start and watch an averager. Raises `SwarmError` if it cannot start, or the node is lost meanwhile."""
        gc.freeze()
        self._processes = {**self._processes, "averager": _process(averager.start())}
        await_outcome(averager.served, lambda: self.lost)

    def stop(self) -> None:
        """Stop watching, before the node is shut down."""
        self._stop.set()
        self._watching.join()
        self._listening.join(NODE_LOOK_S)  # a call to a hung daemon may never return

    def look(self) -> SwarmError | None:
        """Return an error if a process has died or the daemon does not respond; None otherwise."""
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
            with suppress(Exception):  # errors of hivemind, the daemon or the system count as no answer
                self._dht.run_coroutine(call_daemon, return_future=True).result()
                self.heard_at, self._answers = self._clock(), self._answers + 1


def await_outcome(future: Any, why_lost: Callable[[], SwarmError | None]) -> Any:
    """Wait for the result of a hivemind process. Raises that process's error, or the error from `why_lost`.

    hivemind itself waits forever for a process that was killed, or that depends on a killed one.
    """
    while not future.done():
        lost = why_lost()
        with suppress(futures.TimeoutError):
            future.result(NODE_LOOK_S)
        if lost is not None and not future.done():  # the result may already be in the pipe
            raise lost
    return future.result()


def _processes_of(dht: DHT) -> dict[str, psutil.Process | None]:
    """Return the node's processes by name; None for a process that has already died."""
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
    except psutil.NoSuchProcess:  # the process ended between the two calls
        return True


async def call_daemon(_dht: DHT, node: DHTNode) -> None:
    """Request the p2p daemon's list of peers, to check that the daemon responds."""
    await node.protocol.p2p.list_peers()


def peer_ids_of(addresses: Iterable[str]) -> tuple[PeerID, ...]:
    """Return the distinct peer IDs in these addresses."""
    return tuple(PeerID.from_base58(name) for name in dict.fromkeys(each.rpartition("/p2p/")[2] for each in addresses))


async def greet(_dht: DHT, node: DHTNode, peer_ids: Sequence[PeerID], addresses: Sequence[str]) -> None:
    """Ping these peers, so that this node and the peers add each other to their routing tables.

    The p2p daemon knows the peers' addresses at the time of joining; `addresses` are newer ones.
    """
    await asyncio.gather(*(_connect(node, address) for address in addresses))
    await asyncio.gather(*(node.protocol.call_ping(peer_id) for peer_id in peer_ids))


async def _connect(node: DHTNode, address: str) -> None:
    where, _, peer_id = address.rpartition("/p2p/")
    try:
        await node.p2p._client.connect(PeerID.from_base58(peer_id), [Multiaddr(where)])
    except Exception as error:  # noqa: BLE001 - the daemon's own errors: retried in some seconds
        logger.info("the keeper does not answer at %s: %r", where, error)
