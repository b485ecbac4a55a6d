"""The least rate of a download, below which it is given up; its length has no limit, as large states take hours.

Used for the state that a donor gives, and for the checkpoint that a web server has.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import TypeVar

Part = TypeVar("Part")
LEAST_BYTES_PER_S = 8192
PATIENCE_S = 120.0  # with a sender that gives nothing; one that gives too little is left later


async def at_least_rate(
    parts: AsyncIterable[Part], size_of: Callable[[Part], int], clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[Part]:
    """Pass on parts as long as they come at the least rate. Raises `asyncio.TimeoutError` if they do not.

    Patience shrinks while the sender is waited for, and each byte gives back its share of it, up to the whole. The
    time that the receiver itself takes, to keep to its own limits, is not counted. Silence must be ended below: this
    looks at the clock when a part has come.
    """
    left_s, began_at = PATIENCE_S, clock()
    async for part in parts:
        left_s = min(PATIENCE_S, left_s - (clock() - began_at) + size_of(part) / LEAST_BYTES_PER_S)
        if left_s < 0:
            raise asyncio.TimeoutError(f"slower than {LEAST_BYTES_PER_S} bytes a second")
        yield part
        began_at = clock()
