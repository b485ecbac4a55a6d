"""The run's history: tables for download by researchers, moments in stretches of a hundred steps, and milestones.

Few downloads run at once, because making one takes a while.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import IO, Annotated, Literal

from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from coordinator.ledger.reading import LATE_STEPS
from coordinator.statistics.history import TableName, csv_lines, write_parquet
from coordinator.statistics.milestones import milestones
from coordinator.statistics.moments import CHUNK_STEPS, Chunk, read_chunk
from coordinator.web.state.snapshot import Snapshot
from coordinator.web.state.web_state import Web, place_among

router = APIRouter(prefix="/api/v1")

MAX_CHUNK = 2**31 // CHUNK_STEPS
SETTLED_S = 60  # so old may be what is told of steps that are long over: late receipts and other names still change it
PIECE_BYTES = 64 * 1024
PARQUET = "application/vnd.apache.parquet"
Format = Literal["csv", "parquet"]
File = {"description": "The table.", "content": {"text/csv": {}, PARQUET: {}}}


class DeviceName(BaseModel):
    """A device's member, and the device's own description; `number` tells a member's devices apart."""

    number: int
    member: str
    hardware: str


class AveragingGroup(BaseModel):
    """Devices that averaged with each other: `size` counts the keeper and those who only average, too."""

    size: int
    samples: int | None
    averaging_s: float
    devices: list[int]


class LostShareFacts(BaseModel):
    """Samples that came to nothing."""

    device: int
    samples: int
    reason: str


class MomentFacts(BaseModel):
    """A global step; devices are places in the stretch's list."""

    step: int
    era: int
    completed_at: float
    loss: float | None
    samples: int
    target_batch_size: int
    shares: list[tuple[int, int]]  # device, samples that count; the most first
    groups: list[AveragingGroup]
    lost: list[LostShareFacts]
    refused: dict[str, int]  # since the step before, by kind
    online: list[int]
    undone: int  # devices that had taken this step before a return to a checkpoint undid it
    returned: bool  # the run returned to the checkpoint of this step


class Moments(BaseModel):
    """A stretch of the run: what there is of the steps `first` to `last`."""

    first: int
    last: int
    steps_per_chunk: int
    devices: list[DeviceName]
    moments: list[MomentFacts]


class MilestoneFacts(BaseModel):
    """A milestone; its value is in its kind's unit: steps, samples, devices, nats."""

    kind: Literal["first-step", "samples", "devices", "loss"]
    value: float
    step: int
    at: float


class Milestones(BaseModel):
    """All of them, in the order of steps."""

    era: int
    milestones: list[MilestoneFacts]


@router.get("/moments/{chunk}", response_model=Moments, tags=["history"])
async def moments(request: Request, web: Web, chunk: Annotated[int, Path(ge=0, lt=MAX_CHUNK)]) -> Response:
    """Who was online, which groups averaged, what failed and the loss, at the 100 global steps from 100 * chunk + 1."""
    snapshot = web.snapshot
    last = snapshot.steps[-1].step if snapshot.steps else 0
    is_over = (chunk + 1) * CHUNK_STEPS < last - LATE_STEPS
    version = (snapshot.era, snapshot.taken_at // SETTLED_S if is_over else snapshot.steps_version)
    return await web.answer(request, ("moments", chunk), version, lambda: moments_of(read_chunk(web.database, chunk)))


@router.get("/milestones", response_model=Milestones, tags=["history"])
async def all_milestones(request: Request, web: Web) -> Response:
    """What was reached: the first step, powers of ten of samples, records of devices and of loss."""
    snapshot = web.snapshot
    return await web.answer(request, "milestones", snapshot.curve_version, partial(milestones_of, snapshot))


def moments_of(chunk: Chunk) -> Moments:
    """A stretch as it is sent."""
    return Moments(**asdict(chunk), steps_per_chunk=CHUNK_STEPS)


def milestones_of(snapshot: Snapshot) -> Milestones:
    """All milestones as they are sent."""
    found = milestones(snapshot.steps, snapshot.validations)
    facts = [MilestoneFacts(kind=each.kind.value, value=each.value, step=each.step, at=each.at) for each in found]
    return Milestones(era=snapshot.era, milestones=facts)


@router.get(
    "/history/{table}.{format}",
    response_class=StreamingResponse,
    responses={200: File},
    tags=["run"],
    dependencies=[Depends(place_among(lambda web: web.exports, "Others are downloading the history"))],
)
def history(
    web: Web,
    table: Annotated[TableName, Path()],
    format: Annotated[Format, Path()],  # noqa: A002
) -> StreamingResponse:
    """A table of the whole history: `steps`, `contributions` (of devices to steps), `sessions`, `validations`."""
    database, run = web.database, web.config.run.name
    headers = {"Content-Disposition": f'attachment; filename="{run}-{table}.{format}"', "Cache-Control": "no-cache"}
    if format == "csv":
        return StreamingResponse(csv_lines(database, table), media_type="text/csv; charset=utf-8", headers=headers)
    file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by whoever sends it
    write_parquet(database, table, file)
    return StreamingResponse(_pieces(file), media_type=PARQUET, headers=headers)


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        file.seek(0)
        while piece := file.read(PIECE_BYTES):
            yield piece
