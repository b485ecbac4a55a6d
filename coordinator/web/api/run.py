"""The public API for the run: overview, steps, receipts, checkpoints, validations and live events.

Most responses are built once per snapshot (`coordinator.web.http.answers`) and have an ETag. Other
sites may read them (CORS). Live events are encoded once for all listeners.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse, StreamingResponse
from pydantic import BaseModel, Field

from auth.errors import StorageError
from coordinator.checkpoints.manifest import MANIFEST, StoredCheckpoint, verify
from coordinator.checkpoints.tarball import Tarball
from coordinator.ledger.recorded_checkpoints import CheckpointRow
from coordinator.publishing.publications import PublicationRow
from coordinator.statistics.curve import kept_places, moving_average, smoothing_of, usual_range
from coordinator.statistics.run_tables import MAX_STEPS, receipts_page
from coordinator.web.http.answers import answer, columns, encode, has_already
from coordinator.web.state.overview import Overview, ValidationFacts, overview_of
from coordinator.web.state.snapshot import Snapshot
from coordinator.web.state.web_state import Web, WebState, place_among
from peer.config.run import RunConfig

MAX_STEPS_PER_PAGE = 20_000
router = APIRouter(prefix="/api/v1", tags=["run"])
After = Annotated[int, Query(ge=0, le=2**31 - 1, description="Only steps above this one.")]
ALIVE_S = 10.0  # maximum interval between events; pages reconnect after 25 s of silence
SHOWN_CONTRIBUTIONS = 5
EVENT_STREAM = "text/event-stream"
UNHELD = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # disables response buffering in nginx
TAR = "application/x-tar"
MAX_POINTS = 5000
MAX_SMOOTHING = 10_000
Points = Annotated[int, Query(ge=3, le=MAX_POINTS, description="Maximum number of points.")]
Window = Annotated[int, Field(ge=0, le=MAX_SMOOTHING)]
Smoothing = Annotated[
    Literal["auto"] | Window,
    Query(description="Number of steps to smooth over; `auto`: a number that suits the run's length."),
]
Step = Annotated[int, Query(ge=0, le=2**31 - 1)]


class Steps(BaseModel):
    """Global steps as columns, in order."""

    era: int
    step: list[int]
    loss: list[float | None]
    samples: list[int]
    devices: list[int]
    completed_at: list[float]
    next: int | None  # value of `after` for the next page; null on the last page


class CheckpointList(BaseModel):
    """The available checkpoints, ordered by step."""

    era: int
    checkpoints: Sequence[CheckpointRow]


class PublicationFacts(BaseModel):
    """The publication of a checkpoint to one destination."""

    step: int
    manifest_sha256: str
    place: str
    location: str
    published_at: float


class Publications(BaseModel):
    """Published checkpoints with their download locations, ordered by step."""

    publications: list[PublicationFacts]


class Validations(BaseModel):
    """The validation results of all evaluated checkpoints, ordered by step."""

    era: int
    validations: list[ValidationFacts]


@router.get("/overview", response_model=Overview)
async def overview(request: Request, web: Web) -> Response:
    """Return the run's current state."""
    snapshot = web.snapshot
    make = partial(overview_of, snapshot, web.config, web.join_link)
    return await web.answer(request, "overview", snapshot.version, make)


@router.get("/steps", response_model=Steps)
async def steps(
    request: Request,
    web: Web,
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_STEPS_PER_PAGE)] = MAX_STEPS_PER_PAGE,
) -> Response:
    """Return the loss, samples, devices and time of each global step."""
    snapshot = web.snapshot
    make = partial(_steps, snapshot, after, limit)
    return await web.answer(request, ("steps", after, limit), snapshot.steps_version, make)


def _steps(snapshot: Snapshot, after: int, limit: int) -> Steps:
    found = [row for row in snapshot.steps if row.step > after]
    rows = found[:limit]
    return Steps(
        era=snapshot.era,
        **columns(rows, "step", "loss", "samples", "devices", "completed_at"),
        next=rows[-1].step if len(found) > len(rows) else None,
    )


@router.get("/receipts")
def receipts(
    request: Request, web: Web, after: After = 0, limit: Annotated[int, Query(ge=1, le=MAX_STEPS)] = MAX_STEPS
) -> Response:
    """Return claims, signed receipts and confirmed samples, to be checked by `manyhands verify`."""
    page = receipts_page(web.database, web.config.run.name, after, limit)
    return answer(request, encode(json.dumps(page).encode()))


@router.get("/checkpoints", response_model=CheckpointList)
async def checkpoints(request: Request, web: Web) -> Response:
    """List the available checkpoints."""
    snapshot = web.snapshot
    make = partial(CheckpointList, era=snapshot.era, checkpoints=snapshot.checkpoints[::-1])
    return await web.answer(request, "checkpoints", snapshot.version, make)


