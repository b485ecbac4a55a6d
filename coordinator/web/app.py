"""The dashboard's FastAPI application, assembled from its parts by `create_app`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI, Request
from fastapi.exception_handlers import http_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from coordinator.web.admin import members as admin_members, run as admin_run
from coordinator.web.admin.admin_request import draw
from coordinator.web.api import evaluations, history, join, people, run, trials
from coordinator.web.http.boundary import Boundary, refuse_shape
from coordinator.web.http.headers import OpenReading, SecurityHeaders
from coordinator.web.http.login import LoginNeededError
from coordinator.web.pages import card, guide, login, views
from coordinator.web.state.web_state import WebState

MOST_SLASHES = 16  # maximum depth of a URL that gets an HTML 404 page, whose relative links grow with depth
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


def create_app(state: WebState) -> FastAPI:
    """Create the dashboard's application for one run."""
    state.prepare()

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with state.live.held() if state.archive else state.live.refreshing():
            compressing = asyncio.create_task(asyncio.to_thread(views.plotly_script))  # avoids a delay on first use
            yield
            await compressing

    boundary = [] if state.archive else [Middleware(Boundary, names=state.directory.settings.web_names)]
    app = FastAPI(
        title="manyhands",
        summary="A community trains one language model together.",
        lifespan=lifespan,
        docs_url=None,  # no Swagger UI, which loads scripts from another site
        redoc_url=None,
        routes=[route for router in ROUTERS for route in router.routes],
        # The first middleware is outermost, so error responses have the headers and allow CORS.
        middleware=[Middleware(SecurityHeaders), Middleware(OpenReading), *boundary],
        exception_handlers={
            404: partial(tell_missing, state),
            LoginNeededError: ask_to_log_in,
            RequestValidationError: refuse_shape,
        },
    )
    app.state.web = state
    app.state.end_streams = state.live.end  # called by the HTTP server on shutdown
    state.services.telemetry.streams_open.set_function(lambda: len(state.streams))
    return app


async def ask_to_log_in(request: Request, _error: Exception) -> Response:
    """Redirect a request for a page to the login form; reject a submitted form with 401."""
    if request.method == "GET":
        return RedirectResponse("/admin/login", 303)
    return JSONResponse({"detail": "Log in first."}, 401)


async def tell_missing(state: WebState, request: Request, error: Exception) -> Response:
    """Respond with 404, as a page if a browser requests HTML outside the API, otherwise as JSON."""
    assert isinstance(error, HTTPException)
    path, accepted = request.url.path, request.headers.get("accept", "")
    is_page = request.method == "GET" and not path.startswith("/api/") and path.count("/") <= MOST_SLASHES
    if not is_page or "text/html" not in accepted:
        return await http_exception_handler(request, error)
    if path.startswith("/admin"):
        return draw(state, request, "missing.html", None, 404)
    return views.missing_page(state, request)
