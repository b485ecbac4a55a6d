"""A peer that was shut out and knows it not: goes on knocking at every door of every honest peer.

    python -m tests.system.knocker RUN CREDENTIALS_DIR KEEPER_ADDRESS PEER_ID...

Prints a line of JSON for each round: the doors that let it in, as `PEER_ID door`, each with when it knocked there (Unix
seconds). The doors are a request to the DHT, joining a group, a part to be averaged, and the state. It ends when its
input does.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from hivemind.compression import serialize_torch_tensor
from hivemind.dht import DHT
from hivemind.dht.node import DHTNode
from hivemind.p2p import P2P, PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import get_dht_time
from hivemind.utils.logging import use_hivemind_log_handler

from auth.credentials import Credentials
from auth.swarm.authorizer import peers_key, record_subkey
from peer.averaging.averager import SwarmGradientAverager
from peer.network.placement import Placement
from peer.swarm.dht import start_dht
from peer.swarm.state import SwarmStateAverager

PATIENCE_S = 5.0
PAUSE_S = 0.1
RECORD_LIFE_S = 300.0


def _stop_at_end_of_input(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()


def main(run: str, directory: str, keeper: str, *others: str) -> None:
    """Join, then knock until told to stop."""
    use_hivemind_log_handler("nowhere")
    torch.set_num_threads(1)
    credentials = Credentials(Path(directory))
    dht = start_dht(run, credentials, [keeper], Placement(host_maddrs=("/ip4/127.0.0.1/tcp/0",)))
    stop = threading.Event()
    threading.Thread(target=_stop_at_end_of_input, args=(stop,), daemon=True).start()
    peers = [PeerID.from_base58(peer) for peer in (keeper.rsplit("/p2p/", 1)[1], *others)]
    asyncio.run(_knock_on(dht, run, credentials, peers, stop))
    dht.shutdown()


async def _knock_on(dht: DHT, run: str, credentials: Credentials, peers: list[PeerID], stop: threading.Event) -> None:
    p2p = await dht.replicate_p2p()
    while not stop.is_set():
        _publish(dht, run, credentials)
        opened = {}
        for peer in peers:
            knocked_at = time.time()
            if await asyncio.to_thread(dht.run_coroutine, _Ping(peer)):
                opened[f"{peer} dht"] = knocked_at
            for door, knock in _KNOCKS.items():
                knocked_at = time.time()
                if await _lets_in(knock, p2p, run, peer):
                    opened[f"{peer} {door}"] = knocked_at
        sys.stdout.write(json.dumps(opened) + "\n")
        sys.stdout.flush()
        await asyncio.sleep(PAUSE_S)


def _publish(dht: DHT, run: str, credentials: Credentials) -> None:
    """Its record, with which others learn its token."""
    own = record_subkey(credentials.device_key.peer_id)
    dht.store(peers_key(run), "here", get_dht_time() + RECORD_LIFE_S, subkey=own, return_future=True)


class _Ping:
    """A coroutine function that can be sent to the DHT's process."""

    def __init__(self, peer: PeerID) -> None:
        self._peer = peer

    async def __call__(self, _dht: DHT, node: DHTNode) -> bool:
        with suppress(asyncio.TimeoutError):
            return await asyncio.wait_for(node.protocol.call_ping(self._peer), PATIENCE_S) is not None
        return False


async def _lets_in(knock: Callable[[P2P, str, PeerID], Awaitable[bool]], p2p: P2P, run: str, peer: PeerID) -> bool:
    try:
        return await asyncio.wait_for(knock(p2p, run, peer), PATIENCE_S)
    except Exception:  # noqa: BLE001 - whatever the other's refusal looks like here
        return False


async def _knock_group(p2p: P2P, run: str, peer: PeerID) -> bool:
    stub = SwarmGradientAverager.get_stub(p2p, peer, namespace=f"{run}_grad_averager")
    request = averaging_pb2.JoinRequest(
        schema_hash=b"x" * 20, expiration=get_dht_time() + 5, gather=b"", group_key=f"{run}_grad_averager.0b"
    )
    return await _is_taken(await stub.rpc_join_group(request))


async def _knock_part(p2p: P2P, run: str, peer: PeerID) -> bool:
    stub = SwarmGradientAverager.get_stub(p2p, peer, namespace=f"{run}_grad_averager")
    part = averaging_pb2.AveragingData(
        code=averaging_pb2.PART_FOR_AVERAGING,
        group_id=b"y" * 20,
        tensor_part=serialize_torch_tensor(torch.ones(4)),
        weight=1.0,
    )

    async def parts() -> AsyncIterator[averaging_pb2.AveragingData]:
        yield part

    return await _is_taken(await stub.rpc_aggregate_part(parts()))


async def _knock_state(p2p: P2P, run: str, peer: PeerID) -> bool:
    stub = SwarmStateAverager.get_stub(p2p, peer, namespace=f"{run}_state_averager")
    async for _ in await stub.rpc_download_state(averaging_pb2.DownloadRequest()):
        return True
    return False


async def _is_taken(answers: AsyncIterator[Any]) -> bool:
    """Whether the call is turned down for what it asks (no such group) and not for who asks."""
    async for answer in answers:
        return int(answer.code) != int(averaging_pb2.PROTOCOL_VIOLATION)
    return False


_KNOCKS = {"group": _knock_group, "part": _knock_part, "state": _knock_state}
DOORS = ("dht", *_KNOCKS)

if __name__ == "__main__":
    main(*sys.argv[1:])