@router.get("/checkpoints/{step}/{name}", response_class=FileResponse)
@router.head("/checkpoints/{step}/{name}", include_in_schema=False)
async def checkpoint_file(request: Request, web: Web, step: int, name: str) -> Response:
    """Download a file of a published checkpoint; supports `Range`, `If-Range` and `If-None-Match`.

    Only the manifest and the files listed in it are served. The control plane and
    `/api/v1/checkpoints` provide the manifest's digest.
    """
    row, folder = _published(web.snapshot, step), web.services.checkpoint_dir(step)
    path = folder / name
    with _kept(step):
        etag = f'"{await asyncio.to_thread(_digest, row, folder, name)}"'
        headers = {"ETag": etag, "Cache-Control": "no-cache"}  # the files change if the step is undone and repeated
        if has_already(request, etag):
            return Response(status_code=304, headers=headers)
        return FileResponse(path, headers=headers, filename=name, stat_result=await asyncio.to_thread(path.stat))


@contextmanager
def _kept(step: int) -> Iterator[None]:
    """Raise `HTTPException` 404 if the block fails to read a removed or replaced checkpoint."""
    try:
        yield
    except (OSError, StorageError) as error:
        raise HTTPException(404, f"The checkpoint of step {step} is no longer kept.") from error


def _digest(row: CheckpointRow, folder: Path, name: str) -> str:
    """Return the SHA-256 that the manifest lists for a file. Raises 404 for an unlisted file."""
    if name == MANIFEST:
        return row.manifest_sha256
    files = _stored(row, folder).manifest.files
    if name not in files:
        raise HTTPException(404, f"The checkpoint of step {row.step} has no such file.")
    return files[name].sha256


def _stored(row: CheckpointRow, folder: Path) -> StoredCheckpoint:
    """Return the checkpoint in `folder`. Raises `StorageError` if it does not match `row`."""
    stored = verify(folder, files=())
    if stored.manifest_sha256 != row.manifest_sha256:
        raise StorageError(f"{folder} holds another checkpoint.")
    return stored


@router.get(
    "/checkpoints/{step}.tar",
    response_class=StreamingResponse,
    responses={200: {"description": "The tar.", "content": {TAR: {}}}},
    dependencies=[Depends(place_among(lambda web: web.downloads, "Others are downloading checkpoints"))],
)
@router.head("/checkpoints/{step}.tar", include_in_schema=False)
async def whole_checkpoint(request: Request, web: Web, step: int) -> Response:
    """Download a published checkpoint as a tar with one folder; supports `If-None-Match`.

    The tar is generated on the fly, so only downloads of single files can be resumed.
    """
    row = _published(web.snapshot, step)
    name = f"{web.config.run.name}-step-{step}"
    with _kept(step):
        folder = web.services.checkpoint_dir(step)
        tarball = await asyncio.to_thread(lambda: Tarball.of(_stored(row, folder), name))
    headers = {
        "ETag": f'"{row.manifest_sha256}.tar"',
        "Cache-Control": "no-cache",
        "Content-Disposition": f'attachment; filename="{name}.tar"',
    }
    if has_already(request, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    headers["Content-Length"] = str(tarball.size_bytes)
    if request.method == "HEAD":
        return Response(headers=headers, media_type=TAR)
    return StreamingResponse(tarball.pieces(), headers=headers, media_type=TAR)


def _published(snapshot: Snapshot, step: int) -> CheckpointRow:
    """Return a step's checkpoint. Raises `HTTPException` 404 if it is missing or withheld."""
    row = next((row for row in snapshot.published if row.step == step), None)
    if row is None:
        raise HTTPException(404, f"There is no published checkpoint of step {step}.")
    return row


@router.get("/publications", response_model=Publications)
async def publications(request: Request, web: Web) -> Response:
    """List the checkpoints that are available for download on other sites."""
    public = frozenset(each.to for each in web.directory.settings.publications if each.is_public)
    snapshot = web.snapshot
    make = partial(_publications, snapshot.publications, public)
    return await web.answer(request, "publications", snapshot.version, make)


def _publications(rows: tuple[PublicationRow, ...], public: frozenset[str]) -> Publications:
    shown = [row for row in rows if row.place in public and row.published_at is not None]
    return Publications(publications=[PublicationFacts(**vars(row)) for row in shown])


@router.get("/validations", response_model=Validations)
async def validations(request: Request, web: Web) -> Response:
    """Return the results of each checkpoint on held-out text."""
    snapshot = web.snapshot

    def make() -> Validations:
        rows = [ValidationFacts(**row.facts) for row in snapshot.validations]
        return Validations(era=snapshot.era, validations=rows)

    return await web.answer(request, "validations", snapshot.version, make)


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={200: {"description": "An endless stream of events.", "content": {EVENT_STREAM: {}}}},
    dependencies=[Depends(place_among(lambda web: web.streams, "Too many streams are open"))],
)
async def events(web: Web) -> StreamingResponse:
    """Stream the overview whenever it changes, as server-sent events named `overview`.

    Only the largest contributions are included.
    """
    return StreamingResponse(overview_events(web, web.live.updates()), headers=UNHELD, media_type=EVENT_STREAM)


