"""A node of the swarm in a process of its own, without a model: joins as its plan says, then dials what it is told to.

    python tests/system/swarm_node.py PLAN

It prints its addresses and whether it is a client, as JSON; then, for each address that comes in a line, whether it
could connect to it; and leaves when its input ends.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hivemind
from hivemind.p2p import PeerID
from hivemind.utils.logging import use_hivemind_log_handler
from hivemind.utils.multiaddr import Multiaddr

from auth.credentials import Credentials
from peer.network.placement import Placement, Reach
from peer.swarm.dht import join_dht

RUN = "ways"
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
    _say({"addresses": [str(maddr) for maddr in dht.get_visible_maddrs(latest=True)], "is_client": is_client})
    for line in sys.stdin:
        _say(_connects(dht, line.strip()))
    dht.shutdown()


def _say(fact: Any) -> None:
    sys.stdout.write(json.dumps(fact) + "\n")
    sys.stdout.flush()


def _connects(dht: hivemind.DHT, maddr: str) -> bool:
    """Whether the peer answers at this address, or through this relay."""
    at, _, peer_id = maddr.rpartition("/p2p/")
    return bool(dht.run_coroutine(_Connecting(PeerID.from_base58(peer_id), _Address(at))))


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


if __name__ == "__main__":
    main()
