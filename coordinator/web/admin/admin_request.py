"""Request handling shared by the administrators' pages: authentication, forms, and rendering."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from auth.errors import ConfigError
from coordinator.members.administration import Administration
from coordinator.members.administrators import Login
from coordinator.web.http.login import (
    LoginNeededError,
    read_form,
    require_csrf,
    require_own_origin,
    require_privacy,
    token_of,
)
from coordinator.web.state.web_state import Web, WebState
from dashboards import ADMIN, WEB, english
from peer.runtime.console import format_age

templates = Environment(loader=FileSystemLoader([ADMIN, WEB]), autoescape=True, undefined=StrictUndefined)
templates.globals["t"] = english  # English texts for template parts shared with public pages
templates.filters["age"] = lambda at: format_age(at, time.time()) or "never"


def draw(
    web: WebState, request: Request, template: str, login: Login | None, status: int = 200, **values: Any
) -> Response:
    """Render a page from its template; `login` is None if nobody is logged in."""
    known = {"run": web.config.run.name, "login": login, "here": request.url.path, "error": ""}
    return HTMLResponse(templates.get_template(template).render(known | values), status)


Page = Callable[..., Awaitable[Response]]


@dataclass(frozen=True)
class AdminRequest:
    """A request from a logged-in administrator."""

    request: Request
    web: WebState
    login: Login

    def draw(self, template: str, status: int = 200, **values: Any) -> Response:
        """Render a page from its template for this administrator."""
        return draw(self.web, self.request, template, self.login, status, **values)

    @property
    def run(self) -> Administration:
        """The administrative actions, recorded in the audit log under this administrator's name."""
        services = self.web.services
        return Administration(services.database, services.membership, f"web:{self.login.name}", services.clock)

    async def act(self, do: Callable[[Administration], object], page: Page, then: str) -> Response:
        """Perform a form's action and redirect to `then`; show errors on the form's page."""
        try:
            await asyncio.to_thread(do, self.run)
        except ConfigError as error:
            return await page(self, 400, error=str(error))
        return RedirectResponse(then, 303)


async def admin_request(request: Request, web: Web) -> AdminRequest:
    """Authenticate a request (FastAPI dependency). Raises `LoginNeededError` without a login."""
    require_privacy(request)
    token = token_of(request)
    login = await asyncio.to_thread(web.login_desk.administrators.login_of, token) if token else None
    if login is None:
        raise LoginNeededError
    return AdminRequest(request, web, login)


Who = Annotated[AdminRequest, Depends(admin_request)]
Fields = defaultdict[str, str]


async def posted_form(visit: Who) -> Fields:
    """Return a form's fields after checking its origin and CSRF token; missing fields are empty."""
    require_own_origin(visit.request)
    form = defaultdict(str, await read_form(visit.request))
    require_csrf(visit.login, form["csrf"])
    return form


Form = Annotated[Fields, Depends(posted_form)]
