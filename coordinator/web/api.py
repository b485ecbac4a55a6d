"""The public JSON API, version 1: what the page itself uses, readable by everybody, written by nobody."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from coordinator.ledger import data_wait_share
from coordinator.presence import CheckpointRow
from coordinator.receipt_pages import MAX_STEPS, receipts_page
from coordinator.web.boundary import stream_place
from coordinator.web.live import LiveSnapshot
from coordinator.web.snapshot import Snapshot
from peer.phases import all_phases, phase_at
from peer.run_config import RunConfig

MAX_STEPS_PER_PAGE = 20_000
router = APIRouter(prefix="/api/v1", tags=["run"])


def overview_of(snapshot: Snapshot, config: RunConfig, join_link: str) -> dict[str, Any]:
    """Everything but the curve: names and numbers, times in Unix seconds."""
    swarm, checkpoint = snapshot.swarm, snapshot.checkpoint
    total = snapshot.samples
    step = swarm.step if swarm else 0
    phase = phase_at(config, step)
    losses = [row.loss for row in snapshot.steps if row.loss is not None]
    return {
        "run": {
            "name": config.run.name,
            "description": config.run.description,
            "language": config.run.language,
            "target_batch_size": phase.target_batch_size,
            "join_link": join_link,
        },
        "progress": {
            "step": step,
            "phase": phase.number,
            "samples_accumulated": swarm.samples_accumulated if swarm else 0,
            "target_batch_size": phase.target_batch_size,
            "eta_s": swarm.eta_s if swarm else None,
            "samples_per_second": swarm.samples_per_second if swarm else 0.0,
            "peers": swarm.peers if swarm else 0,
            "updated_at": swarm.updated_at if swarm else None,
        },
        "phases": [{**asdict(each), "text": str(each)} for each in all_phases(config)],
        "online": {
            "devices": len(snapshot.online),
            "members": len({session.member for session in snapshot.online}),
        },
        "totals": {
            "steps": snapshot.steps[-1].step if snapshot.steps else 0,
            "samples": total,
            "members": len(snapshot.contributions),
        },
        "data_wait": {
            "seconds": snapshot.data_wait_s,
            "share": data_wait_share(snapshot.contributions),
        },
        "loss": {"first": losses[0] if losses else None, "last": losses[-1] if losses else None},
        "contributions": [
            {
                "member": row.member,
                "samples": row.samples,
                "pending_samples": row.pending_samples,
                "averaged_bytes": row.averaged_bytes,
                "share": row.samples / total if total else 0.0,
                "devices": row.devices,
                "online": row.online,
                "samples_per_second": row.samples_per_second,
                "last_seen_at": row.last_seen_at,
                "data_wait_share": data_wait_share([row]),
            }
            for row in snapshot.contributions
        ],
        "checkpoint": None if checkpoint is None else _public(checkpoint),
        "validation": {
            "count": len(snapshot.validations),
            "newest": snapshot.validations[-1].facts if snapshot.validations else None,
        },
        "era": snapshot.era,
        "stale": snapshot.stale,
        "taken_at": snapshot.taken_at,
    }


def _public(checkpoint: CheckpointRow) -> dict[str, Any]:
    """What anybody may know of a checkpoint: not where on the operator's disk it lies."""
    return {
        "step": checkpoint.step,
        "size_bytes": checkpoint.size_bytes,
        "manifest_sha256": checkpoint.manifest_sha256,
        "created_at": checkpoint.created_at,
        "withheld": checkpoint.withheld,
    }


def _live(request: Request) -> LiveSnapshot:
    live: LiveSnapshot = request.app.state.live
    return live


def _overview(request: Request, snapshot: Snapshot) -> dict[str, Any]:
    state = request.app.state
    return overview_of(snapshot, state.config, state.join_link)


@router.get("/overview")
async def overview(request: Request) -> dict[str, Any]:
    """Where the run stands."""
    return _overview(request, _live(request).current)


@router.get("/steps")
async def steps(
    request: Request,
    after: Annotated[int, Query(ge=0, le=2**31 - 1, description="Only steps above this one.")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_STEPS_PER_PAGE)] = MAX_STEPS_PER_PAGE,
) -> dict[str, Any]:
    """The loss curve, one entry per global step, as columns."""
    snapshot = _live(request).current
    rows = [row for row in snapshot.steps if row.step > after][:limit]
    return {
        "era": snapshot.era,
        "step": [row.step for row in rows],
        "loss": [row.loss for row in rows],
        "samples": [row.samples for row in rows],
        "devices": [row.devices for row in rows],
        "completed_at": [row.completed_at for row in rows],
    }


@router.get("/receipts")
def receipts(
    request: Request,
    after: Annotated[int, Query(ge=0, le=2**31 - 1, description="Only steps above this one.")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_STEPS)] = MAX_STEPS,
) -> Response:
    """What devices claim, what others have received, signed, and what counts: see `manyhands verify`."""
    state = request.app.state
    content = json.dumps(receipts_page(state.sessions, state.config.run.name, after, limit)).encode()
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"ETag": etag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type="application/json", headers=headers)


@router.get("/checkpoints")
async def checkpoints(request: Request) -> dict[str, Any]:
    """The checkpoints that are kept, in the order of their steps."""
    snapshot = _live(request).current
    return {"era": snapshot.era, "checkpoints": [_public(row) for row in reversed(snapshot.checkpoints)]}


@router.get("/publications")
async def publications(request: Request) -> dict[str, Any]:
    """Which checkpoints can be fetched elsewhere, in the order of their steps."""
    public: frozenset[str] = request.app.state.public_places
    names = ("step", "manifest_sha256", "place", "location", "published_at")
    rows = [row for row in _live(request).current.publications if row.place in public and row.published_at is not None]
    return {"publications": [{name: getattr(row, name) for name in names} for row in rows]}


@router.get("/validations")
async def validations(request: Request) -> dict[str, Any]:
    """What held-out text says of each checkpoint, in the order of their steps."""
    snapshot = _live(request).current
    return {"era": snapshot.era, "validations": [row.facts for row in snapshot.validations]}


@router.get("/events", response_class=EventSourceResponse, dependencies=[Depends(stream_place)])
async def events(request: Request) -> AsyncIterator[ServerSentEvent]:
    """The overview again and again, as server-sent events named `overview`."""
    async for snapshot in _live(request).updates():
        yield ServerSentEvent(event="overview", data=_overview(request, snapshot))
