"""A node of the swarm in a process of its own, without a model: joins as its plan says, then dials what it is told to.

    python tests/system/swarm_node.py PLAN

It prints its addresses, its identity and whether it is a client, as JSON; then, for each address that comes in a line,
whether it could connect to it, and for each identity whether a call finds it; and leaves when its input ends.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hivemind
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2
from hivemind.utils.logging import use_hivemind_log_handler
from hivemind.utils.multiaddr import Multiaddr

from auth.credentials import Credentials
from auth.swarm.authorizer import peers_key
from peer.network.placement import Placement, Reach
from peer.swarm.dht import join_dht

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


def main() -> None:
    """Run to the end of the input."""
    plan = NodePlan(**json.loads(sys.argv[1]))
    use_hivemind_log_handler("nowhere")
    place = Placement(plan.reach, tuple(plan.host_maddrs), tuple(plan.announce_maddrs) or None)
    dht, is_client = join_dht(RUN, Credentials(Path(plan.credentials_dir)), plan.initial_peers, place, plan.relays)
    addresses = [str(maddr) for maddr in dht.get_visible_maddrs(latest=True)]
    _say({"addresses": addresses, "peer_id": str(dht.peer_id), "is_client": is_client})
    for line in map(str.strip, sys.stdin):
        _say(_connects(dht, line) if line.startswith("/") else _is_answered(dht, line))
    dht.shutdown()


def _say(fact: Any) -> None:
    sys.stdout.write(json.dumps(fact) + "\n")
    sys.stdout.flush()


def _connects(dht: hivemind.DHT, maddr: str) -> bool:
    """Whether the peer answers at this address, or through this relay."""
    at, _, peer_id = maddr.rpartition("/p2p/")
    return bool(dht.run_coroutine(_Connecting(PeerID.from_base58(peer_id), _Address(at))))


def _is_answered(dht: hivemind.DHT, peer_id: str) -> bool:
    """Whether a call finds this peer, of which nothing but its identity is given."""
    dht.get(peers_key(RUN), latest=True)  # as a peer's tracker does all the time
    return bool(dht.run_coroutine(_Calling(PeerID.from_base58(peer_id))))


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


@dataclass(frozen=True)
class _Connecting:
    """A coroutine function that can be sent to the DHT's process."""

    peer_id: PeerID
    address: _Address

    async def __call__(self, _dht: hivemind.DHT, node: Any) -> bool:
        try:
            await node.p2p._client.connect(self.peer_id, [self.address])
        except Exception:  # noqa: BLE001 - the daemon's own error; that it could not connect is the answer
            return False
        return True


@dataclass(frozen=True)
class _Calling:
    """Likewise; a client serves no call of the DHT, but the connection to it shows that it was found."""

    peer_id: PeerID

    async def __call__(self, _dht: hivemind.DHT, node: Any) -> bool:
        stub = node.protocol.get_stub(self.peer_id)
        with suppress(Exception):
            await stub.rpc_ping(dht_pb2.PingRequest(), timeout=CALL_S)
        return self.peer_id in {peer.peer_id for peer in await node.p2p.list_peers()}


if __name__ == "__main__":
    main()
