"""Asks a coordinator a small question again and again, in a process of its own, so that no other work delays it.

    python -m benchmarks._greeter JOIN_LINK

Prints a line for each answer: when it was asked for (Unix seconds), and how many seconds it took. Used by stampede.py.
"""

from __future__ import annotations

import asyncio
import sys
import time

from auth.join_link import JoinLink
from peer.control.client import ControlClient

CALL_EVERY_S = 0.1


async def ask_again_and_again(link: JoinLink) -> None:
    """Until the process is ended: a challenge, as anybody may ask for one."""
    client = await ControlClient.connect(link, time.time)
    while True:
        asked_at, began = time.time(), time.perf_counter()
        await client.greet()
        print(asked_at, time.perf_counter() - began, flush=True)
        await asyncio.sleep(CALL_EVERY_S)


if __name__ == "__main__":
    asyncio.run(ask_again_and_again(JoinLink.parse(sys.argv[1])))
