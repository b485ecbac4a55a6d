"""The outermost HTTP layer: limits on rate and size, and responses to failures and bad requests.

On a failure, the client receives one sentence and the log has the details, such as a stack trace.
The response to a malformed request states the location and the problem, but omits the input, which
may be a secret. This response is ASCII, because the location may not be valid Unicode.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import re
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from fastapi import Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import SQLAlchemyError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from auth.errors import ConfigError, ManyhandsError, RequestError
from coordinator.store.engine import trouble
from coordinator.throttling.rate_limits import CallerPace, http_caller

logger = logging.getLogger(__name__)

NAMES = ("type", "loc", "msg")
REQUESTS_PER_MINUTE = 600  # limit per address; enough for several open pages, each with one request per second
MAX_BODY_BYTES = 64 * 1024
PIECE_BYTES = 32 * 1024  # maximum bytes passed to the connection at once
RETRY_AFTER_S = 10
FORWARDED = "x-forwarded-for"  # header in which a proxy sends the client's address
_HOST = re.compile(r"(\[[0-9a-f:.%]+\]|[^\[\]@/?#:]+)(:\d{0,5})?")


class Boundary:
    """ASGI middleware around the whole application; used from one event loop."""

    def __init__(
        self,
        app: ASGIApp,
        requests_per_minute: int = REQUESTS_PER_MINUTE,
        clock: Callable[[], float] = time.monotonic,
        names: frozenset[str] | None = None,
    ) -> None:
        """Create the middleware; unless `names` is None, reject requests for other host names."""
        self._app = app
        self._names = names
        self._has_seen_proxy = False
        self._pace = CallerPace(requests_per_minute, clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or reject one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def send_noting(message: Message) -> None:
            nonlocal started
            started = True
            await _send_in_pieces(message, send)

        try:
            self._note_proxy(scope)
            self._check_host(scope)
            self._check_pace(scope)
            await self._app(scope, _bounded(scope, receive), send_noting)
        except Exception as error:  # every error becomes a response
            answer = _answer(error)
            if not started:
                await answer(scope, receive, send)
            elif answer.status_code >= 500:
                raise

    def _check_host(self, scope: Scope) -> None:
        """Raise 421 for foreign host names, which may indicate an attack (DNS rebinding).

        IP addresses and names without a dot are accepted, because attackers cannot control them.
        """
        host = Headers(scope=scope).get("host", "").lower()
        name = urlsplit(f"//{host}").hostname or "" if _HOST.fullmatch(host) else host
        if self._names is None or not host or "." not in name or ":" in name or name.rstrip(".") in self._names:
            return
        if not name.endswith(".localhost") and not _is_address(name):
            raise HTTPException(
                421,
                f"This run is not served under the name {name[:100]!a}: use one of the run's own names, "
                "or add this one to `web_hosts` in settings.yaml.",
            )

    def _note_proxy(self, scope: Scope) -> None:
        """Warn once about an untrusted proxy on this machine: its clients share one rate limit."""
        client = (scope.get("client") or ("",))[0]
        if self._has_seen_proxy or not is_loopback(client) or FORWARDED not in Headers(scope=scope):
            return
        self._has_seen_proxy = True
        logger.warning(
            "A proxy on this machine sends X-Forwarded-For, but is not trusted: if the proxy is yours, "
            "add %s to `trusted_proxies` in settings.yaml",
            client,
        )

    def _check_pace(self, scope: Scope) -> None:
        if not self._pace.allows(http_caller(scope.get("client"))):
            raise HTTPException(429, "Too many requests from this address: wait a little.")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether `host` is a loopback address; False if it is not an IP address."""
    return _is_address(host) and ipaddress.ip_address(host).is_loopback


async def refuse_shape(_request: Request, error: Exception) -> Response:
    """Respond to an invalid request with FastAPI's 422 response, but omit the input."""
    assert isinstance(error, RequestValidationError)
    detail = [{name: found[name] for name in NAMES} for found in error.errors()]
    return Response(json.dumps({"detail": detail}), 422, media_type="application/json")


async def _send_in_pieces(message: Message, send: Send) -> None:
    """Send a large body in pieces, so that no connection buffers a copy of the whole body."""
    body = message.get("body", b"")
    last = max(0, len(body) - 1) // PIECE_BYTES * PIECE_BYTES
    for start in range(0, last, PIECE_BYTES):
        await send({"type": message["type"], "body": body[start : start + PIECE_BYTES], "more_body": True})
    await send({**message, "body": body[last:]} if last else message)


def _bounded(scope: Scope, receive: Receive) -> Receive:
    """Limit the size of a request's body; raise 413 for a larger body."""
    left = MAX_BODY_BYTES

    async def receive_bounded() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise HTTPException(413, f"A request may have at most {MAX_BODY_BYTES} bytes.")
        return message

    lengths = [value for name, value in scope["headers"] if name == b"content-length"]
    if any(not value.isdigit() or int(value) > MAX_BODY_BYTES for value in lengths):
        raise HTTPException(413, f"A request may have at most {MAX_BODY_BYTES} bytes.")
    return receive_bounded


def _answer(error: Exception) -> JSONResponse:
    """Convert an error into a one-sentence response in FastAPI's error format."""
    if isinstance(error, HTTPException):
        status, text = error.status_code, str(error.detail)
    elif isinstance(error, ConfigError | RequestError):
        status, text = 400, str(error)
    elif isinstance(error, SQLAlchemyError | ManyhandsError):
        logger.error("A request failed: %s", trouble(error) or error)
        status, text = 503, "The coordinator cannot answer this now; its log says why."
    else:
        logger.error("A request failed", exc_info=error)
        status, text = 500, "The coordinator failed at this request; its log says why."
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status in {429, 503} else None
    return JSONResponse({"detail": text}, status, headers)
