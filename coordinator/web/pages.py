"""The page and its files, the server-drawn curve, health and metrics."""

from __future__ import annotations

import gzip
import hashlib
import threading
from functools import lru_cache
from importlib.resources import files
from itertools import groupby

from fastapi import APIRouter, HTTPException, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from coordinator.web.curve import draw_curve
from coordinator.web.live import LiveSnapshot
from dashboards import content_type, page_files
from peer.phases import all_phases

ONE_DAY = "public, max-age=86400"
router = APIRouter(include_in_schema=False)
_COMPRESSING = threading.Lock()


@lru_cache(maxsize=1)
def plotly_gzip() -> tuple[bytes, str]:
    """Plotly's JavaScript out of its wheel, compressed once, and its ETag."""
    script = (files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    return gzip.compress(script, compresslevel=6, mtime=0), f'"{hashlib.sha256(script).hexdigest()[:32]}"'


@lru_cache(maxsize=64)
def page_file(name: str) -> tuple[bytes, str] | None:
    """One of the page's files and its ETag."""
    file = page_files().get(name)
    if file is None:
        return None
    content = file.read_bytes()
    return content, f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def _cached(request: Request, content: bytes, etag: str, media_type: str, headers: dict[str, str]) -> Response:
    headers = {"ETag": etag, **headers}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=media_type, headers=headers)


@router.get("/")
def index(request: Request) -> Response:
    """The dashboard."""
    return static_file(request, "index.html")


@router.get("/static/{name}")
def static_file(request: Request, name: str) -> Response:
    """The page's style and modules."""
    found = page_file(name)
    if found is None:
        raise HTTPException(404, "There is no such file.")
    return _cached(request, *found, content_type(name), {"Cache-Control": "no-cache"})


@router.get("/plotly.min.js")
def plotly(request: Request) -> Response:
    """The charts' library: 1.5 MB compressed, so it is cached and comes after the page."""
    headers = {"Content-Encoding": "gzip", "Cache-Control": ONE_DAY, "Vary": "Accept-Encoding"}
    with _COMPRESSING:  # of many first requests one compresses, which takes memory and time
        script = plotly_gzip()
    return _cached(request, *script, "text/javascript; charset=utf-8", headers)


@router.get("/curve.svg")
async def curve(request: Request) -> Response:
    """The loss over global steps."""
    live: LiveSnapshot = request.app.state.live
    points = [(float(row.step), row.loss) for row in live.current.steps if row.loss is not None]
    by_set = groupby(live.current.validations, lambda row: row.set_sha256)  # losses on other samples join no line
    held_out = [[(float(row.step), row.loss) for row in rows if row.loss is not None] for _, rows in by_set]
    title = f"Loss of {request.app.state.config.run.name} over {len(points)} global steps"
    boundaries = {phase.from_step: f"phase {phase.number}" for phase in all_phases(request.app.state.config)[1:]}
    return Response(
        draw_curve(points, title, boundaries, held_out),
        media_type="image/svg+xml",
        headers={"Cache-Control": "no-cache"},
    )


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process is alive."""
    return {"status": "ok"}


@router.get("/readyz")
def readyz(request: Request) -> Response:
    """The store answers."""
    try:
        with request.app.state.sessions() as session:
            session.execute(text("SELECT 1"))
    except SQLAlchemyError:
        return Response('{"status": "the store does not answer"}', 503, media_type="application/json")
    return Response('{"status": "ok"}', media_type="application/json")


@router.get("/metrics")
def metrics(request: Request) -> Response:
    """Prometheus' text format."""
    return Response(request.app.state.metrics_text(), media_type=CONTENT_TYPE_LATEST)
