"""A line over which everything takes its time: passes TCP connections on, each byte after a delay.

    python -m benchmarks._delayed_line PORT DELAY_S

Prints the port on 127.0.0.1 that stands for PORT, and ends with its standard input. Used by authorization.py, because
Linux' own way to delay packets (`tc ... netem`) is missing from many containers' kernels.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress

HOST = "127.0.0.1"
CHUNK_BYTES = 65_536


async def serve(port: int, delay_s: float) -> None:
    """Pass on whoever connects, until the standard input ends."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward, answering = await asyncio.open_connection(HOST, port)
        with suppress(asyncio.CancelledError):  # the line is taken down
            await asyncio.gather(pass_on(reader, answering, delay_s), pass_on(onward, writer, delay_s))
        for side in writer, answering:
            side.close()

    server = await asyncio.start_server(connected, HOST, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Everything in order, each chunk `delay_s` after it has come; the next may come meanwhile."""
    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
    sending = asyncio.ensure_future(_deliver(under_way, writer))
    loop, chunk = asyncio.get_running_loop(), b"-"
    while chunk:
        chunk = await _read(reader)
        under_way.put_nowait((loop.time() + delay_s, chunk))
    await sending


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(CHUNK_BYTES)
    except ConnectionError:  # the other side was killed
        return b""


async def _deliver(under_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
    while True:
        due, chunk = await under_way.get()
        await asyncio.sleep(due - asyncio.get_running_loop().time())
        if not chunk:
            with suppress(OSError):  # it has gone, too
                writer.write_eof()
            return
        writer.write(chunk)


def main(arguments: Sequence[str]) -> None:
    """Serve as the command says."""
    port, delay_s = arguments
    asyncio.run(serve(int(port), float(delay_s)))


if __name__ == "__main__":
    main(sys.argv[1:])
