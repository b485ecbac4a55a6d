"""Rate-limited recording of refused requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from sqlalchemy.exc import SQLAlchemyError

from auth.errors import ManyhandsError
from coordinator.context.telemetry import Telemetry
from coordinator.members.membership import Membership
from coordinator.store.refusals import Kind
from coordinator.throttling.rate_limits import Pace

logger = logging.getLogger(__name__)

RECORDS_PER_SECOND, RECORDS_AT_ONCE = 5.0, 200.0


class RefusalRecorder:
    """A recorder of refusals with a rate limit, so that strangers cannot flood the database."""

    def __init__(self, membership: Membership, clock: Callable[[], float], telemetry: Telemetry) -> None:
        self._membership, self._clock, self._telemetry = membership, clock, telemetry
        self._pace = Pace(RECORDS_PER_SECOND, RECORDS_AT_ONCE, clock())
        self.unrecorded = 0

    async def record(self, kind: Kind, error: ManyhandsError, device_id: str | None = None) -> None:
        """Store a refusal; above the rate limit or on a database error, only count it."""
        self._telemetry.refusals.labels(kind).inc()
        if not self._pace.allows(self._clock()):
            self.unrecorded += 1
            return
        try:
            await asyncio.to_thread(self._membership.record_refusal, kind, error, device_id)
        except SQLAlchemyError:  # the request is refused in any case
            self.unrecorded += 1
            logger.exception("A refusal cannot be recorded")
