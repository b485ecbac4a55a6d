"""Search for the keeper's addresses: the coordinator sends them, and is asked again when a worker misses the keeper.

The worker has no connection to the coordinator, so its agent asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress

from auth.errors import ManyhandsError
from peer.network.endpoints import are_keepers, best_ways


class KeeperSearch:
    """The search of one stay. `ask` gets the coordinator's newest addresses; `tell` sends workers those that answer."""

    def __init__(self, ask: Callable[[], Awaitable[Sequence[str]]], tell: Callable[[tuple[str, ...]], None]) -> None:
        self._ask, self._tell = ask, tell
        self.known = asyncio.Event()  # the keeper has been there
        self.addresses: tuple[str, ...] = ()  # as they were told last
        self._telling: asyncio.Task[None] | None = None

    def hear(self, addresses: Sequence[str]) -> None:
        """Take in the keeper's addresses, and tell the workers if they are news."""
        if self._take(addresses):
            self._begin(self._tell_ways())

    def seek(self) -> None:
        """Ask for the keeper's addresses again, and try them: a worker does not find the keeper."""
        self._begin(self._ask_again())

    def stop(self) -> None:
        """Stop looking for the keeper."""
        if self._telling is not None:
            self._telling.cancel()

    def _take(self, addresses: Sequence[str]) -> bool:
        """Keep addresses if they can be a keeper's; return whether they are news."""
        if not addresses or tuple(addresses) == self.addresses or not are_keepers(addresses):
            return False
        self.addresses = tuple(addresses)
        self.known.set()
        return True

    def _begin(self, telling: Coroutine[None, None, None]) -> None:
        self.stop()
        self._telling = asyncio.ensure_future(telling)

    async def _ask_again(self) -> None:
        with suppress(ManyhandsError):  # the session tells them when the coordinator is back
            self._take(await self._ask())
        await self._tell_ways()

    async def _tell_ways(self) -> None:
        self._tell(await best_ways(self.addresses))
