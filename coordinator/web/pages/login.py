"""The login pages for identity providers without a device flow.

An attacker could send their own code to a user who is logged in at the provider, so that the user's
account admits the attacker's machine. A login therefore starts only after the user has seen the
code and followed the page's link. Link and callback work only in the browser that showed the page.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from html import escape
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from auth.errors import LoginDeniedError, LoginExpiredError, ManyhandsError, ProviderError
from auth.openid.flows import AuthorizationResponse
from coordinator.web.state.web_state import Web, WebState

logger = logging.getLogger(__name__)
COOKIE = "manyhands-login"
COOKIE_S = 900
NEVER_KEPT = {"Cache-Control": "no-store"}
router = APIRouter(prefix="/login", include_in_schema=False)
UserCode = Annotated[str, Path(pattern=r"^[A-Za-z]{4}-[A-Za-z]{4}$")]
_Text = Annotated[str, Query(max_length=4096)]


def ticket_for(browser: str, user_code: str) -> str:
    """Return the ticket for the page's link; the ticket is valid for this browser and code only."""
    return hmac.new(browser.encode(), user_code.upper().encode(), hashlib.sha256).hexdigest()


@router.get("/callback")
async def callback(
    request: Request, web: Web, state: _Text = "", code: _Text = "", error: _Text = "", iss: _Text = ""
) -> Response:
    """Complete the login when the provider redirects the browser back."""
    browser = request.cookies.get(COOKIE, "")
    try:
        page = await web.services.logins.take_back(AuthorizationResponse(state, code, error, iss), browser)
    except ManyhandsError as refused:
        return _refusal(web, refused)
    said = f"You are logged in with {page.party.title}. Go back to your terminal; you may close this page."
    return _page(web, "Logged in", said)


@router.get("/{user_code}")
async def confirm(web: Web, user_code: UserCode) -> Response:
    """Show the code, for comparison with the code in the user's terminal."""
    try:
        page = web.services.logins.page(user_code)
    except ManyhandsError as refused:
        return _refusal(web, refused)
    browser = secrets.token_urlsafe(32)
    link = f"/login/{page.user_code}/go?ticket={ticket_for(browser, page.user_code)}"
    answer = _page(
        web,
        "Is this the code in your terminal?",
        "Continue only if you have just started manyhands yourself, and it shows exactly this code. Otherwise the "
        "person who sent you here would join the run with your account.",
        f'<p class="code"><strong>{escape(page.user_code)}</strong></p>'
        f'<p><a href="{escape(link)}">Yes, log in with {escape(page.party.title)}</a></p>',
    )
    secure = web.services.web_address.startswith("https:")
    answer.set_cookie(COOKIE, browser, max_age=COOKIE_S, path="/login", secure=secure, httponly=True, samesite="lax")
    return answer


@router.get("/{user_code}/go")
async def go(request: Request, web: Web, user_code: UserCode, ticket: _Text = "") -> Response:
    """Redirect the browser to the identity provider."""
    browser = request.cookies.get(COOKIE, "")
    try:
        page = web.services.logins.page(user_code)
        if not browser or not hmac.compare_digest(ticket.encode(), ticket_for(browser, user_code).encode()):
            raise LoginExpiredError("Open the address that your terminal shows, in this browser, with cookies allowed.")
        return RedirectResponse(await web.services.logins.send_off(page, browser), 303, NEVER_KEPT)
    except ManyhandsError as refused:
        return _refusal(web, refused)


def _refusal(web: WebState, error: ManyhandsError) -> HTMLResponse:
    logger.info("A login page ended: %s", error)
    status = {LoginDeniedError: 403, LoginExpiredError: 404, ProviderError: 502}.get(type(error), 400)
    return _page(web, "Not logged in", str(error), status=status)


def _page(web: WebState, heading: str, text: str, more: str = "", status: int = 200) -> HTMLResponse:
    run = escape(web.config.run.name)
    html = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(heading)} - {run}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="robots" content="noindex"><link rel="stylesheet" href="/static/style.css"></head>'
        f"<body><main><h1>{escape(heading)}</h1><p>The run: <bdi>{run}</bdi></p>{more}<p>{escape(text)}</p></main>"
        "</body></html>"
    )
    return HTMLResponse(html, status, NEVER_KEPT)
