"""A node of the swarm in a process of its own, without a model: joins as its plan says, then dials what it is told to.

    python tests/system/swarm_node.py PLAN

It prints its addresses, its identity and whether it is a client, as JSON; then, for each address that comes in a line,
whether it could connect to it, and for each identity whether a call finds it; and leaves when its input ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2
from hivemind.utils.logging import use_hivemind_log_handler
from hivemind.utils.multiaddr import Multiaddr

from auth.credentials import Credentials
from auth.swarm.directory import SwarmAccess
from peer.network.placement import Placement, Reach
from peer.swarm.board import Board, join_dht

RUN = "ways"
CALL_S = 30.0
P2P_CODE, CIRCUIT_CODE = b"\xa5\x03", b"\xa2\x02"  # 421 and 290 as varints


@dataclass(frozen=True)
class NodePlan:
    """Where this node stands."""

    credentials_dir: str
    reach: Reach
    host_maddrs: list[str]
    announce_maddrs: list[str]
    initial_peers: list[str]
    relays: list[str]


async def main() -> None:
    """Run to the end of the input."""
    plan = NodePlan(**json.loads(sys.argv[1]))
    use_hivemind_log_handler("nowhere")
    place = Placement(plan.reach, tuple(plan.host_maddrs), tuple(plan.announce_maddrs) or None)
    access = SwarmAccess(Credentials(Path(plan.credentials_dir)), RUN, frozenset())
    board = await join_dht(access, plan.initial_peers, place, plan.relays)
    announcing = None if board.is_client else asyncio.create_task(board.announce(relayed=plan.reach == "relayed"))
    peer_id = access.credentials.device_key.peer_id
    _say({"addresses": await board.addresses(), "peer_id": peer_id, "is_client": board.is_client})
    while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
        _say(await (_connects(board, line) if line.startswith("/") else _is_answered(board, line)))
    if announcing is not None:
        announcing.cancel()
    await board.leave()


def _say(fact: Any) -> None:
    sys.stdout.write(json.dumps(fact) + "\n")
    sys.stdout.flush()


async def _connects(board: Board, maddr: str) -> bool:
    """Whether the peer answers at this address, or through this relay."""
    at, _, peer_id = maddr.rpartition("/p2p/")
    address: Any = _Address(at)
    try:
        await board.p2p._client.connect(PeerID.from_base58(peer_id), [address])
    except Exception:  # noqa: BLE001 - the daemon's own error; that it could not connect is the answer
        return False
    return True


async def _is_answered(board: Board, peer_id: str) -> bool:
    """Return whether a call finds this peer, of which nothing but its identity is given.

    A client serves no call of the DHT, but the connection to it shows that it was found.
    """
    await board.entries()  # as a peer's tracker does all the time
    wanted = PeerID.from_base58(peer_id)
    with suppress(Exception):
        await board._node.protocol.get_stub(wanted).rpc_ping(dht_pb2.PingRequest(), timeout=CALL_S)
    return wanted in {peer.peer_id for peer in await board.p2p.list_peers()}


@dataclass(frozen=True)
class _Address:
    """Encodes as the daemon reads it: hivemind writes a relay's peer ID as a CID there, which libp2p refuses."""

    maddr: str

    def to_bytes(self) -> bytes:
        """https://github.com/multiformats/multiaddr: each protocol's code, and its value with its length."""
        at, _, relay = self.maddr.removesuffix("/p2p-circuit").partition("/p2p/")
        if not relay:
            return bytes(Multiaddr(at).to_bytes())
        multihash = PeerID.from_base58(relay).to_bytes()
        return bytes(Multiaddr(at).to_bytes() + P2P_CODE + bytes([len(multihash)]) + multihash + CIRCUIT_CODE)


if __name__ == "__main__":
    asyncio.run(main())
