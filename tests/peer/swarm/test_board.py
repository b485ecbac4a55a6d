"""The looks and searches of a node; real nodes in their places: tests/system/test_ways.py."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hivemind.dht.routing import DHTID, RoutingTable
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.p2p import PeerID
from hivemind.utils import MSGPackSerializer
from hivemind.utils.timed_storage import ValueWithExpiration

from auth.credentials import Credentials
from auth.errors import SwarmError
from auth.swarm.authorizer import peers_key
from auth.swarm.directory import SwarmAccess
from peer.network.placement import Placement
from peer.swarm import board as board_module
from peer.swarm.board import REPLICAS, SEARCHED_S, Board, join_dht
from peer.transport.virtual_time import run_virtual
from tests.support.virtual_tests import virtually

pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")  # by hivemind, for its daemon


class FewNodes:
    """A node that stores, with the nodes that a search finds and those that answer."""

    def __init__(self, *nodes: str) -> None:
        self.found, self.answering = list(nodes), set(nodes)
        self.looks = self.searches = 0
        self.stored = list[tuple[str, bytes]]()
        self.kept: list[bytes] = []
        self.node_id, self.peer_id = DHTID.generate(), "own"
        table = SimpleNamespace(get_nearest_neighbors=self.known, peer_id_to_uid={})
        self.protocol = SimpleNamespace(
            routing_table=table,
            serializer=MSGPackSerializer,
            record_validator=SimpleNamespace(sign_value=lambda record: record.value + b" signed"),
            storage=SimpleNamespace(store_subkey=lambda _key, _subkey, value, _expires: self.kept.append(value)),
            call_store=self.call_store,
            told_addresses=lambda _key: [],
        )

    def known(self, _key: DHTID, _count: int, exclude: DHTID) -> list[tuple[DHTID, str]]:
        """The nodes in the routing table: those that answer."""
        assert exclude == self.node_id
        return [(DHTID.generate(source=node), node) for node in sorted(self.answering)]

    async def _call_find_with_blacklist(self, _peer: str, _keys: list[DHTID]) -> object:
        self.looks += 1
        return {}

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


async def store_at(board: Board, times: int = 1) -> bool:
    """Store so many versions of an entry, one in a second; return the outcome of the last one."""
    stored = False
    for _ in range(times):
        stored = await board.put(b"subkey", 1, 9e9)
        await asyncio.sleep(1)
    return stored


def board_of(node: Any) -> Board:
    """The board of a node."""
    return Board(node, "run")


@virtually
async def test_the_nodes_that_store_an_entry_are_searched_for_now_and_then() -> None:
    """Each search has many answers, with all that is new; if a holder is gone, others are searched for at once."""
    node = FewNodes("ada", "bob")
    board = board_of(node)
    assert await store_at(board, times=int(SEARCHED_S))
    assert (node.searches, node.looks) == (1, 1)
    value = MSGPackSerializer.dumps(1) + b" signed"
    assert node.stored == [("ada", value), ("bob", value)] * int(SEARCHED_S)
    assert node.kept == [value] * int(SEARCHED_S)
    assert await store_at(board)
    assert node.searches == 2
    node.answering.remove("bob")
    assert await store_at(board, times=3)
    assert node.searches == 2  # who does not answer is not asked again before the next search
    node.answering = {"carol"}
    assert await store_at(board)
    assert (node.searches, node.stored[-1]) == (2, ("carol", value))
    assert await store_at(board)
    assert node.searches == 3
    assert await store_at(board_of(FewNodes()))  # which is the only node
    assert not await store_at(board_of(FewNodes("refuses")))


class AskedNode:
    """A node that knows these others, of which some answer, and keeps whom it has asked."""

    def __init__(self, others: int, silent: frozenset[PeerID] = frozenset(), told: Sequence[PeerID] = ()) -> None:
        """`told`: those who have told where they are."""
        self.node_id, self.peer_id = DHTID.generate(source="own"), PeerID(b"own")
        table = RoutingTable(self.node_id, bucket_size=8, depth_modulo=5)
        for number in range(others):
            table.add_or_update_node(DHTID.generate(source=number), PeerID(bytes([number])))
        self.entries, self.decoded = DictionaryDHTValue(), list[bytes]()
        self.protocol = SimpleNamespace(
            routing_table=table,
            told_addresses=lambda _key: [self.peer_id, *told],
            storage=SimpleNamespace(get=self.get),
            serializer=SimpleNamespace(dumps=MSGPackSerializer.dumps, loads=self.loads),
            record_validator=SimpleNamespace(strip_value=lambda record: record.value),
        )
        self.asked: list[PeerID] = []
        self._silent = silent

    def holders(self) -> set[PeerID]:
        """Those nearest to the key."""
        key_id = DHTID.generate(source=peers_key("run"))
        return {peer for _, peer in self.protocol.routing_table.get_nearest_neighbors(key_id, REPLICAS)}

    async def _call_find_with_blacklist(self, peer: PeerID, _keys: list[DHTID]) -> dict[DHTID, object] | None:
        self.asked.append(peer)
        return None if peer in self._silent else {}

    def get(self, key_id: DHTID) -> ValueWithExpiration[Any] | None:
        """Read what the node holds by now."""
        assert key_id == DHTID.generate(source=peers_key("run"))
        return ValueWithExpiration(self.entries, 9e9) if self.asked else None

    def loads(self, content: bytes) -> Any:
        """Decode a value, and note it."""
        self.decoded.append(content)
        return MSGPackSerializer.loads(content)


async def test_a_look_asks_one_that_holds_the_entries_and_one_that_need_not() -> None:
    """However many there are; in time all of them are asked, or a few would send everything to everybody."""
    node = AskedNode(20)
    pairs = []
    for _ in range(200):
        node.asked = []
        await board_of(node).entries()
        pairs.append(tuple(node.asked))
    assert {len(pair) for pair in pairs} == {2}
    holders = node.holders()
    assert {second for _, second in pairs} == holders
    assert not {first for first, _ in pairs} & holders
    assert len({first for first, _ in pairs}) > len(holders)


async def test_a_look_goes_on_to_a_holder_that_answers() -> None:
    """Nodes that are gone cost their time, not the look."""
    holders = sorted(AskedNode(20).holders(), key=PeerID.to_bytes)
    node = AskedNode(20, frozenset(holders[1:]))
    for _ in range(20):
        node.asked = []
        await board_of(node).entries()
        assert node.asked[-1] == holders[0]


@pytest.mark.parametrize("others", [0, 1, REPLICAS])
async def test_a_look_in_a_small_swarm(others: int) -> None:
    """Where all nodes hold all entries one of them is asked, and nobody where there is none."""
    node = AskedNode(others)
    found = await board_of(node).entries()
    assert len(node.asked) == min(1, others)
    assert found == {}


async def test_a_node_that_has_lost_everybody_asks_those_who_told_where_they_are() -> None:
    """Of two that have lost each other and the keeper, none would ask the other again."""
    gone, there = PeerID(b"gone"), PeerID(b"there")
    asked = set()
    for _ in range(40):
        node = AskedNode(0, frozenset([gone]), [gone, there])
        await board_of(node).entries()
        assert node.asked[-1] == there
        asked |= set(node.asked)
    assert asked == {gone, there}
    await board_of(known := AskedNode(1, told=[there])).entries()
    assert there not in known.asked


async def test_a_look_that_fails_leaves_what_is_known(caplog: pytest.LogCaptureFixture) -> None:
    """The daemon may be busy; the entries of this node are returned."""
    node = AskedNode(1)

    async def fail(peer: PeerID, _keys: object) -> None:
        node.asked.append(peer)
        raise OSError("no daemon")

    node._call_find_with_blacklist = fail  # type: ignore[method-assign, assignment]
    node.entries.store(b"subkey", MSGPackSerializer.dumps("value"), 9e9)
    assert await board_of(node).entries() == {b"subkey": ("value", 9e9)}
    assert "no changes were fetched" in caplog.text


async def test_only_what_is_new_is_decoded() -> None:
    """Hundreds of peers have their entries here, and few of them change between two looks."""
    node, first, second = AskedNode(1), MSGPackSerializer.dumps("first"), MSGPackSerializer.dumps("second")
    board = board_of(node)
    for subkey, value in ((b"a", first), (b"b", first), (b"c", b"\xc1")):  # no MessagePack
        node.entries.store(subkey, value, 9e9)
    for _ in range(2):
        assert await board.entries() == {b"a": ("first", 9e9), b"b": ("first", 9e9)}
    node.entries.store(b"a", second, 9.1e9)
    node.decoded = []
    assert await board.entries() == {b"a": ("second", 9.1e9), b"b": ("first", 9e9)}
    assert node.decoded == [second, b"\xc1"]


class Daemons:
    """p2p daemons that are started one after another; `relayed` says which of them a relay accepts."""

    def __init__(self, *relayed: bool) -> None:
        self._relayed = iter(relayed)
        self.relays, self.ended = list[list[str]](), 0

    async def create(self, *, trusted_relays: list[str] | None, **_options: object) -> Any:
        """Start the next one."""
        self.relays.append(trusted_relays or [])
        maddrs = ["/ip4/192.0.2.1/tcp/1/p2p/QmRelay/p2p-circuit" if next(self._relayed) else "/ip4/10.0.0.1/tcp/1"]

        async def visible(*, latest: bool) -> list[str]:
            assert latest
            return maddrs

        return SimpleNamespace(p2p=SimpleNamespace(get_visible_maddrs=visible), shutdown=self.end)

    async def end(self) -> None:
        """Shut one down."""
        self.ended += 1


@pytest.mark.parametrize(
    ("relayed", "relays", "is_client", "started"),
    [
        ((True,), ["v1"], False, [["keeper", "v1"]]),
        ((False, True), ["v1"], False, [["keeper", "v1"], ["keeper"]]),  # one dead relay blocks all others
        ((False, False), ["v1"], True, [["keeper", "v1"], ["keeper"]]),
        ((False,), [], True, [["keeper"]]),
    ],
)
def test_a_peer_that_no_relay_accepts_is_a_client(
    relayed: Sequence[bool],
    relays: Sequence[str],
    is_client: bool,
    started: list[list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It tries all relays, then the keeper alone."""
    daemons = Daemons(*relayed)
    monkeypatch.setattr(board_module, "DHTNode", daemons)
    monkeypatch.setattr(board_module, "one_for_each_peer", list)
    access = SwarmAccess(Credentials(tmp_path), "run", frozenset())
    board = run_virtual(join_dht(access, ["keeper"], Placement("relayed"), relays))
    assert (board.is_client, daemons.relays, daemons.ended) == (is_client, started, len(started) - 1)


async def test_a_swarm_that_cannot_be_joined_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence contains hivemind's own reason."""

    async def create(**_options: object) -> None:
        raise RuntimeError("nobody answers")

    monkeypatch.setattr(board_module, "DHTNode", SimpleNamespace(create=create))
    access = SwarmAccess(Credentials(tmp_path), "run", frozenset())
    with pytest.raises(SwarmError, match=r"cannot be joined \(nobody answers\): check .* connections to keeper and"):
        await join_dht(access, ["keeper"], Placement())
