"""Who learns where a volunteer is: members do, as calls need it, and a stranger who asks every way does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path

import pytest
from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import read_pbmsg_safe, write_pbmsg
from hivemind.proto import p2pd_pb2
from hivemind.utils.multiaddr import Multiaddr

from peer.network.placement import Placement
from tests.support.swarm_nodes import NodeProcess, NodeSwarm
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")  # by hivemind, for its daemon
HERE = Placement(host_maddrs=("/ip4/127.0.0.1/tcp/0",))
KADEMLIA, FIND_NODE = "/ipfs/kad/1.0.0", 4


@asynccontextmanager
async def stranger(addresses: list[str]) -> AsyncIterator[P2P]:
    """A plain libp2p daemon that knows these addresses."""
    p2p = await P2P.create(addresses, dht_mode="client", startup_timeout=PATIENCE_S)
    try:
        yield p2p
    finally:
        await p2p.shutdown()


async def find_node(p2p: P2P, asked: PeerID, wanted: PeerID) -> bytes:
    """What a peer says to libp2p's own FIND_NODE: the address of the wanted peer, where it serves that at all."""
    opening = p2pd_pb2.StreamOpenRequest(peer=asked.to_bytes(), proto=[KADEMLIA])
    reader, writer = await p2p._client.control.daemon_connector.open_connection()
    with closing(writer):
        await write_pbmsg(writer, p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_OPEN, streamOpen=opening))
        opened = p2pd_pb2.Response()
        await read_pbmsg_safe(reader, opened)
        if opened.type == p2pd_pb2.Response.ERROR:
            assert "protocols not supported" in opened.error.msg
            return b""
        key = wanted.to_bytes()
        question = bytes([8, FIND_NODE, 18, len(key)]) + key  # the fields `type` and `key` of its message
        writer.write(bytes([len(question)]) + question)
        await writer.drain()
        return await asyncio.wait_for(reader.read(1 << 16), PATIENCE_S)


async def learn(keeper: NodeProcess, present: NodeProcess, wanted: NodeProcess) -> list[bytes]:
    """What a stranger learns of a peer from the keeper and from another one that it has found."""
    async with stranger([keeper.addresses[0], present.addresses[0]]) as p2p:
        told = [await find_node(p2p, PeerID.from_base58(asked.peer_id), of(wanted)) for asked in (keeper, present)]
        known = {peer.peer_id for peer in await p2p.list_peers()}
    assert known == {of(keeper), of(present)}
    return told


def of(node: NodeProcess) -> PeerID:
    """Its identity."""
    return PeerID.from_base58(node.peer_id)


def where(node: NodeProcess) -> bytes:
    """Its address, as libp2p writes it."""
    return bytes(Multiaddr(node.addresses[0].partition("/p2p/")[0]).to_bytes())


def test_members_find_each_other_and_strangers_find_nobody(tmp_path: Path) -> None:
    """Neither one who is there nor one who has left."""
    with ExitStack() as stack:
        swarm = NodeSwarm(tmp_path, stack)
        keeper = swarm.start("keeper", HERE)
        first, second = [swarm.start(name, HERE, keeper.addresses[:1]) for name in ("first", "second")]
        first.finds_soon(second)
        second.finds_soon(first)
        keeper.finds_soon(second)
        told = asyncio.run(learn(keeper, first, second))
        second.leave()
        told += asyncio.run(learn(keeper, first, second))
    assert [where(second) in answer for answer in told] == [False] * 4
    assert told == [b""] * 4


def test_a_member_that_comes_back_elsewhere_is_found(tmp_path: Path) -> None:
    """Its old address is known to all, and answers no more."""
    with ExitStack() as stack:
        swarm = NodeSwarm(tmp_path, stack)
        keeper = swarm.start("keeper", HERE)
        first, second = [swarm.start(name, HERE, keeper.addresses[:1]) for name in ("first", "second")]
        first.finds_soon(second)
        second.leave()
        assert not first.finds(second)
        again = swarm.start("second", HERE, keeper.addresses[:1])
        assert (again.peer_id, again.addresses) != (second.peer_id, second.addresses)
        first.finds_soon(again)
