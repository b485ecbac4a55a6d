"""Security headers of all responses, which keep browsers from loading or running foreign content.

Pages of other sites may read the public API (CORS), but nothing else, and never with cookies.
"""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.statistics.curve import STYLE_SHA256

# Hashes of the two <style> elements that Plotly 6.x inserts: an empty one, filled by scripts, and
# one for maps. The dashboard has no maps, so an outdated second hash only causes a log entry.
PLOTLY_STYLES = (
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=' 'sha256-ji27qzEtxXZW+7dun6UwjHXJ18e6WAin1VvNtkzIE/o='"
)
_NOWHERE = "base-uri 'none'; frame-ancestors 'none'"
DASHBOARD_POLICY = (
    f"default-src 'none'; script-src 'self'; style-src 'self' {PLOTLY_STYLES}; img-src 'self'; "
    f"connect-src 'self'; form-action 'none'; {_NOWHERE}"
)
ARCHIVE_POLICY = DASHBOARD_POLICY.replace("; frame-ancestors 'none'", "")  # frame-ancestors is not supported in <meta>
CURVE_POLICY = f"default-src 'none'; style-src 'sha256-{STYLE_SHA256}'; form-action 'none'; {_NOWHERE}"
ADMIN_POLICY = f"default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; {_NOWHERE}"
# With `no-referrer`, browsers would send `Origin: null` even for the dashboard's own forms.
ADMIN_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": ADMIN_POLICY,
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "same-origin",
}
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
PUBLIC = "/api/v1/"
ONE_DAY_S = 86_400


def headers_for(path: str) -> dict[str, str]:
    """Return the security headers for the response to a request for `path`."""
    if path.startswith("/admin"):
        return HEADERS | ADMIN_HEADERS
    policy = CURVE_POLICY if path == "/curve.svg" else DASHBOARD_POLICY
    return HEADERS | {"content-security-policy": policy}


class SecurityHeaders:
    """ASGI middleware that adds the security headers to every response, without buffering streams.

    Headers already set by a response are kept; the guide's pages have their own policy.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request and add the security headers to its response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in headers_for(scope["path"]).items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)


class OpenReading:
    """ASGI middleware that allows all origins to read the paths below `PUBLIC`."""

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
        """Serve one request, with CORS headers if its path is public."""
        is_public = scope["type"] == "http" and scope["path"].startswith(PUBLIC)
        await (self._open if is_public else self._app)(scope, receive, send)
