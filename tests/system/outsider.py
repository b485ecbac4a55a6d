"""A plain hivemind peer that knows the swarm's addresses and tries everything.

    python tests/system/outsider.py RUN ADDRESS... [--credentials DIR] [--token FILE]

With credentials it shows the token that lies there, whatever is wrong with it; with a token, which is a copy of a
member's, it repeats a request of that member. It prints what it gained as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import hivemind
import torch
from hivemind.averaging import DecentralizedAverager
from hivemind.averaging.control import StepControl
from hivemind.compression import serialize_torch_tensor
from hivemind.dht.routing import DHTID
from hivemind.p2p import P2PDaemonError, P2PHandlerError, PeerID
from hivemind.proto import averaging_pb2, dht_pb2
from hivemind.utils import get_dht_time

from auth.credentials import Credentials
from auth.swarm.authorizer import (
    MemberTokens,
    PeerRecordValidator,
    SwarmAuthorizer,
    key_id,
    peers_key,
    read_entries,
)
from auth.swarm.hivemind_patches import patch_hivemind
from peer.averaging.declarations import Declaration
from peer.transport.p2p import P2PTransport
from tests.support.waiting import PATIENCE_S

TRIES_S = 10.0  # to find a group


class HivemindMeetings(DecentralizedAverager):  # type: ignore[misc]  # hivemind has no types
    """Names hivemind's own RPCs, as an averager of hivemind would serve them."""


async def collect(stream: AsyncIterator[Any]) -> list[Any]:
    """Everything that an answer consists of."""
    return [message async for message in stream]


async def follow(p2p: hivemind.P2P, keeper: PeerID, run: str, sign: Callable[[bytes], bytes]) -> list[bytes]:
    """What the keeper says to a peer that follows it with a sound declaration, until the keeper ends the stream."""
    said = Declaration(run=run, era=0, step=0, compression="none", powersgd_rank=0, patience_s=60.0)

    async def words() -> AsyncIterator[bytes]:
        yield said.signed(sign)
        await asyncio.Event().wait()  # a follower stays

    stream = P2PTransport(p2p).stream(keeper.to_base58(), f"{run}_averager.meet", words())
    return await asyncio.wait_for(collect(stream), PATIENCE_S)


async def call_directly(p2p: hivemind.P2P, keeper: PeerID, run: str, sign: Callable[[bytes], bytes]) -> dict[str, Any]:
    """The keeper's meetings and the services of its averager, without asking the DHT for anything."""
    transport, peer = P2PTransport(p2p), keeper.to_base58()
    join = averaging_pb2.JoinRequest(
        schema_hash=b"x" * 20, expiration=get_dht_time() + 5, gather=b"", group_key=f"{run}_averager.0b"
    )
    part = averaging_pb2.AveragingData(
        code=averaging_pb2.PART_FOR_AVERAGING,
        group_id=b"y" * 20,
        tensor_part=serialize_torch_tensor(torch.ones(4)),
        weight=1e9,
    )

    async def request(content: bytes) -> AsyncIterator[bytes]:
        yield content

    plain = HivemindMeetings.get_stub(p2p, keeper, namespace=f"{run}_averager")
    try:
        joined = await collect(await plain.rpc_join_group(join))
    except P2PDaemonError:  # nobody serves it
        joined = []
    averages = await collect(transport.stream(peer, f"{run}_averager.reduce", request(part.SerializeToString())))
    downloaded = await collect(transport.stream(peer, f"{run}_averager.state", request(b"")))
    codes = [averaging_pb2.AveragingData.FromString(answer).code for answer in averages]
    return {
        "join_group": len(joined),
        "groups": len(await follow(p2p, keeper, run, sign)),
        "aggregate_part": [averaging_pb2.MessageCode.Name(code) for code in codes],
        "state_messages": len(downloaded),
    }


def try_to_average(dht: hivemind.DHT, run: str) -> bool:
    """The ordinary way: declare an averager under the run's name and look for a group."""
    averager = DecentralizedAverager(
        [torch.ones(4)], dht, start=True, prefix=f"{run}_averager", min_matchmaking_time=2.0, request_timeout=1.0
    )
    try:
        control = averager.step(timeout=TRIES_S, allow_retries=False, wait=False)
        assert isinstance(control, StepControl)
        return control.exception() is None
    finally:
        averager.shutdown()


