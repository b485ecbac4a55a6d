"""Retries with exponential back-off while the coordinator or the keeper is unreachable.

`peer.agent.agent` uses these retries for the coordinator of a run that the device joined before,
and `peer.agent.workers` for the keeper. A notice announces each delay.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_exponential

from peer.agent.terminal import duration
from peer.reporting.messages import Notice

FIRST_PAUSE_S = 2.0  # upper bound of the first delay; doubles with each attempt
LONGEST_PAUSE_S = 300.0
Result = TypeVar("Result")


async def patiently(
    work: Callable[[], Awaitable[Result]],
    may_pass: Callable[[BaseException], bool],
    tell: Callable[[Notice], None],
    rng: random.Random,
    rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Result:
    """Retry `work` until it succeeds; raise the first error for which `may_pass` returns False.

    Delays grow exponentially, minus up to 50% jitter, so that peers do not all retry at once.
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
