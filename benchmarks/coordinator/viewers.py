"""Many simultaneous viewers of the dashboard: connections that read live events, each from a separate address."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

REQUEST = b"GET /api/v1/events HTTP/1.1\r\nHost: dashboard\r\nAccept: text/event-stream\r\n\r\n"
AT_ONCE = 32  # maximum number of connections opened concurrently
START_TIMEOUT_S = 120.0


@dataclass
class Crowd:
    """Simulated viewers, and the events received by all viewers."""

    events: int = 0
    listening: int = 0
    all_listen: threading.Event = field(default_factory=threading.Event)


@contextmanager
def watching(host: str, port: int, viewers: int) -> Iterator[Crowd]:
    """Keep viewers connected until the context exits; yield when each has an event, or raise `TimeoutError`."""
    crowd, loop = Crowd(), asyncio.new_event_loop()
    watch = loop.create_task(_watch(crowd, host, port, viewers))
    thread = threading.Thread(target=_run, args=(loop, watch))
    thread.start()
    try:
        if not crowd.all_listen.wait(START_TIMEOUT_S):
            raise TimeoutError(f"only {crowd.listening} of {viewers} viewers got an event")
        yield crowd
    finally:
        loop.call_soon_threadsafe(watch.cancel)
        thread.join()


def _run(loop: asyncio.AbstractEventLoop, watch: asyncio.Task[None]) -> None:
    loop.run_until_complete(asyncio.wait([watch]))
    loop.close()


async def _watch(crowd: Crowd, host: str, port: int, viewers: int) -> None:
    gate = asyncio.Semaphore(AT_ONCE)
    await asyncio.gather(*(_view(crowd, gate, host, port, number, viewers) for number in range(viewers)))


async def _view(crowd: Crowd, gate: asyncio.Semaphore, host: str, port: int, number: int, viewers: int) -> None:
    source = (f"127.7.{1 + number // 250}.{1 + number % 250}", 0)
    async with gate:
        reader, writer = await asyncio.open_connection(host, port, local_addr=source)
    try:
        async with gate:
            writer.write(REQUEST)
            await reader.readuntil(b"event: overview")
        crowd.listening += 1
        if crowd.listening == viewers:
            crowd.all_listen.set()
        while content := await reader.read(65_536):
            crowd.events += content.count(b"event: overview")
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
