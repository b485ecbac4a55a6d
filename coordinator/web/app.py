"""Puts the dashboard's server together; nothing happens at import."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.directory import RunDirectory
from coordinator.run_services import RunServices
from coordinator.web import api, pages
from coordinator.web.live import LiveSnapshot
from coordinator.web.metrics import metrics_text
from coordinator.web.snapshot import take_snapshot

# Plotly styles its charts by a <style> element; scripts come from here only, and members' names never become markup.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
API_DOCS_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline' https://cdn.jsdelivr.net; "
    "style-src 'self' 'unsafe-inline' https://cdn.jsdelivr.net; img-src 'self' data: https://fastapi.tiangolo.com; "
    "connect-src 'self'"
)
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}


@dataclass(frozen=True)
class WebState:
    """What the dashboard shows."""

    directory: RunDirectory
    services: RunServices


class SecurityHeaders:
    """ASGI middleware that adds the security headers to every answer (also to streams, which it does not buffer)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        policy = API_DOCS_POLICY if scope.get("path") == "/docs" else CONTENT_SECURITY_POLICY

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = HEADERS | {"content-security-policy": policy}
                message["headers"] = [
                    *message.get("headers", ()),
                    *((name.encode(), value.encode()) for name, value in added.items()),
                ]
            await send(message)

        await self._app(scope, receive, send_with_headers if scope["type"] == "http" else send)


def create_app(state: WebState) -> FastAPI:
    """The dashboard's application for one run."""
    services = state.services
    live = LiveSnapshot(partial(take_snapshot, services))

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with live.refreshing():
            yield

    app = FastAPI(title="manyhands", summary="A community trains one language model together.", lifespan=lifespan)
    app.state.live = live
    app.state.config = services.config
    app.state.sessions = services.sessions
    app.state.join_link = str(state.directory.join_link)
    app.state.metrics_text = metrics_text(lambda: live.current)
    app.include_router(api.router)
    app.include_router(pages.router)
    app.add_middleware(SecurityHeaders)
    return app
