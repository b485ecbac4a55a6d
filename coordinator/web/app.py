"""The dashboard's application, composed of its parts; nothing happens at import."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exception_handlers import http_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException

from coordinator.context.services import RunServices
from coordinator.members.administrators import Administrators, LoginTries
from coordinator.run.directory import RunDirectory
from coordinator.store.notify import Topic
from coordinator.throttling.rate_limits import CallerPace, CallerPlaces
from coordinator.web.admin import members as admin_members, run as admin_run
from coordinator.web.admin.login import TRIES_PER_MINUTE, LoginDesk, LoginNeededError
from coordinator.web.api import evaluations, history, join, people, run, trials
from coordinator.web.http.answers import AnswerCache
from coordinator.web.http.boundary import STREAMS, STREAMS_PER_CALLER, Boundary, refuse_shape
from coordinator.web.pages import card, guide, login, views
from coordinator.web.pages.frozen import Archive
from coordinator.web.pages.guide import Guide
from coordinator.web.pages.headers import OpenReading, SecurityHeaders
from coordinator.web.state.live import LiveSnapshot
from coordinator.web.state.metrics import metrics_text
from coordinator.web.state.snapshot import take_snapshot
from dashboards import GUIDE

MOST_SLASHES = 16  # in an address that a page answers: each of its links leads up from there
ROUTERS = (
    run.router,
    history.router,
    trials.router,
    people.router,
    join.router,
    card.router,
    evaluations.router,
    guide.router,
    views.router,
    admin_members.router,
    admin_run.router,
    login.router,
)


@dataclass(frozen=True)
class WebState:
    """What the dashboard shows."""

    directory: RunDirectory
    services: RunServices
    archive: Archive | None = None  # what is asked for is written down, and stays as it is
    guide: Path = GUIDE  # the folder of the built site


async def ask_to_log_in(request: Request, _error: Exception) -> Response:
    """A page's browser is sent to the form; what a form would have done is refused."""
    if request.method == "GET":
        return RedirectResponse("/admin/login", 303)
    return JSONResponse({"detail": "Log in first."}, 401)


async def tell_missing(request: Request, error: Exception) -> Response:
    """Answer where there is nothing: by a page to a browser that asks for one, else, and in the API, by JSON."""
    assert isinstance(error, HTTPException)
    path, accepted = request.url.path, request.headers.get("accept", "")
    is_page = request.method == "GET" and not path.startswith("/api/") and path.count("/") <= MOST_SLASHES
    if not is_page or "text/html" not in accepted:
        return await http_exception_handler(request, error)
    if path.startswith("/admin"):
        return admin_members.draw(request, "missing.html", None, 404)
    return views.missing_page(request)


def create_app(state: WebState) -> FastAPI:
    """The dashboard's application for one run."""
    services = state.services
    live = LiveSnapshot(partial(take_snapshot, services), services.bell.ear(Topic.PROGRESS))

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with live.held() if state.archive else live.refreshing():
            compressing = asyncio.create_task(asyncio.to_thread(views.plotly_script))  # nobody shall wait for it
            yield
            await compressing

    app = FastAPI(
        title="manyhands",
        summary="A community trains one language model together.",
        lifespan=lifespan,
        docs_url=None,  # its viewer would come from elsewhere: /openapi.json is for a viewer of one's own
        redoc_url=None,
    )
    app.state.live = live
    app.state.end_streams = live.end
    app.state.archive = state.archive
    app.state.guide = Guide(state.guide)
    app.state.answers = AnswerCache()
    app.state.config = services.config
    app.state.database = services.database
    app.state.join_link = str(state.directory.join_link)
    app.state.notebook_url = state.directory.settings.notebook_url
    app.state.software = join.software_files(services.software, services.web_address, app.state.join_link)
    app.state.authority = lambda: state.directory.authority
    app.state.checkpoints_dir = state.directory.checkpoints_dir
    app.state.metrics_text = metrics_text(state.directory, services.telemetry, lambda: live.current)
    for router in ROUTERS:
        app.include_router(router)
    app.state.ask_pace = CallerPace(trials.ASKS_PER_MINUTE, time.monotonic)
    app.state.moments = AnswerCache(history.KEPT_CHUNKS)
    app.state.card = card.CardShelf()
    app.add_exception_handler(404, tell_missing)
    app.add_exception_handler(LoginNeededError, ask_to_log_in)
    app.add_exception_handler(RequestValidationError, refuse_shape)
    app.state.services = services
    tries = LoginTries(services.database, TRIES_PER_MINUTE, services.clock)
    app.state.login_desk = LoginDesk(Administrators(services.database, services.clock), tries)
    app.state.logins = services.logins
    app.state.web_address = state.directory.settings.web_address
    app.state.public_places = frozenset(each.to for each in state.directory.settings.publications if each.is_public)
    app.state.exports = CallerPlaces(history.EXPORTS, history.EXPORTS_PER_CALLER)
    app.state.downloads = CallerPlaces(run.DOWNLOADS, run.DOWNLOADS_PER_CALLER)
    app.state.streams = streams = CallerPlaces(STREAMS, STREAMS_PER_CALLER)
    services.telemetry.streams_open.set_function(lambda: len(streams))
    if state.archive is None:
        app.add_middleware(Boundary, names=state.directory.settings.web_names)
    app.add_middleware(OpenReading)  # refusals can be read, too
    # The last one added is the outermost: refusals have the headers, too.
    app.add_middleware(SecurityHeaders)
    return app
