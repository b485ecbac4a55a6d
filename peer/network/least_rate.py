"""A minimum rate for downloads: slower ones are aborted. Their duration has no limit.

Large states take hours. It applies to a donor's state and to a web server's checkpoint.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import TypeVar

Part = TypeVar("Part")
LEAST_BYTES_PER_S = 8192
PATIENCE_S = 120.0  # with a sender that sends nothing; a slow sender is given up later


async def at_least_rate(
    parts: AsyncIterable[Part], size_of: Callable[[Part], int], clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[Part]:
    """Pass on parts while they arrive at the minimum rate. Raises `asyncio.TimeoutError` otherwise.

    The patience left decreases while waiting for the sender, and increases with each byte received,
    up to `PATIENCE_S`. The receiver's own pauses, to respect its rate limits, are not counted. The
    clock is checked only when a part arrives, so the transport underneath must time out on silence.
    """
    left_s, began_at = PATIENCE_S, clock()
    async for part in parts:
        left_s = min(PATIENCE_S, left_s - (clock() - began_at) + size_of(part) / LEAST_BYTES_PER_S)
        if left_s < 0:
            raise asyncio.TimeoutError(f"slower than {LEAST_BYTES_PER_S} bytes a second")
        yield part
        began_at = clock()
