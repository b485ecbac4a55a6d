"""The boundary of a gRPC request: what is refused is recorded, within bounds, and answered with its status."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from sqlalchemy.exc import SQLAlchemyError

from auth.errors import ManyhandsError, UnreachableError
from coordinator.membership import Membership
from coordinator.pace import Pace
from coordinator.refusals import Kind
from coordinator.telemetry import Telemetry
from peer.protocol.errors import metadata_of, status_of

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


@asynccontextmanager
async def answering(context: Any, refusals: RefusalRecorder, kind: Kind) -> AsyncIterator[None]:
    """Handle a request in the block: our errors become its recorded refusal, anything else an internal error."""
    try:
        yield
    except UnreachableError as error:  # our own doing, such as stopping: nothing to hold against the peer
        await context.abort(status_of(error), str(error), metadata_of(error))
    except ManyhandsError as error:
        logger.info("Refused a %s request: %s", kind, error)  # not whose: no address is kept, and logs are
        await refusals.record(kind, error)
        await context.abort(status_of(error), str(error), metadata_of(error))
    except Exception:  # the boundary of a request: logged here, and no detail goes to the network
        logger.exception("A %s request failed", kind)
        await context.abort(grpc.StatusCode.INTERNAL, "The coordinator failed at this request; its log says why.")