async def overview_events(web: WebState, updates: AsyncIterable[Snapshot]) -> AsyncIterator[bytes]:
    """Yield the overview of the first snapshot, and then each changed overview.

    An unchanged overview is repeated every `ALIVE_S` seconds as a heartbeat.
    """
    sent, sent_at = b"", float("-inf")
    async for snapshot in updates:
        make = partial(_overview_event, snapshot, web.config, web.join_link)
        event = (await web.answers.get("event", snapshot.version, make, EVENT_STREAM)).content
        if _news(event) != sent or snapshot.taken_at - sent_at >= ALIVE_S:
            sent, sent_at = _news(event), snapshot.taken_at
            yield event


def _overview_event(snapshot: Snapshot, config: RunConfig, join_link: str) -> bytes:
    """Encode an event: the JSON of `/api/v1/overview`, with only a few contributions."""
    overview = overview_of(snapshot, config, join_link, SHOWN_CONTRIBUTIONS)
    return f"event: overview\ndata: {overview.model_dump_json()}\n\n".encode()


def _news(event: bytes) -> bytes:
    """Return an event without its last field, `taken_at`, to compare it with the next event."""
    return event[: event.rindex(b',"taken_at"')]


class Curve(BaseModel):
    """Points of the loss curve as columns, in order; steps without a loss are omitted."""

    era: int
    steps: int  # number of points between `after` and `until` before downsampling
    smoothing: int
    step: list[int]
    loss: list[float]
    smoothed: list[float] | None  # null if `smoothing` is 0
    usual: Annotated[list[float], Field(min_length=2, max_length=2)] | None  # lowest and highest loss without the
    # initial drop and outliers; null for a short run
    samples: list[int]
    samples_total: list[int]  # total number of samples up to this step
    completed_at: list[float]


@router.get("/curve", response_model=Curve)
async def curve(
    request: Request,
    web: Web,
    points: Points = 1000,
    smoothing: Smoothing = 0,
    after: Step = 0,
    until: Step = 2**31 - 1,
) -> Response:
    """Return the loss by step, samples and time, downsampled (largest triangle three buckets).

    `smoothing` adds an exponential moving average over about that many steps, computed before
    downsampling. `usual` is the range for a chart's axis, without the initial drop and outliers.
    """
    snapshot = web.snapshot
    make = partial(_curve_points, snapshot, points, smoothing, after, until)
    return await web.answer(request, ("curve", points, smoothing, after, until), snapshot.curve_version, make)


def _curve_points(snapshot: Snapshot, points: int, smoothing: int | Literal["auto"], after: int, until: int) -> Curve:
    """Build the response for `/api/v1/curve`."""
    totals = accumulate(row.samples for row in snapshot.steps)
    known = [(row, total, row.loss) for row, total in zip(snapshot.steps, totals, strict=True) if row.loss is not None]
    window = smoothing_of(len(known)) if smoothing == "auto" else smoothing
    averages = moving_average([loss for _, _, loss in known], window) if window else None
    held_out = [(float(row.step), row.loss) for row in snapshot.validations if row.loss is not None]
    usual = usual_range([(float(row.step), loss) for row, _, loss in known], held_out)
    inside = [place for place, (row, _, _) in enumerate(known) if after < row.step <= until]
    xs, ys = [float(known[place][0].step) for place in inside], [known[place][2] for place in inside]
    kept = [inside[place] for place in kept_places(xs, ys, points)]
    chosen = [known[place] for place in kept]
    return Curve(
        era=snapshot.era,
        steps=len(inside),
        smoothing=window,
        step=[row.step for row, _, _ in chosen],
        loss=[round(loss, 5) for _, _, loss in chosen],
        smoothed=None if averages is None else [round(averages[place], 5) for place in kept],
        usual=None if usual is None else [round(loss, 5) for loss in usual],
        samples=[row.samples for row, _, _ in chosen],
        samples_total=[total for _, total, _ in chosen],
        completed_at=[round(row.completed_at, 1) for row, _, _ in chosen],
    )