def count(found: Any) -> int:
    """How many entries a look-up brought."""
    return len(found.value) if found is not None and isinstance(found.value, dict) else 0


def count_records(found: Any) -> int:
    """How many peers' records a look-up brought; a node holds the token that it shows itself."""
    return len(list(read_entries(getattr(found, "value", None), "record")))


def identity_of(run: str, directory: Path | None) -> dict[str, Any]:
    """The options of a node that shows the token in this directory; none of a node without one."""
    if directory is None:
        return {}
    credentials = Credentials(directory)
    tokens = MemberTokens(credentials)
    return {
        "identity_path": str(directory / "device.key"),
        "check_if_identity_free": False,  # that would take a daemon of its own
        "authorizer": SwarmAuthorizer(tokens, run),
        "record_validators": [PeerRecordValidator(credentials, tokens, run)],
    }


def start_shared_memory() -> None:
    """Start torch's manager of shared memory: torch waits one second for it, too little where several start at once."""
    for _ in range(10):
        with suppress(RuntimeError):
            torch.zeros(1).share_memory_()
            return


def main(run: str, addresses: list[str], credentials: Path | None, token: Path | None) -> None:
    """Attack and report."""
    start_shared_memory()
    patch_hivemind()
    dht = hivemind.DHT(
        initial_peers=addresses,
        start=True,
        host_maddrs=["/ip4/127.0.0.1/tcp/0"],
        startup_timeout=PATIENCE_S,
        ensure_bootstrap_success=False,  # nobody answers its pings
        **identity_of(run, credentials),
    )
    keeper = PeerID.from_base58(addresses[0].rsplit("/p2p/", 1)[1])
    gained: dict[str, Any] = {
        "records": count_records(dht.get(peers_key(run), latest=True)),
        "averagers": count(dht.get(f"{run}_averager.0b", latest=True)),
        "ping_answered": dht.run_coroutine(partial(ping, keeper=keeper)),
        "stored": dht.run_coroutine(partial(store, keeper=keeper)),
    }

    if token is not None:
        copied = token.read_text(encoding="utf-8")
        gained["replay_answered"] = dht.run_coroutine(partial(replay, keeper=keeper, run=run, token=copied))

    async def attack() -> dict[str, Any]:
        sign = bytes if credentials is None else Credentials(credentials).device_key.sign
        return await call_directly(await dht.replicate_p2p(), keeper, run, sign)

    gained |= asyncio.run(attack())
    gained["group"] = try_to_average(dht, run)
    print(json.dumps(gained), flush=True)  # noqa: T201
    dht.shutdown()


async def ping(_dht: hivemind.DHT, node: Any, keeper: PeerID) -> bool:
    """Whether the keeper answers this node's pings."""
    return await node.protocol.call_ping(keeper) is not None


async def replay(_dht: hivemind.DHT, node: Any, keeper: PeerID, run: str, token: str) -> bool:
    """Whether the keeper answers a member's request for the records, word for word."""
    request = dht_pb2.FindRequest(keys=[key_id(peers_key(run))])
    request.auth.client_access_token.signature = token.encode()
    try:
        await node.protocol.get_stub(keeper).rpc_find(request)
    except P2PHandlerError as refusal:
        return "no valid token" not in str(refusal)
    return True


async def store(_dht: hivemind.DHT, node: Any, keeper: PeerID) -> bool:
    """Whether the keeper stores something for this node."""
    key, ends_at = DHTID.generate(source="anything"), get_dht_time() + 60
    stored = await node.protocol.call_store(keeper, [key], [node.protocol.serializer.dumps("here")], ends_at)
    return bool(stored and stored[0])


def read_arguments() -> argparse.Namespace:
    """Read the command's arguments."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("addresses", nargs="+")
    parser.add_argument("--credentials", type=Path)
    parser.add_argument("--token", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main(**vars(read_arguments()))
