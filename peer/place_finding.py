"""What the agent finds out before it joins the swarm: whether others reach this machine, and how fast its line is."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from auth.errors import ManyhandsError
from peer.control_client import ControlClient
from peer.dial_back import is_dialled, listening, listening_port, own_addresses
from peer.line import measure_line
from peer.place import UNMEASURED, IPAddress, Place, place_of

PROBE_TIMEOUT_FACTOR = 6


@dataclass(frozen=True)
class Patience:
    """How long to try, in seconds."""

    probe_s: float = 1.0  # in each direction
    dial_back_s: float = 6.0  # the coordinator tries for five


async def find_place(
    client: ControlClient, listen: tuple[str, ...], client_mode: bool, patience: Patience = Patience()
) -> Place:
    """Where this machine stands; what cannot be found out (an older coordinator, too many who ask) is assumed."""
    measured = await measured_bandwidth(client, patience)
    bandwidth = UNMEASURED if measured is None else measured
    if client_mode:
        return Place("client", listen, None, bandwidth)
    dialled, port = await _is_dialled(client, listen, patience.dial_back_s)
    observed = await _observed_address(client)
    return place_of(
        dialled=dialled, observed=observed, own=own_addresses(), port=port, listen=listen, bandwidth=bandwidth
    )


async def measured_bandwidth(client: ControlClient, patience: Patience = Patience()) -> float | None:
    """Bytes per second of the line's slower direction; None where the coordinator does not measure it (now)."""
    call = client.open_probe(timeout_s=PROBE_TIMEOUT_FACTOR * patience.probe_s)
    try:
        speed = await measure_line(call, patience.probe_s, time.monotonic)
    except (grpc.aio.AioRpcError, ManyhandsError):
        return None
    finally:
        call.cancel()
    return min(speed.up, speed.down)


async def _is_dialled(client: ControlClient, listen: Sequence[str], timeout_s: float) -> tuple[bool | None, int]:
    """Whether the coordinator can dial the port where this peer is going to listen, and which that is."""
    words: asyncio.Queue[bytes] = asyncio.Queue()
    wanted = listening_port(listen)
    try:
        async with listening(wanted, words) as port:
            return await is_dialled(client, port, words, timeout_s), port
    except (OSError, ManyhandsError):  # the p2p daemon will say so if the port is taken
        return None, wanted


async def _observed_address(client: ControlClient) -> IPAddress | None:
    try:
        return ipaddress.ip_address((await client.describe()).observed_address)
    except (ManyhandsError, ValueError):
        return None
