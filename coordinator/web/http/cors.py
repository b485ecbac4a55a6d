"""Other sites' pages may read the public API (CORS): read it, nothing else, and never with anybody's cookies."""

from __future__ import annotations

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

PUBLIC = "/api/v1/"
ONE_DAY_S = 86_400


class OpenReading:
    """ASGI middleware that lets every origin read what lies below `PUBLIC`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open = CORSMiddleware(
            app,
            allow_origins=["*"],
            allow_methods=["GET", "HEAD"],
            allow_headers=["If-None-Match", "If-Range", "Range", "Last-Event-ID"],
            expose_headers=["Content-Disposition", "Content-Range", "ETag", "Retry-After"],
            max_age=ONE_DAY_S,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        is_public = scope["type"] == "http" and scope["path"].startswith(PUBLIC)
        await (self._open if is_public else self._app)(scope, receive, send)
