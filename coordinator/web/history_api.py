"""The whole history for download, for researchers; a few at once, as making it takes a while."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from typing import IO, Annotated, Literal

from fastapi import APIRouter, Depends, HTTPException, Path, Request
from fastapi.responses import StreamingResponse

from coordinator.callers import CallerPlaces, http_caller
from coordinator.history import TableName
from coordinator.history_files import csv_lines, write_parquet

EXPORTS, EXPORTS_PER_CALLER = 2, 1
PIECE_BYTES = 64 * 1024
PARQUET = "application/vnd.apache.parquet"
router = APIRouter(prefix="/api/v1", tags=["run"])
Format = Literal["csv", "parquet"]
File = {"description": "The table.", "content": {"text/csv": {}, PARQUET: {}}}


async def export_place(request: Request) -> AsyncIterator[None]:
    """A dependency: a place among those who download, given back when the answer is sent."""
    places: CallerPlaces = request.app.state.exports
    caller = http_caller(request.client)
    if not places.enter(caller):
        raise HTTPException(503, "Others are downloading the history: try again in a minute.", {"Retry-After": "60"})
    try:
        yield
    finally:
        places.leave(caller)


@router.get(
    "/history/{table}.{format}",
    response_class=StreamingResponse,
    responses={200: File},
    dependencies=[Depends(export_place)],
)
def history(
    request: Request,
    table: Annotated[TableName, Path()],
    format: Annotated[Format, Path()],  # noqa: A002
) -> StreamingResponse:
    """A table of the whole history: `steps`, `contributions` (of devices to steps), `sessions`, `validations`."""
    sessions, run = request.app.state.sessions, request.app.state.config.run.name
    headers = {"Content-Disposition": f'attachment; filename="{run}-{table}.{format}"', "Cache-Control": "no-cache"}
    if format == "csv":
        return StreamingResponse(csv_lines(sessions, table), media_type="text/csv; charset=utf-8", headers=headers)
    file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by whoever sends it
    write_parquet(sessions, table, file)
    return StreamingResponse(_pieces(file), media_type=PARQUET, headers=headers)


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        file.seek(0)
        while piece := file.read(PIECE_BYTES):
            yield piece
