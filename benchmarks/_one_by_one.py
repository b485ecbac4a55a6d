"""The service as it would be without batches: each report, and each word of a device on itself, is a transaction.

    python -m benchmarks._one_by_one RUN_DIRECTORY

Prints `ready` when it serves; everything else is the product's own.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from coordinator.control import session as server_side
from coordinator.ledger.presence import checked_claim, touch_sessions
from coordinator.run.directory import RunDirectory
from coordinator.run.logs import LogStyle, log_to_stderr
from coordinator.service.service import serve


class OneByOne:
    """In place of batches: every item in a thread of its own, at once."""

    def __init__(self, work: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
        self._work = work

    async def add(self, item: Any) -> Any:
        """Do it alone."""
        [outcome] = await asyncio.to_thread(self._work, [item])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def close(self) -> None:
        """Nothing is kept."""


async def _take_presence(conversation: Any, message: Any) -> None:
    """As a session did it when each wrote for itself: its next message is read when this one is written."""
    services, stay = conversation._services, conversation._session
    now = services.clock()
    claim = checked_claim(message.step, message.own_samples, message.samples_per_second, message.state, now)
    await asyncio.to_thread(touch_sessions, services.database, {stay.id: claim})


def main(directory: str) -> None:
    """Serve until SIGTERM."""
    log_to_stderr("service", LogStyle())
    server_side.Batcher = OneByOne  # type: ignore[assignment,attr-defined]
    server_side._Conversation._take_presence = _take_presence  # type: ignore[method-assign,assignment]
    serve(RunDirectory.open(Path(directory)), lambda: print("ready", flush=True))


if __name__ == "__main__":
    main(sys.argv[1])
