"""Whether the swarm is in two: the keeper's view of the DHT against what volunteers say that they see.

Each device tells in its session whether it sees the keeper. Who trains and has not seen it for as long as records hold
is in a DHT of its own, alone or with others. Nothing need be done but to tell: each session hears the keeper's newest
addresses, and peers that miss the keeper look for it there every few seconds (`peer.greeting`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from sqlalchemy.exc import DBAPIError

from coordinator.alarms import SPLIT, Alarm
from coordinator.presence import APART, online_sessions
from coordinator.raised_alarms import write_alarms
from coordinator.store.engine import Sessions

logger = logging.getLogger(__name__)
LOOK_EVERY_S = 5.0
PATIENCE_S = 30.0  # a keeper that was started again is found by everybody before
MAX_NAMED = 5


class SplitWatch:
    """The keeper's; `look` may be called as often as one likes."""

    def __init__(self, sessions: Sessions, clock: Callable[[], float]) -> None:
        self._sessions, self._clock = sessions, clock
        self._looked_at = self._whole_at = clock()

    def look(self, step: int) -> None:
        """Raise the alarm, or clear it; `step`: where the keeper's part of the swarm is."""
        now = self._clock()
        if now < self._looked_at + LOOK_EVERY_S:
            return
        self._looked_at = now
        try:
            found = self._split(step, now)
            for alarm in self._sessions.transact(lambda session: write_alarms(session, [SPLIT], found, now)):
                logger.error("alarm: %s", alarm.detail, extra={"step": step})
        except DBAPIError as error:
            logger.warning("nobody looked whether the swarm is whole: %s", error.orig)

    def _split(self, step: int, now: float) -> list[Alarm]:
        online = online_sessions(self._sessions, now)
        apart = [session for session in online if session.state == APART]
        if not apart:
            self._whole_at = now
        if now < self._whole_at + PATIENCE_S:
            return []
        names = sorted({session.member for session in apart})
        named = ", ".join(names[:MAX_NAMED]) + (", ..." if len(names) > MAX_NAMED else "")
        return [Alarm(SPLIT, step, f"{len(apart)} of {len(online)} devices train without seeing the keeper ({named})")]
