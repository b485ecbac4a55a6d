"""Administrators' login over HTTP: rate limits, the login cookie, and checks of each request.

State-changing requests must come from the dashboard's own pages (`Origin`) and have the CSRF token.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from fastapi import HTTPException, Request, Response

from coordinator.members.administrators import LIFETIME_S, Administrators, Login, LoginTries
from coordinator.throttling.rate_limits import CallerPace, http_caller
from coordinator.web.http.boundary import FORWARDED, is_loopback

logger = logging.getLogger(__name__)
TRIES_PER_MINUTE = 10  # limit on login attempts, per address and also per account
HASHED_AT_ONCE = 2  # limit on concurrent password checks, each of which takes 64 MiB
COOKIE, SECURE_COOKIE = "manyhands-admin", "__Host-manyhands-admin"
MAX_FIELDS = 1000  # maximum number of form fields; the rewind form has a checkbox per device


class LoginNeededError(Exception):
    """An error for requests without a login: redirect to the login form, or 401 for a form."""


@dataclass
class LoginDesk:
    """Rate-limited password checks, for one event loop."""

    administrators: Administrators
    by_account: LoginTries
    by_address: CallerPace = field(default_factory=lambda: CallerPace(TRIES_PER_MINUTE, time.monotonic))
    hashing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(HASHED_AT_ONCE))

    async def log_in(self, request: Request, name: str, password: str) -> str | None:
        """Return a token, or None if name or password is wrong. Raises 429 above the rate limit."""
        within = self.by_address.allows(http_caller(request.client))
        if not (within and await asyncio.to_thread(self.by_account.allows, name[:64])):
            raise HTTPException(429, "Too many login attempts: wait a minute.", {"Retry-After": "60"})
        async with self.hashing:
            token = await asyncio.to_thread(self.administrators.log_in, name, password)
        if token is None:
            logger.warning("A login failed")  # the name is omitted, because it may be a mistyped password
        return token


def require_privacy(request: Request) -> None:
    """Raise 403 unless the request uses HTTPS or comes from this machine."""
    if request.url.scheme != "https" and not _is_local(request):
        raise HTTPException(403, "Administer this run over HTTPS, or from the coordinator's own machine.")


def _is_local(request: Request) -> bool:
    """Return whether the request comes from this machine and not through a proxy."""
    return FORWARDED not in request.headers and is_loopback(request.client.host if request.client else "")


def require_own_origin(request: Request) -> None:
    """Raise 403 unless the request's `Origin` is the dashboard's own origin."""
    if request.headers.get("origin") != f"{request.url.scheme}://{request.headers.get('host', '')}":
        raise HTTPException(403, "This request came from another page.")


def require_csrf(login: Login, token: str) -> None:
    """Raise 403 unless the token is the login's CSRF token."""
    if not hmac.compare_digest(login.csrf_token.encode(), token.encode()):
        raise HTTPException(403, "This form belongs to another login: reload the page.")


async def read_form(request: Request) -> dict[str, str]:
    """Parse a form's fields. Raises 400 if the body is not a form."""
    try:
        return dict(parse_qsl((await request.body()).decode(), max_num_fields=MAX_FIELDS, keep_blank_values=True))
    except ValueError as error:
        raise HTTPException(400, "The request is not a form.") from error


def token_of(request: Request) -> str:
    """Return the login's token from the cookie, or "" if there is no cookie."""
    return request.cookies.get(_cookie(request)["key"], "")[:128]


def set_cookie(request: Request, response: Response, token: str) -> None:
    """Set the login cookie: HttpOnly, SameSite=Strict, and Secure if the request used HTTPS."""
    response.set_cookie(**_cookie(request), value=token, max_age=int(LIFETIME_S))


def clear_cookie(request: Request, response: Response) -> None:
    """Delete the login cookie."""
    response.delete_cookie(**_cookie(request))


def _cookie(request: Request) -> dict[str, Any]:
    secure = request.url.scheme == "https"
    key = SECURE_COOKIE if secure else COOKIE
    return {"key": key, "path": "/", "secure": secure, "httponly": True, "samesite": "strict"}
