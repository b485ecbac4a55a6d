"""Errors of the control plane as gRPC statuses, recorded where they refuse a request."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from auth.errors import ManyhandsError, UnreachableError
from coordinator.context.refusal_log import RefusalRecorder
from coordinator.store.refusals import Kind
from peer.protocol.errors import metadata_of, status_of

logger = logging.getLogger(__name__)


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
