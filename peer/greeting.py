"""Finding the keeper again: a DHT that has lost it is told where it is, and the two become one.

Runs in the DHT's own process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from hivemind.dht import DHT
from hivemind.dht.node import DHTNode
from hivemind.p2p import PeerID
from hivemind.utils.multiaddr import Multiaddr

logger = logging.getLogger(__name__)


def peer_ids_of(addresses: Iterable[str]) -> tuple[PeerID, ...]:
    """Whose addresses these are, each peer once."""
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
