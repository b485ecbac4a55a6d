"""Rate limits of web servers, as stated in `Retry-After` headers (RFC 9110, section 10.2.3)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

import aiohttp

TOO_MANY, UNAVAILABLE = 429, 503
LONGEST_WAIT_S = 60.0  # longest total delay of a request; beyond it, the request fails


class RateLimitedError(aiohttp.ClientError):
    """The error for a request that a web server rejected because of its rate limit."""


async def wait_as_told(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Resend a request after the delay in a busy server's `Retry-After`; middleware for aiohttp.

    Raises `RateLimitedError` if a rate-limiting server gives no delay or too long a delay.
    """
    left_s = LONGEST_WAIT_S
    while True:
        response = await handler(request)
        if response.status not in (TOO_MANY, UNAVAILABLE):
            return response
        wait_s = seconds_to_wait(response.headers.get("Retry-After", ""))
        if wait_s is not None and wait_s <= left_s:
            left_s -= max(wait_s, 1.0)
            response.release()
            await asyncio.sleep(wait_s)
        elif response.status == TOO_MANY:
            response.release()
            asked = "" if wait_s is None else f": it asks to wait for {wait_s:.0f} s"
            raise RateLimitedError(f"the server limits how often it is asked (status {TOO_MANY}){asked}")
        else:
            return response


def seconds_to_wait(retry_after: str, clock: Callable[[], float] = time.time) -> float | None:
    """Return the delay in seconds stated in a `Retry-After` header, or None if malformed."""
    if retry_after.strip().isdecimal() and len(retry_after) < 12:
        return float(retry_after)
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - clock())
    except (ValueError, OverflowError):
        return None
