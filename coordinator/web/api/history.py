"""The API for a run's history: tables for researchers, details of each step, and milestones.

Concurrent downloads are limited, because generating a table takes a while.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from typing import IO, Annotated, Literal

from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from coordinator.ledger.reading import LATE_STEPS
from coordinator.statistics.milestones import Milestone, milestones
from coordinator.statistics.moments import CHUNK_STEPS, Chunk, read_chunk
from coordinator.statistics.run_tables import TableName, csv_lines, write_parquet
from coordinator.web.http.answers import answer
from coordinator.web.state.snapshot import Snapshot
from coordinator.web.state.web_state import Web, place_among

router = APIRouter(prefix="/api/v1")

MAX_CHUNK = 2**31 // CHUNK_STEPS
SETTLED_S = 60  # cache time in seconds for old steps, which late receipts and new names can still change
PIECE_BYTES = 64 * 1024
PARQUET = "application/vnd.apache.parquet"
Format = Literal["csv", "parquet"]
File = {"description": "The table.", "content": {"text/csv": {}, PARQUET: {}}}


class Milestones(BaseModel):
    """All milestones, ordered by step."""

    era: int
    milestones: list[Milestone]


@router.get("/moments/{chunk}", response_model=Chunk, tags=["history"])
async def moments(request: Request, web: Web, chunk: Annotated[int, Path(ge=0, lt=MAX_CHUNK)]) -> Response:
    """Return devices, groups, failures and loss for 100 steps; chunk 0 starts at step 1."""
    snapshot = web.snapshot
    is_over = (chunk + 1) * CHUNK_STEPS < snapshot.last_step - LATE_STEPS
    version = (snapshot.era, snapshot.taken_at // SETTLED_S if is_over else snapshot.steps_version)
    return answer(request, await web.moments.get(chunk, version, partial(read_chunk, web.database, chunk)))


@router.get("/milestones", response_model=Milestones, tags=["history"])
async def all_milestones(request: Request, web: Web) -> Response:
    """List milestones: first step, powers of ten in samples, records in devices and in loss."""
    snapshot = web.snapshot
    return await web.answer(request, "milestones", snapshot.curve_version, partial(milestones_of, snapshot))


def milestones_of(snapshot: Snapshot) -> Milestones:
    """Return all milestones of a snapshot."""
    return Milestones(era=snapshot.era, milestones=milestones(snapshot.steps, snapshot.validations))


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
    """Download a table: `steps`, `contributions` (per device), `sessions` or `validations`."""
    database, run = web.database, web.config.run.name
    headers = {"Content-Disposition": f'attachment; filename="{run}-{table}.{format}"', "Cache-Control": "no-cache"}
    if format == "csv":
        return StreamingResponse(csv_lines(database, table), media_type="text/csv; charset=utf-8", headers=headers)
    file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `_pieces`
    write_parquet(database, table, file)
    return StreamingResponse(_pieces(file), media_type=PARQUET, headers=headers)


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        file.seek(0)
        while piece := file.read(PIECE_BYTES):
            yield piece
