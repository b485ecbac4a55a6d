"""Routes beside the pages: the charts' library, the server-drawn curve, health and metrics."""

from __future__ import annotations

import threading
from functools import cache, partial
from importlib.resources import files

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy.exc import SQLAlchemyError

from coordinator.ledger.presence import KEEPER_SILENT_S, read_swarm_status
from coordinator.web.http.answers import FOR_EVER, Encoded, answer, encode
from coordinator.web.pages.values import curve_of
from coordinator.web.state.snapshot import Snapshot
from peer.config.run import RunConfig

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
    """The process is alive; what starting it again would not mend is told by `/readyz`."""
    return {"status": "ok"}


@router.get("/readyz")
def readyz(request: Request) -> Response:
    """The store answers, and the keeper's own node has answered it a short while ago."""
    state = request.app.state
    try:
        status = read_swarm_status(state.database)
    except SQLAlchemyError:
        return _not_ready("the store does not answer")
    if status is None:
        return _not_ready("the keeper has not come yet")
    silent_s = state.services.clock() - status.updated_at
    if silent_s > KEEPER_SILENT_S:
        return _not_ready(f"the keeper has been silent for {silent_s:.0f} s")
    return JSONResponse({"status": "ok"})


def _not_ready(reason: str) -> Response:
    return JSONResponse({"status": reason}, 503)


@router.get("/metrics")
def metrics(request: Request) -> Response:
    """Prometheus' text format."""
    return Response(request.app.state.metrics_text(), media_type=CONTENT_TYPE_LATEST)
