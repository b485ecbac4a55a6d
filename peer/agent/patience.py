"""Waiting for the coordinator or the keeper while it is away: pauses that grow, each told once.

`peer.agent.agent` waits so for the coordinator of a run that its device has joined before, `peer.agent.workers` for the
keeper.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_exponential

from peer.agent.terminal import duration
from peer.reporting.messages import Notice

FIRST_PAUSE_S = 2.0  # at most, and twice as long each time
LONGEST_PAUSE_S = 300.0
Result = TypeVar("Result")


async def patiently(
    work: Callable[[], Awaitable[Result]],
    may_pass: Callable[[BaseException], bool],
    tell: Callable[[Notice], None],
    rng: random.Random,
    rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Result:
    """Do the work until it succeeds, or fails with what does not pass by itself, which is raised.

    The upper half of each pause is drawn, so that all who miss the same do not come back at once.
    """
    growing = wait_exponential(multiplier=FIRST_PAUSE_S, max=LONGEST_PAUSE_S)

    def announce(call: RetryCallState) -> None:
        error = call.outcome.exception() if call.outcome else None
        tell(Notice("warning", f"{error} Trying again in {duration(call.upcoming_sleep)}."))

    retrying = AsyncRetrying(
        retry=retry_if_exception(may_pass),
        wait=lambda call: rng.uniform(0.5, 1.0) * growing(call),
        sleep=rest,
        before_sleep=announce,
        reraise=True,
    )
    result: Result = await retrying(work)
    return result
