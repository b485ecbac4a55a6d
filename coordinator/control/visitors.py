"""Calls without an account: the run's requirements, the caller's bandwidth and reachability.

`manyhands doctor` makes these calls before a person joins. To keep them cheap, the rate per caller
and the concurrent work are limited, and no data from callers is stored.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from auth.errors import RequestError
from coordinator.context.services import RunServices
from coordinator.ledger.keeper_status import read_swarm_status
from coordinator.throttling.rate_limits import Address, CallerPace
from peer.config.run import public_part
from peer.protocol import LOWEST_DIALLED_PORT, MAX_PROBE_BYTES, PROBE_CHUNK_BYTES, WORD_BYTES, control_pb2

DESCRIPTIONS_PER_MINUTE = 30
PROBES_PER_MINUTE = 20  # limit per address, which a household or school may share
DIALS_PER_MINUTE = 20
PROBES_AT_ONCE = 4
DIALS_AT_ONCE = 16
PROBE_TIMEOUT_S = 60.0
DIAL_TIMEOUT_S = 5.0
DATAGRAMS, DATAGRAM_EVERY_S = 3, 0.3


class Visitors:
    """The handlers of calls without an account, with limits; used from one event loop."""

    def __init__(self, services: RunServices, clock: Callable[[], float]) -> None:
        self._services = services
        self._descriptions = CallerPace(DESCRIPTIONS_PER_MINUTE, clock)
        self._probes = CallerPace(PROBES_PER_MINUTE, clock)
        self._dials = CallerPace(DIALS_PER_MINUTE, clock)
        self._probing = 0
        self._dialling: set[asyncio.Task[None]] = set()

    async def describe(self, caller: Address) -> control_pb2.DescribeReply:
        """Return the run's requirements, its swarm's addresses, and the caller's observed address."""
        self._descriptions.admit(caller)
        status = await asyncio.to_thread(read_swarm_status, self._services.database)
        config = self._services.config.at_step(0 if status is None else status.step)
        return control_pb2.DescribeReply(
            run_config_json=public_part(config).to_json(),
            swarm_addresses=() if status is None else status.addresses,
            observed_address=str(caller),
            samples_per_second=0.0 if status is None else status.samples_per_second,
        )

    async def probe(
        self, caller: Address, chunks: AsyncIterator[control_pb2.ProbeUp], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        """Receive data, then send its size and the requested data, within `PROBE_TIMEOUT_S`."""
        self._probes.admit(caller)
        if self._probing >= PROBES_AT_ONCE:
            raise RequestError("The coordinator is measuring other lines: try again in a minute.")
        self._probing += 1
        try:
            await asyncio.wait_for(_exchange(chunks, send), PROBE_TIMEOUT_S)
        except asyncio.TimeoutError as error:
            raise RequestError(f"The line was not measured within {PROBE_TIMEOUT_S:.0f} s.") from error
        finally:
            self._probing -= 1

    def dial_back(self, caller: Address, port: int, udp_port: int = 0) -> bytes:
        """Start connecting to the caller's own address. Return the random bytes to be sent there.

        A port of 0 is skipped. The caller chooses the port but not the content, and only a listener
        on that port sees the result, so callers cannot probe their neighbours.
        """
        _require_port("port", port, may_lack=bool(udp_port))
        _require_port("udp_port", udp_port, may_lack=True)
        self._dials.admit(caller)
        if len(self._dialling) >= DIALS_AT_ONCE:
            raise RequestError("The coordinator is dialling others: try again in a minute.")
        word = secrets.token_bytes(WORD_BYTES)
        dialling = asyncio.create_task(_say(caller, port, udp_port, word))
        self._dialling.add(dialling)
        dialling.add_done_callback(self._dialling.discard)
        return word

    async def close(self) -> None:
        """Cancel pending connections."""
        for dialling in self._dialling:
            dialling.cancel()
        await asyncio.gather(*self._dialling, return_exceptions=True)


async def _exchange(chunks: AsyncIterator[control_pb2.ProbeUp], send: Callable[[Any], Awaitable[None]]) -> None:
    await send(control_pb2.ProbeDown())  # tells the caller that it may send its data; rejected callers send none
    received, wanted = await _take_in(chunks)
    await send(control_pb2.ProbeDown(received_bytes=received))
    noise = secrets.token_bytes(PROBE_CHUNK_BYTES)  # download data that cannot be compressed
    for start in range(0, wanted, PROBE_CHUNK_BYTES):
        await send(control_pb2.ProbeDown(data=noise[: wanted - start]))


async def _take_in(chunks: AsyncIterator[control_pb2.ProbeUp]) -> tuple[int, int]:
    """Count received and requested bytes; return both. Raises `RequestError` above the limit."""
    received = wanted = 0
    async for chunk in chunks:
        received += len(chunk.data)
        wanted = wanted or chunk.download_bytes
        if max(received, wanted) > MAX_PROBE_BYTES:
            raise RequestError(f"A probe may carry {MAX_PROBE_BYTES} bytes in each direction.")
    return received, wanted


def _require_port(name: str, port: int, may_lack: bool) -> None:
    if not (LOWEST_DIALLED_PORT <= port <= 65535 or (may_lack and not port)):
        raise RequestError(f"`{name}` ({port}) must lie between {LOWEST_DIALLED_PORT} and 65535.")


async def _say(address: Address, port: int, udp_port: int, word: bytes) -> None:
    """Send bytes by TCP and UDP; ignore errors, because the caller notices missing bytes."""
    ways = [*([_connect(address, port, word)] if port else []), *([_send(address, udp_port, word)] if udp_port else [])]
    await asyncio.gather(*ways)


async def _connect(address: Address, port: int, word: bytes) -> None:
    with suppress(OSError, asyncio.TimeoutError):
        _, writer = await asyncio.wait_for(asyncio.open_connection(str(address), port), DIAL_TIMEOUT_S)
        writer.write(word)
        writer.close()
        await asyncio.wait_for(writer.wait_closed(), DIAL_TIMEOUT_S)


async def _send(address: Address, port: int, word: bytes) -> None:
    """Send several datagrams, in case of loss, from a port the caller's router has not seen."""
    loop = asyncio.get_running_loop()
    with suppress(OSError):
        transport, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=(str(address), port))
        try:
            for _ in range(DATAGRAMS):
                transport.sendto(word)
                await asyncio.sleep(DATAGRAM_EVERY_S)
        finally:
            transport.close()
