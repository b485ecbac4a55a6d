"""The looks of a node, and the watch over one with real processes; nodes in their places: tests/system/test_ways.py."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import hivemind
import psutil
import pytest
from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID, RoutingTable
from hivemind.p2p import PeerID
from hivemind.utils import MPFuture, MSGPackSerializer

from auth.credentials import Credentials
from auth.errors import SwarmError
from peer.network.placement import Placement
from peer.swarm import dht as dht_module
from peer.swarm.averager import Averager
from peer.swarm.averager_loop import AveragerParts
from peer.swarm.dht import REPLICAS, SEARCHED_S, Holders, Node, NodeWatch, call_daemon, look, start_dht, waits_at_relay
from peer.swarm.messages import Served
from peer.transport.virtual_time import run_virtual
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")  # by hivemind, for its daemon


@pytest.fixture
def dht() -> Iterator[hivemind.DHT]:
    """A swarm's node of its own."""
    node = Node(start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"], use_ipfs=False)
    family = [psutil.Process(node.pid), *psutil.Process(node.pid).children()]
    yield node
    for process in family:
        if process.is_running():
            process.kill()
    MPFuture.reset_backend()  # who is killed may hold its lock, for which every later node would wait


def daemon_of(dht: hivemind.DHT) -> psutil.Process:
    """Its p2p daemon, a child of the DHT's process."""
    (daemon,) = psutil.Process(dht.pid).children()
    return daemon


class FewNodes:
    """A node, as far as `Holders` uses it, with the nodes that a search finds and those that answer."""

    def __init__(self, *nodes: str) -> None:
        self.found, self.answering = list(nodes), set(nodes)
        self.searches, self.stored = 0, list[tuple[str, bytes]]()
        self.kept: list[bytes] = []
        self.node_id, table = DHTID.generate(), SimpleNamespace(get_nearest_neighbors=self.known)
        self.protocol = SimpleNamespace(
            routing_table=table,
            serializer=MSGPackSerializer,
            record_validator=SimpleNamespace(sign_value=lambda record: record.value + b" signed"),
            storage=SimpleNamespace(store_subkey=lambda _key, _subkey, value, _expires: self.kept.append(value)),
            call_store=self.call_store,
        )

    def known(self, _key: DHTID, _count: int, exclude: DHTID) -> list[tuple[DHTID, str]]:
        """The nodes in the routing table: those that answer."""
        assert exclude == self.node_id
        return [(DHTID.generate(source=node), node) for node in sorted(self.answering)]

    async def find_nearest_nodes(self, queries: list[DHTID], *_: int, exclude_self: bool) -> Any:
        """Count a search."""
        assert exclude_self
        self.searches += 1
        return {queries[0]: {DHTID.generate(source=node): node for node in self.found}}

    async def call_store(self, peer: str, _keys: object, values: list[bytes], *_: object) -> list[bool] | None:
        """Store at another node, if it answers."""
        if peer not in self.answering:
            return None
        self.stored.append((peer, *values))
        return [peer != "refuses"]


async def store_at(node: FewNodes, holders: Holders, times: int = 1) -> bool:
    """Whether the last of so many versions of an entry, one in a second, was stored."""
    stored = False
    for _ in range(times):
        stored = await holders.store(node, "key", b"subkey", 1, 9e9)
        await asyncio.sleep(1)
    return stored


def test_the_nodes_that_store_an_entry_are_searched_for_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each search has many answers, with all that is new; if a holder is gone, others are searched for at once."""
    looks = list[object]()

    async def looks_first(node: object, _key: object) -> None:
        looks.append(node)

    async def scenario() -> None:
        node, holders = FewNodes("ada", "bob"), Holders()
        assert await store_at(node, holders, times=int(SEARCHED_S))
        assert (node.searches, len(looks)) == (1, 1)
        value = MSGPackSerializer.dumps(1) + b" signed"
        assert node.stored == [("ada", value), ("bob", value)] * int(SEARCHED_S)
        assert node.kept == [value] * int(SEARCHED_S)
        assert await store_at(node, holders)
        assert node.searches == 2
        node.answering.remove("bob")
        assert await store_at(node, holders, times=3)
        assert node.searches == 2  # who does not answer is not asked again before the next search
        node.answering = {"carol"}
        assert await store_at(node, holders)
        assert (node.searches, node.stored[-1]) == (2, ("carol", value))
        assert await store_at(node, holders)
        assert node.searches == 3
        assert await store_at(FewNodes(), Holders())  # which is the only node
        assert not await store_at(FewNodes("refuses"), Holders())

    monkeypatch.setattr(dht_module, "look", looks_first)
    run_virtual(scenario())


@pytest.mark.parametrize("victim", ["p2p daemon", "DHT process"])
def test_a_process_that_dies_is_told_once(dht: hivemind.DHT, victim: str) -> None:
    """By its name, as soon as it is gone."""
    told: list[SwarmError] = []
    watch = NodeWatch(dht, told.append, time.time)
    process = daemon_of(dht) if victim == "p2p daemon" else psutil.Process(dht.pid)
    process.kill()
    wait_until("the watch has told of the DHT's end", lambda: told)
    watch.stop()
    assert [victim in str(lost) for lost in told] == [True]


def test_a_process_that_dies_while_it_is_looked_at_is_told(dht: hivemind.DHT, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was there, and a moment later it is not: the watch must not end over it."""

    def status(process: psutil.Process) -> str:
        raise psutil.NoSuchProcess(process.pid)

    told: list[SwarmError] = []
    watch = NodeWatch(dht, told.append, time.time)
    monkeypatch.setattr(psutil.Process, "status", status)
    wait_until("the watch has told of the DHT's end or has ended", lambda: told or not watch._watching.is_alive())
    watch.stop()
    assert len(told) == 1


def test_an_answer_of_the_daemon_is_a_sign_of_life(dht: hivemind.DHT, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that lives and answers nothing is lost, too, after a while; until then nobody calls it alive."""
    monkeypatch.setattr(dht_module, "NODE_LOOK_S", 0.1)
    monkeypatch.setattr(dht_module, "SILENT_LOOKS", 10**6)  # on a busy machine the daemon may be slow
    moments, told = itertools.count(), list[SwarmError]()
    watch = NodeWatch(dht, told.append, lambda: next(moments))
    first = watch.heard_at
    wait_until("the watch has heard of the DHT again", lambda: watch.heard_at > first)
    daemon_of(dht).suspend()
    wait_until("nothing is on its way any more", lambda: watch._silent_looks >= 20)
    heard_at = watch.heard_at
    wait_until("the daemon is silent for longer", lambda: watch._silent_looks >= 40)
    assert (watch.heard_at, told) == (heard_at, [])
    monkeypatch.setattr(dht_module, "SILENT_LOOKS", 40)
    wait_until("the watch has told of the silent daemon", lambda: told)
    watch.stop()
    assert "has not answered for 40 s" in str(told[0])


@pytest.mark.parametrize("victim", ["averager", "DHT process"])
def test_a_node_that_is_lost_while_an_averager_starts_is_told(
    dht: hivemind.DHT, victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """hivemind would wait for ever for the DHT's process."""

    def lose(_outer: Connection, _inner: Connection, parts: AveragerParts) -> None:
        os.kill(os.getpid() if victim == "averager" else dht_pid, signal.SIGKILL)
        parts.dht.get_visible_maddrs()

    dht_pid, told = dht.pid, list[SwarmError]()
    assert dht_pid is not None
    averager = averager_of(dht, lose, monkeypatch)
    watch = NodeWatch(dht, told.append, time.time)
    with pytest.raises(SwarmError, match="has died"):
        watch.start(averager)
    watch.stop()
    assert [victim in str(lost) for lost in told] == [True]
    averager.shutdown(0.0)


def test_an_averager_that_cannot_start_says_why(dht: hivemind.DHT, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its own words."""

    def fail(_outer: Connection, inner: Connection, _parts: AveragerParts) -> None:
        inner.send(Served("the daemon took too long"))
        inner.recv()

    averager = averager_of(dht, fail, monkeypatch)
    watch = NodeWatch(dht, lambda _lost: None, time.time)
    with pytest.raises(SwarmError, match="the daemon took too long"):
        watch.start(averager)
    watch.stop()
    averager.shutdown(PATIENCE_S)


def averager_of(dht: hivemind.DHT, serve: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Averager:
    """An averager whose process does this."""
    monkeypatch.setattr("peer.swarm.averager.serve", serve)
    return Averager(cast(Any, SimpleNamespace(dht=dht)), cast(Any, None))


def test_who_waits_for_a_relay_hears_of_the_end_of_the_node(dht: hivemind.DHT) -> None:
    """Which would not answer any more."""
    psutil.Process(dht.pid).kill()
    with pytest.raises(SwarmError, match="DHT process"):
        waits_at_relay(dht, PATIENCE_S)


def test_a_node_whose_process_is_killed_as_it_starts_cannot_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """hivemind would wait for it for ever."""
    monkeypatch.setattr(Node, "run", lambda _node: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(SwarmError, match="was killed as it started"):
        start_dht("run", Credentials(tmp_path), (), Placement(host_maddrs=("/ip4/127.0.0.1/tcp/0",)))


def test_an_answer_that_is_waited_for_is_not_collected(dht: hivemind.DHT) -> None:
    """Neither asyncio nor hivemind hold its task: the daemon would seem silent for as long as nobody asks again."""
    daemon = daemon_of(dht)
    daemon.suspend()
    answer = dht.run_coroutine(call_daemon, return_future=True)
    dht.run_coroutine(collect_garbage)
    daemon.resume()
    answer.result(timeout=PATIENCE_S)


async def collect_garbage(_dht: hivemind.DHT, _node: DHTNode) -> None:
    """In the DHT's process, once the question is on its way."""
    await asyncio.sleep(1.0)
    gc.collect()


def test_a_node_that_is_shut_down_is_not_missed(dht: hivemind.DHT) -> None:
    """Who leaves stops looking first."""
    told: list[SwarmError] = []
    watch = NodeWatch(dht, told.append, time.time)
    watch.stop()
    dht.shutdown()
    assert told == []


class AskedNode:
    """A node that knows these others, of which some answer, and keeps whom it has asked."""

    def __init__(self, others: int, silent: frozenset[PeerID] = frozenset(), told: Sequence[PeerID] = ()) -> None:
        """`told`: those who have told where they are."""
        self.node_id, self.peer_id = DHTID.generate(source="own"), PeerID(b"own")
        table = RoutingTable(self.node_id, bucket_size=8, depth_modulo=5)
        for number in range(others):
            table.add_or_update_node(DHTID.generate(source=number), PeerID(bytes([number])))
        self.protocol = SimpleNamespace(routing_table=table, told_addresses=lambda _key: [self.peer_id, *told])
        self.asked: list[PeerID] = []
        self._silent = silent

    def holders(self, key: str) -> set[PeerID]:
        """Those nearest to the key."""
        key_id = DHTID.generate(source=key)
        return {peer for _, peer in self.protocol.routing_table.get_nearest_neighbors(key_id, REPLICAS)}

    async def _call_find_with_blacklist(self, peer: PeerID, _keys: list[DHTID]) -> dict[DHTID, object] | None:
        self.asked.append(peer)
        return None if peer in self._silent else {}


async def test_a_look_asks_one_that_holds_the_entries_and_one_that_need_not() -> None:
    """However many there are; in time all of them are asked, or a few would send everything to everybody."""
    node = AskedNode(20)
    pairs = []
    for _ in range(200):
        node.asked = []
        await look(node, "key")  # type: ignore[arg-type]
        pairs.append(tuple(node.asked))
    assert {len(pair) for pair in pairs} == {2}
    holders = node.holders("key")
    assert {second for _, second in pairs} == holders
    assert not {first for first, _ in pairs} & holders
    assert len({first for first, _ in pairs}) > len(holders)


async def test_a_look_goes_on_to_a_holder_that_answers() -> None:
    """Nodes that are gone cost their time, not the look."""
    holders = sorted(AskedNode(20).holders("key"), key=PeerID.to_bytes)
    node = AskedNode(20, frozenset(holders[1:]))
    for _ in range(20):
        node.asked = []
        await look(node, "key")  # type: ignore[arg-type]
        assert node.asked[-1] == holders[0]


@pytest.mark.parametrize("others", [0, 1, REPLICAS])
async def test_a_look_in_a_small_swarm(others: int) -> None:
    """Where all nodes hold all entries one of them is asked, and nobody where there is none."""
    node = AskedNode(others)
    await look(node, "key")  # type: ignore[arg-type]
    assert len(node.asked) == min(1, others)


async def test_a_node_that_has_lost_everybody_asks_those_who_told_where_they_are() -> None:
    """Of two that have lost each other and the keeper, none would ask the other again."""
    gone, there = PeerID(b"gone"), PeerID(b"there")
    asked = set()
    for _ in range(40):
        node = AskedNode(0, frozenset([gone]), [gone, there])
        await look(node, "key")  # type: ignore[arg-type]
        assert node.asked[-1] == there
        asked |= set(node.asked)
    assert asked == {gone, there}
    await look(known := AskedNode(1, told=[there]), "key")  # type: ignore[arg-type]
    assert there not in known.asked
