"""Alarms about devices that cannot take part: a swarm in two parts, and devices that have been starting for minutes.

Each device reports its state in its session. A device that trains and has not seen the keeper for as long as records
hold is in a DHT of its own, alone or with others. A device that has been starting for minutes has not found the keeper,
or does not get the run's state. The alarm is all that is needed: each session receives the keeper's newest addresses,
and peers without a keeper look for it there every few seconds (`peer.swarm.dht`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from sqlalchemy.exc import DBAPIError

from coordinator.ledger.presence import APART, OnlineSession, online_sessions
from coordinator.statistics.alarms import SPLIT, STARTING, Alarm, write_alarms
from coordinator.store.engine import Database

logger = logging.getLogger(__name__)
LOOK_EVERY_S = 5.0
PATIENCE_S = 30.0  # a keeper that was started again is found by everybody before
STARTING_S = 180.0  # so long a device may take to begin
MAX_NAMED = 5


class DeviceWatch:
    """The keeper's; `look` may be called as often as one likes."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database, self._clock = database, clock
        self._looked_at = self._whole_at = clock()
        self._starting_since: dict[str, float] = {}  # by session

    def look(self, step: int) -> None:
        """Raise the alarms, or clear them; `step`: where the keeper's part of the swarm is."""
        now = self._clock()
        if now < self._looked_at + LOOK_EVERY_S:
            return
        self._looked_at = now
        try:
            online = online_sessions(self._database, now)
            found = [*self._split(online, step, now), *self._starting(online, step, now)]
            new = self._database.transact(lambda session: write_alarms(session, [SPLIT, STARTING], found, now))
        except DBAPIError as error:
            logger.warning("nobody looked whether all devices take part: %s", error.orig)
            return
        for alarm in new:
            logger.error("alarm: %s", alarm.detail, extra={"step": step})

    def _split(self, online: Sequence[OnlineSession], step: int, now: float) -> list[Alarm]:
        apart = [session for session in online if session.state == APART]
        if not apart:
            self._whole_at = now
        if now < self._whole_at + PATIENCE_S:
            return []
        detail = f"{len(apart)} of {len(online)} devices train without seeing the keeper ({_names(apart)})"
        return [Alarm(SPLIT, step, detail)]

    def _starting(self, online: Sequence[OnlineSession], step: int, now: float) -> list[Alarm]:
        starting = [session for session in online if session.state == "starting"]
        self._starting_since = {
            session.session_id: self._starting_since.get(session.session_id, now) for session in starting
        }
        late = [session for session in starting if now >= self._starting_since[session.session_id] + STARTING_S]
        if not late:
            return []
        minutes = f"{STARTING_S / 60:.0f} minutes"
        detail = f"{len(late)} of {len(online)} devices have been starting for more than {minutes} ({_names(late)})"
        return [Alarm(STARTING, step, detail)]


def _names(sessions: Sequence[OnlineSession]) -> str:
    names = sorted({session.member for session in sessions})
    return ", ".join(names[:MAX_NAMED]) + (", ..." if len(names) > MAX_NAMED else "")
