"""The boundary of a gRPC request: what is refused is recorded, within bounds, and answered with its status."""

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
    """Records refusals, but no faster than a stranger should be able to make the database write."""

    def __init__(self, membership: Membership, clock: Callable[[], float], telemetry: Telemetry) -> None:
        self._membership, self._clock, self._telemetry = membership, clock, telemetry
        self._pace = Pace(RECORDS_PER_SECOND, RECORDS_AT_ONCE, clock())
        self.unrecorded = 0

    async def record(self, kind: Kind, error: ManyhandsError, device_id: str | None = None) -> None:
        """Store why a request was refused; beyond the pace, and where the database fails, it is only counted."""
        self._telemetry.refusals.labels(kind).inc()
        if not self._pace.allows(self._clock()):
            self.unrecorded += 1
            return
        try:
            await asyncio.to_thread(self._membership.record_refusal, kind, error, device_id)
        except SQLAlchemyError:  # the refusal itself stands, and its sentence goes to whom it is for
            self.unrecorded += 1
            logger.exception("A refusal cannot be recorded")
