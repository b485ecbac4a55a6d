"""Routes of the guide, which `make docs` builds from `docs/`; some installations have no guide."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi.responses import RedirectResponse

from coordinator.web.http.answers import FOR_EVER, REVALIDATE, answer
from coordinator.web.http.site import START, Guide
from coordinator.web.state.web_state import Web

_HASHED = re.compile(r"\.[0-9a-f]{8}\.min\.(js|css)$")  # suffix of file names that contain a hash of the content
router = APIRouter(include_in_schema=False)


async def built_guide(web: Web) -> Guide:
    """Return the guide. Raises 404 if it has not been built."""
    if not web.guide.is_built:
        raise HTTPException(404, "This installation has no guide: `make docs` builds it in a checkout.")
    return web.guide


Built = Annotated[Guide, Depends(built_guide)]


@router.get("/guide")
async def guide_start(_guide: Built) -> Response:
    """Redirect to the start page with a relative URL, as the run may have any path prefix."""
    return RedirectResponse("guide/", 308)


@router.get("/guide/{name:path}")
def guide_file(request: Request, name: str, guide: Built) -> Response:
    """Serve a page of the guide, or a file loaded by a page."""
    found = guide.file(name or START)
    if found is None:
        raise HTTPException(404, "The guide has no such page: it begins at /guide.")
    response = answer(request, found, FOR_EVER if _HASHED.search(name) else REVALIDATE)
    response.headers["Content-Security-Policy"] = guide.policy
    return response
