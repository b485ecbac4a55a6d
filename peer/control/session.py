"""The peer's session with the coordinator: one connected stay after another, for as long as the agent runs.

A lost line is opened again after a jittered, growing delay while training goes on; the access token is renewed at two
thirds of its life. Only what a person must mend (a revocation, a wrong version, ...) ends `run`, as an exception.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Coroutine

from auth.errors import ExpiredTokenError, RevokedError, UnreachableError
from peer.control.client import ControlClient
from peer.control.events import Connected, CutOff
from peer.control.session_stream import (
    Greeting,
    SessionSides,
    SessionStream,
    SessionTiming,
    pause,
    unless,
)
from peer.protocol import MAX_HARDWARE_CHARS, MAX_VERSION_CHARS

__all__ = ["Session", "SessionSides", "SessionTiming", "failed_rounds", "renewal_due_at", "retry_delay_s"]

logger = logging.getLogger(__name__)
RENEW_AT = 2 / 3  # of a token's lifetime


def retry_delay_s(failures: int, first_s: float, most_s: float, rng: random.Random) -> float:
    """Draw the wait before the next try from a window that doubles, so that peers do not all come at once."""
    return rng.uniform(0.1, 1.0) * min(most_s, first_s * 2.0 ** min(failures, 32))


def failed_rounds(failures: int, addresses: int) -> int:
    """Count full rounds of failures over all addresses; 0 within a round: the next address may answer.

    Only after the coordinator was tried at each of its addresses is there a reason to wait longer.
    """
    return 0 if failures % addresses else failures // addresses


def renewal_due_at(issued_at: float, expires_at: float) -> float:
    """Return the time (Unix seconds) at which a token is to be renewed."""
    return issued_at + RENEW_AT * (expires_at - issued_at)


class Session:
    """One device's session, which stays connected and keeps the token fresh."""

    def __init__(
        self,
        client: ControlClient,
        sides: SessionSides,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        hardware: str = "",
        software: str = "",
        timing: SessionTiming | None = None,
    ) -> None:
        self._client, self._sides, self._clock, self._rng = client, sides, clock, rng
        self._credentials = sides.credentials
        self._hardware, self._software = hardware[:MAX_HARDWARE_CHARS], software[:MAX_VERSION_CHARS]
        self._timing = timing or SessionTiming()

    async def run(self, stop: asyncio.Event) -> None:
        """Stay connected until `stop` is set; then the last reports and a goodbye are sent, if the line holds."""
        try:
            await _first_to_end(self._stay_connected(stop), self._keep_token_fresh())
        except RevokedError as error:
            self._sides.tell(CutOff(str(error)))
            raise

    async def _stay_connected(self, stop: asyncio.Event) -> None:
        failures, timing = 0, self._timing
        while not stop.is_set():
            try:
                await self._stay(stop)
                failures = 0
            except UnreachableError as error:
                failures += 1
                logger.info("No session with the coordinator (attempt %d): %s", failures, error)
                self._client.turn_to_next_address()
            rounds = failed_rounds(failures, self._client.addresses)
            await pause(stop, retry_delay_s(rounds, timing.retry_first_s, timing.retry_most_s, self._rng))

    async def _stay(self, stop: asyncio.Event) -> None:
        """One stay: raises `UnreachableError` if it was never welcomed, and returns when it is over."""
        call = self._client.open_session()
        stream = SessionStream(call, self._sides, self._timing)
        try:
            if await unless(stop, stream.greet(self._greeting())) is None:
                return
            self._sides.tell(Connected(True))
            try:
                await stream.converse(stop)
            except UnreachableError as error:
                logger.info("The session was lost: %s", error)
            finally:
                self._sides.tell(Connected(False))
        except ExpiredTokenError:
            await self._renew()  # the next stay begins with the new token
        finally:
            call.cancel()

    def _greeting(self) -> Greeting:
        credentials = self._credentials
        return Greeting(credentials.run, credentials.device_key, credentials.token_jwt, self._hardware, self._software)

    async def _keep_token_fresh(self) -> None:
        while True:
            if self._clock() >= self._renewal_due_at():
                try:
                    await self._renew()
                except UnreachableError as error:
                    logger.info("The access token could not be renewed yet: %s", error)
            await asyncio.sleep(self._timing.renew_check_s)

    def _renewal_due_at(self) -> float:
        try:
            token = self._credentials.access_token(self._clock())
        except ExpiredTokenError:
            return 0.0
        except RevokedError:  # the list names this device; the coordinator says why, over the session
            return math.inf
        return renewal_due_at(token.issued_at, token.expires_at)

    async def _renew(self) -> None:
        self._credentials.store_token(await self._client.renew(self._credentials.device_key))


async def _first_to_end(*coroutines: Coroutine[None, None, None]) -> None:
    """Run all until the first ends or fails, cancel the others, and raise what it raised."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in ended:
        task.result()
