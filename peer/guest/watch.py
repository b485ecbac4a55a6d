"""Looks at the machine every few seconds, decides, and lets the agent wait for what was decided."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

from peer.guest.decision import Action, Decision, decide
from peer.guest.limits import Limits
from peer.guest.readings import Readings

POLL_S = 5.0


def local_time(now: float) -> datetime:
    """Unix seconds as aware time on the clock on the wall here."""
    return datetime.fromtimestamp(now).astimezone()


class Watch:
    """One stay's; it says nothing before its first look."""

    def __init__(
        self,
        limits: Limits,
        read: Callable[[], Readings],
        now: Callable[[], datetime],
        on_reading: Callable[[Readings], None],
        on_change: Callable[[Decision], None],
        poll_s: float = POLL_S,
    ) -> None:
        self._limits, self._read, self._now, self._poll_s = limits, read, now, poll_s
        self._on_reading, self._on_change = on_reading, on_change
        self._decision = Decision(Action.GO)
        self._may_go, self._must_halt = asyncio.Event(), asyncio.Event()

    @property
    def decision(self) -> Decision:
        """The last one."""
        return self._decision

    async def may_go(self) -> None:
        """Wait until the worker may run."""
        await self._may_go.wait()

    async def must_halt(self) -> None:
        """Wait until it may not."""
        await self._must_halt.wait()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            readings = await asyncio.to_thread(self._read)
            self._on_reading(readings)
            self._take(decide(self._now(), self._limits, readings))
            await asyncio.sleep(self._poll_s)

    def _take(self, decision: Decision) -> None:
        changed, self._decision = decision != self._decision, decision
        goes = decision.action is Action.GO
        (self._may_go if goes else self._must_halt).set()
        (self._must_halt if goes else self._may_go).clear()
        if changed:
            self._on_change(decision)
