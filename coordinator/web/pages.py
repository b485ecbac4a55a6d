"""What stands beside the pages: the charts' library, the server-drawn curve, health and metrics."""

from __future__ import annotations

import threading
from functools import cache, partial
from importlib.resources import files

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from coordinator.web.answers import FOR_EVER, Encoded, answer, encode
from coordinator.web.overview_page import curve_of
from coordinator.web.snapshot import Snapshot
from peer.run_config import RunConfig

ONE_DAY = "public, max-age=86400"
router = APIRouter(include_in_schema=False)
_COMPRESSING = threading.Lock()


def plotly_script() -> Encoded:
    """Plotly's JavaScript out of its wheel; compressed once, which takes half a second."""
    with _COMPRESSING:
        return _plotly_script()


@cache
def _plotly_script() -> Encoded:
    script = files("plotly") / "package_data" / "plotly.min.js"
    return encode(script.read_bytes(), "text/javascript; charset=utf-8")


@router.get("/plotly.min.js")
def plotly(request: Request) -> Response:
    """The charts' library: 1.5 MB compressed, so it comes after the page, which names its version, and is kept."""
    return answer(request, plotly_script(), FOR_EVER if request.url.query else ONE_DAY)


@router.get("/curve.svg")
async def curve(request: Request) -> Response:
    """The loss over global steps, as a drawing of its own."""
    state, snapshot = request.app.state, request.app.state.live.current
    make = partial(_curve, snapshot, state.config)
    return answer(request, await state.answers.get("curve.svg", snapshot.curve_version, make, "image/svg+xml"))


def _curve(snapshot: Snapshot, config: RunConfig) -> bytes:
    return curve_of(snapshot, config, alone=True).encode()


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
