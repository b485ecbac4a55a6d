"""A minimum rate for downloads, in place of a time limit, because large states take hours.

The minimum applies to states from other peers and to checkpoints from web servers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import TypeVar

Part = TypeVar("Part")
LEAST_BYTES_PER_S = 8192
PATIENCE_S = 120.0  # maximum time to wait for a sender's next bytes


async def at_least_rate(
    parts: AsyncIterable[Part], size_of: Callable[[Part], int], clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[Part]:
    """Yield parts as they arrive; raise `asyncio.TimeoutError` below the minimum rate.

    The time budget, at most `PATIENCE_S`, decreases while waiting for the sender and increases with
    each byte received. Pauses for the receiver's own rate limit do not count. The clock is checked
    only when a part arrives, so the transport needs its own timeout.
    """
    left_s, began_at = PATIENCE_S, clock()
    async for part in parts:
        left_s = min(PATIENCE_S, left_s - (clock() - began_at) + size_of(part) / LEAST_BYTES_PER_S)
        if left_s < 0:
            raise asyncio.TimeoutError(f"slower than {LEAST_BYTES_PER_S} bytes a second")
        yield part
        began_at = clock()
