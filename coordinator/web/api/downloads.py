"""Files for everybody to download, told apart by their digests: published checkpoints, and the run's own software.

The software is the wheel, the exact versions it is used with, and the notebook: built when the service starts, never
for a request. Of checkpoints, whole files or ranges are served, if the manifest names them and the checkpoint may be
published; the manifest itself is known by the digest that the control plane and `/api/v1/checkpoints` give.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import FileResponse

from auth.errors import StorageError
from coordinator.checkpoints.manifest import MANIFEST, verify
from coordinator.context.services import RunServices
from coordinator.ledger.presence import CheckpointRow
from coordinator.run.software import CONSTRAINTS_NAME, NOTEBOOK_NAME, Software, notebook_for
from coordinator.web.http.answers import Encoded, answer, encode
from coordinator.web.state.live import LiveSnapshot

router = APIRouter()


def software_files(software: Software, web_address: str, join_link: str) -> dict[str, Encoded]:
    """Every file by its name, as it is sent."""
    notebook = notebook_for(software.address(web_address), join_link)
    return {
        software.name: Encoded(software.wheel, "application/octet-stream", f'"{software.sha256}"', compressed=None),
        CONSTRAINTS_NAME: encode(software.constraints, "text/plain; charset=utf-8"),
        NOTEBOOK_NAME: encode(notebook, "application/x-ipynb+json"),
    }


@router.get("/software/{name}", include_in_schema=False)
@router.head("/software/{name}", include_in_schema=False)
def software_file(request: Request, name: str) -> Response:
    """One file of the run's software; an older version's wheel is not kept."""
    found: Encoded | None = request.app.state.software.get(name)
    if found is None:
        raise HTTPException(404, "The run does not bring this file, or not any more: see its page about taking part.")
    return answer(request, found)


@router.get("/api/v1/checkpoints/{step}/{name}", response_class=FileResponse)
@router.head("/api/v1/checkpoints/{step}/{name}", include_in_schema=False)
async def checkpoint_file(request: Request, step: int, name: str) -> Response:
    """One file of a published checkpoint; `Range`, `If-Range` and `If-None-Match` are understood (RFC 9110)."""
    live: LiveSnapshot = request.app.state.live
    row = next((row for row in live.current.checkpoints if row.step == step and not row.withheld), None)
    if row is None:
        raise HTTPException(404, f"There is no published checkpoint of step {step}.")
    services: RunServices = request.app.state.services
    folder = services.checkpoint_dir(step)
    etag = f'"{await asyncio.to_thread(_digest, row, folder, name)}"'
    headers = {"ETag": etag, "Cache-Control": "no-cache"}  # a step undone and taken again has other files
    if etag in _tags(request.headers.get("if-none-match", "")):
        return Response(status_code=304, headers=headers)
    path = folder / name
    try:
        return FileResponse(path, headers=headers, filename=name, stat_result=await asyncio.to_thread(path.stat))
    except OSError as error:  # removed just now
        raise HTTPException(404, f"The checkpoint of step {step} is no longer kept.") from error


def _digest(row: CheckpointRow, folder: Path, name: str) -> str:
    """The SHA-256 that the manifest gives for this file; raises `HTTPException` where it names none."""
    if name == MANIFEST:
        return row.manifest_sha256
    try:
        stored = verify(folder, files=())
    except StorageError as error:
        raise HTTPException(404, f"The checkpoint of step {row.step} is no longer kept.") from error
    if name not in stored.manifest.files or stored.manifest_sha256 != row.manifest_sha256:
        raise HTTPException(404, f"The checkpoint of step {row.step} has no such file.")
    return stored.manifest.files[name].sha256


def _tags(if_none_match: str) -> set[str]:
    return {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
