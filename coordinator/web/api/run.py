"""The public JSON API, version 1: what the pages themselves use, readable by everybody, written by nobody.

Every answer is a model below, is built once for each state of the run (`coordinator.web.http.answers`), has an ETag,
and may be read by other sites' pages (`coordinator.web.http.cors`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from coordinator.publishing.publications import PublicationRow
from coordinator.statistics.receipt_pages import MAX_STEPS, receipts_page
from coordinator.web.http.answers import AnswerCache, Made, answer, encode
from coordinator.web.http.boundary import stream_place
from coordinator.web.state.events import EVENT_STREAM, overview_events
from coordinator.web.state.live import LiveSnapshot
from coordinator.web.state.overview import CheckpointFacts, Overview, ValidationFacts, checkpoint_facts, overview_of
from coordinator.web.state.snapshot import Snapshot

MAX_STEPS_PER_PAGE = 20_000
router = APIRouter(prefix="/api/v1", tags=["run"])
After = Annotated[int, Query(ge=0, le=2**31 - 1, description="Only steps above this one.")]


class Steps(BaseModel):
    """Global steps as columns, in order."""

    era: int
    step: list[int]
    loss: list[float | None]
    samples: list[int]
    devices: list[int]
    completed_at: list[float]
    next: int | None  # `after` of the next page; null: this is the last


class CheckpointList(BaseModel):
    """The checkpoints that are kept, in the order of their steps."""

    era: int
    checkpoints: list[CheckpointFacts]


class PublicationFacts(BaseModel):
    """One checkpoint at one place."""

    step: int
    manifest_sha256: str
    place: str
    location: str
    published_at: float


class Publications(BaseModel):
    """Where checkpoints can be fetched, in the order of their steps."""

    publications: list[PublicationFacts]


class Validations(BaseModel):
    """The checkpoints that were evaluated, in the order of their steps."""

    era: int
    validations: list[ValidationFacts]


def live_of(request: Request) -> LiveSnapshot:
    """The run as it stands."""
    live: LiveSnapshot = request.app.state.live
    return live


async def cached(request: Request, question: Hashable, version: Hashable, make: Callable[[], Made]) -> Response:
    """Answer with what `make` builds in a thread: once for this question and version, however many ask."""
    answers: AnswerCache = request.app.state.answers
    return answer(request, await answers.get(question, version, make))


@router.get("/overview", response_model=Overview)
async def overview(request: Request) -> Response:
    """Where the run stands."""
    state, snapshot = request.app.state, live_of(request).current
    make = partial(overview_of, snapshot, state.config, state.join_link)
    return await cached(request, "overview", snapshot.version, make)


@router.get("/steps", response_model=Steps)
async def steps(
    request: Request, after: After = 0, limit: Annotated[int, Query(ge=1, le=MAX_STEPS_PER_PAGE)] = MAX_STEPS_PER_PAGE
) -> Response:
    """What each global step came to."""
    snapshot = live_of(request).current
    make = partial(_steps, snapshot, after, limit)
    return await cached(request, ("steps", after, limit), snapshot.steps_version, make)


def _steps(snapshot: Snapshot, after: int, limit: int) -> Steps:
    found = [row for row in snapshot.steps if row.step > after]
    rows = found[:limit]
    return Steps(
        era=snapshot.era,
        step=[row.step for row in rows],
        loss=[row.loss for row in rows],
        samples=[row.samples for row in rows],
        devices=[row.devices for row in rows],
        completed_at=[row.completed_at for row in rows],
        next=rows[-1].step if len(found) > len(rows) else None,
    )


@router.get("/receipts")
def receipts(
    request: Request, after: After = 0, limit: Annotated[int, Query(ge=1, le=MAX_STEPS)] = MAX_STEPS
) -> Response:
    """What devices claim, what others have received, signed, and what counts: see `manyhands verify`."""
    state = request.app.state
    page = receipts_page(state.database, state.config.run.name, after, limit)
    return answer(request, encode(json.dumps(page).encode()))


@router.get("/checkpoints", response_model=CheckpointList)
async def checkpoints(request: Request) -> Response:
    """The checkpoints that are kept."""
    snapshot = live_of(request).current
    rows = [checkpoint_facts(row) for row in reversed(snapshot.checkpoints)]
    return await cached(
        request, "checkpoints", snapshot.version, lambda: CheckpointList(era=snapshot.era, checkpoints=rows)
    )


@router.get("/publications", response_model=Publications)
async def publications(request: Request) -> Response:
    """Which checkpoints can be fetched elsewhere."""
    public: frozenset[str] = request.app.state.public_places
    snapshot = live_of(request).current
    make = partial(_publications, snapshot.publications, public)
    return await cached(request, "publications", snapshot.version, make)


def _publications(rows: tuple[PublicationRow, ...], public: frozenset[str]) -> Publications:
    return Publications(
        publications=[
            PublicationFacts(
                step=row.step,
                manifest_sha256=row.manifest_sha256,
                place=row.place,
                location=row.location,
                published_at=row.published_at,
            )
            for row in rows
            if row.place in public and row.published_at is not None
        ]
    )


@router.get("/validations", response_model=Validations)
async def validations(request: Request) -> Response:
    """What held-out text says of each checkpoint."""
    snapshot = live_of(request).current

    def make() -> Validations:
        rows = [ValidationFacts(**row.facts) for row in snapshot.validations]
        return Validations(era=snapshot.era, validations=rows)

    return await cached(request, "validations", snapshot.version, make)


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={200: {"description": "Events for ever.", "content": {EVENT_STREAM: {}}}},
    dependencies=[Depends(stream_place)],
)
async def events(request: Request) -> StreamingResponse:
    """The overview again and again, when it has changed, as server-sent events named `overview`.

    Of the contributions it has the few largest.
    """
    return StreamingResponse(overview_events(request.app.state), media_type=EVENT_STREAM)
