"""Puts the dashboard's server together; nothing happens at import."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response

from coordinator.administrators import Administrators
from coordinator.callers import CallerPlaces
from coordinator.directory import RunDirectory
from coordinator.run_services import RunServices
from coordinator.web import admin_api, admin_pages, api, checkpoint_files, login, pages
from coordinator.web.admin_login import LoginDesk, LoginNeededError
from coordinator.web.boundary import STREAMS, STREAMS_PER_CALLER, Boundary
from coordinator.web.live import LiveSnapshot
from coordinator.web.metrics import metrics_text
from coordinator.web.security_headers import SecurityHeaders
from coordinator.web.snapshot import take_snapshot


@dataclass(frozen=True)
class WebState:
    """What the dashboard shows."""

    directory: RunDirectory
    services: RunServices


async def ask_to_log_in(request: Request, _error: Exception) -> Response:
    """A page's browser is sent to the form; a program is told."""
    if request.method == "GET" and request.url.path.startswith("/admin"):
        return RedirectResponse("/admin/login", 303)
    return JSONResponse({"detail": "Log in first."}, 401)


def create_app(state: WebState) -> FastAPI:
    """The dashboard's application for one run."""
    services = state.services
    live = LiveSnapshot(partial(take_snapshot, services))

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with live.refreshing():
            yield

    app = FastAPI(
        title="manyhands",
        summary="A community trains one language model together.",
        lifespan=lifespan,
        docs_url=None,  # its viewer would come from elsewhere: /openapi.json is for a viewer of one's own
        redoc_url=None,
    )
    app.state.live = live
    app.state.config = services.config
    app.state.sessions = services.sessions
    app.state.join_link = str(state.directory.join_link)
    app.state.metrics_text = metrics_text(state.directory, services.telemetry, lambda: live.current)
    app.include_router(api.router)
    app.include_router(checkpoint_files.router)
    app.include_router(pages.router)
    app.include_router(admin_pages.router)
    app.include_router(admin_api.router)
    app.add_exception_handler(LoginNeededError, ask_to_log_in)
    app.state.services = services
    app.state.login_desk = LoginDesk(Administrators(services.sessions, services.clock))
    app.include_router(login.router)
    app.state.logins = services.logins
    app.state.web_address = state.directory.settings.web_address
    app.state.public_places = frozenset(each.to for each in state.directory.settings.publications if each.is_public)
    app.state.streams = streams = CallerPlaces(STREAMS, STREAMS_PER_CALLER)
    services.telemetry.streams_open.set_function(lambda: len(streams))
    app.add_middleware(Boundary)
    app.add_middleware(SecurityHeaders)  # the last one added is the outermost: refusals have the headers, too
    return app
