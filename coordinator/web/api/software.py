"""The run's own software for volunteers to install: the wheel, the exact versions it is used with, and the notebook.

Built when the service starts, never for a request; told apart by the digests that the operator hands out.
"""

from __future__ import annotations

from fastapi import APIRouter, HTTPException, Request, Response

from coordinator.run.software import CONSTRAINTS_NAME, NOTEBOOK_NAME, Software, notebook_for
from coordinator.web.http.answers import Encoded, answer, encode

router = APIRouter(prefix="/software", include_in_schema=False)


def software_files(software: Software, web_address: str, join_link: str) -> dict[str, Encoded]:
    """Every file by its name, as it is sent."""
    notebook = notebook_for(software.address(web_address), join_link)
    return {
        software.name: Encoded(software.wheel, "application/octet-stream", f'"{software.sha256}"', compressed=None),
        CONSTRAINTS_NAME: encode(software.constraints, "text/plain; charset=utf-8"),
        NOTEBOOK_NAME: encode(notebook, "application/x-ipynb+json"),
    }


@router.get("/{name}")
@router.head("/{name}")
def software_file(request: Request, name: str) -> Response:
    """One of them; an older version's wheel is not kept."""
    found: Encoded | None = request.app.state.software.get(name)
    if found is None:
        raise HTTPException(404, "The run does not bring this file, or not any more: see its page about taking part.")
    return answer(request, found)
