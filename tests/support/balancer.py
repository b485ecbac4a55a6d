"""What stands before replicas: a TCP port from which each connection goes to the first of them that takes it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from tests.support.waiting import PATIENCE_S

HOST = "127.0.0.1"
Backend = tuple[str, int]  # host, port


class Balancer:
    """Forwards bytes; used from its own event loop."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        self._backends = backends
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, port: int, ready: threading.Event, stop: asyncio.Event) -> None:
        """Listen until told to stop."""
        server = await asyncio.start_server(self._forward, HOST, port)
        ready.set()
        await stop.wait()
        server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for host, port in self._backends:
            with suppress(OSError):
                far_reader, far_writer = await asyncio.open_connection(host, port)
                self._spawn(_copy(reader, far_writer))
                self._spawn(_copy(far_reader, writer))
                return
        writer.close()

    def _spawn(self, copying: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(copying)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
    finally:
        writer.close()


@contextmanager
def balancing(port: int, backends: Sequence[Backend]) -> Iterator[None]:
    """Forward connections to `port` for the time of the block, in a thread of its own."""
    ready = threading.Event()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(Balancer(backends).serve(port, ready, stop))
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(PATIENCE_S)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
