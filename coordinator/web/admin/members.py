"""The administrators' pages: drawn by the server, without a script; what people wrote is escaped by the templates."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from auth.errors import ConfigError
from coordinator.members.administration import Administration
from coordinator.members.administrators import Login
from coordinator.members.audit import audit_log
from coordinator.members.devices import device_rows
from coordinator.members.invites import ROLE_RANKS
from coordinator.members.join_page import Invitation, QrCode
from coordinator.members.names import display_names
from coordinator.members.quarantine import quarantines as devices_in_quarantine
from coordinator.store.refusals import newest_refusals
from coordinator.web.admin.listing import Listing
from coordinator.web.admin.login import (
    LoginDesk,
    clear_cookie,
    current_login,
    read_form,
    require_csrf,
    require_own_origin,
    require_privacy,
    set_cookie,
    token_of,
)
from dashboards import ADMIN, DEFAULT_LANGUAGE, WEB, catalogs
from peer.runtime.console import format_age

router = APIRouter(prefix="/admin", include_in_schema=False)


def english(key: str) -> str:
    """A text of the parts that these pages share with the public ones, such as `join.uv`."""
    section, _, name = key.partition(".")
    return str(catalogs()[DEFAULT_LANGUAGE][section][name])


templates = Environment(loader=FileSystemLoader([ADMIN, WEB]), autoescape=True, undefined=StrictUndefined)
templates.globals["t"] = english
templates.filters["age"] = lambda at: format_age(at, time.time()) or "never"
Who = Annotated[Login, Depends(current_login)]


async def posted_form(request: Request, login: Who) -> defaultdict[str, str]:
    """The fields of a form that this login's own page has sent; one that it lacks is empty."""
    require_own_origin(request)
    form = defaultdict(str, await read_form(request))
    require_csrf(login, form["csrf"])
    return form


Form = Annotated[defaultdict[str, str], Depends(posted_form)]


def administration(request: Request, login: Login) -> Administration:
    """The run, for this administrator."""
    services = request.app.state.services
    return Administration(services.database, services.membership, f"web:{login.name}", services.clock)


@router.get("/login")
async def login_form(request: Request) -> Response:
    """The form."""
    require_privacy(request)
    return draw(request, "login.html", None)


@router.post("/login")
async def log_in(request: Request) -> Response:
    """Check name and password."""
    require_privacy(request)
    require_own_origin(request)
    form = await read_form(request)
    desk: LoginDesk = request.app.state.login_desk
    token = await desk.log_in(request, form.get("name", ""), form.get("password", ""))
    if token is None:
        return draw(request, "login.html", None, 403, error="The name or the password is wrong.")
    answer = RedirectResponse("/admin", 303)
    set_cookie(request, answer, token)
    return answer


@router.post("/logout")
async def log_out(request: Request, _form: Form) -> Response:
    """End the login, here and on the server."""
    desk: LoginDesk = request.app.state.login_desk
    await asyncio.to_thread(desk.administrators.log_out, token_of(request))
    answer = RedirectResponse("/admin/login", 303)
    clear_cookie(request, answer)
    return answer


@router.get("")
async def members(request: Request, login: Who) -> Response:
    """All members, and what can be done to them."""
    return await _members(request, login)


@router.post("/invite")
async def invite(request: Request, login: Who, form: Form) -> Response:
    """Make a code and show it, this once."""
    name, role = form["name"], form["role"]
    try:
        run = administration(request, login)
        [code] = await asyncio.to_thread(run.invite, name, role, number(form["days"]))
    except ConfigError as error:
        return await _members(request, login, 400, error=str(error))
    services = request.app.state.services
    link, software = request.app.state.join_link, services.software_address
    invitation = Invitation.of(code, role, link, services.web_address, software)
    return await _members(request, login, invited=name, invitation=invitation, qr=QrCode.of(invitation.page))


@router.post("/revoke")
async def revoke(request: Request, login: Who, form: Form) -> Response:
    """Shut a member out."""
    return await _act_on_member(request, login, lambda run: run.revoke(form["name"], form["reason"]))


@router.post("/revoke-device")
async def revoke_device(request: Request, login: Who, form: Form) -> Response:
    """Shut one device of a member out."""
    name, device, reason = form["name"], form["device"], form["reason"]
    return await _act_on_device(request, login, name, lambda run: run.revoke_device(name, device, reason))


@router.get("/quarantine")
async def quarantines(request: Request, login: Who) -> Response:
    """Which devices are cut off for now, and by whose words."""
    return await _quarantines(request, login)


@router.post("/quarantine")
async def quarantine(request: Request, login: Who, form: Form) -> Response:
    """Cut one device of a member off until that is lifted."""
    name, device, reason = form["name"], form["device"], form["reason"]
    return await _act_on_device(request, login, name, lambda run: run.quarantine(name, device, reason))


@router.post("/lift")
async def lift(request: Request, login: Who, form: Form) -> Response:
    """Lift the quarantine of a device."""
    page = partial(_quarantines, request, login)
    return await act_on(request, login, lambda run: run.lift(form["name"], form["device"]), page, "/admin/quarantine")


@router.post("/display-name")
async def display_name(request: Request, login: Who, form: Form) -> Response:
    """Show a member under another name."""
    return await _act_on_member(request, login, lambda run: run.show_as(form["name"], form["display_name"]))


@router.post("/hide-name")
async def hide_name(request: Request, login: Who, form: Form) -> Response:
    """Show the public a number instead of a name, or end that."""
    return await _act_on_member(request, login, lambda run: run.hide_name(form["name"], form["hidden"] == "yes"))


@router.post("/erase")
async def erase(request: Request, login: Who, form: Form) -> Response:
    """Forget a member, whose name must be typed twice."""

    def forget(run: Administration) -> None:
        if form["name"] != form["confirmation"]:
            raise ConfigError("To erase a member, type the very same name again.")
        run.erase(form["name"])

    return await _act_on_member(request, login, forget)


@router.get("/devices")
async def devices(request: Request, login: Who) -> Response:
    """The members' machines, or one member's."""
    return await _devices(request, login, Listing.asked_for(request))


@router.get("/refusals")
async def refusals(request: Request, login: Who) -> Response:
    """The refused requests, each with its member, device and reason."""
    return await _log(request, login, newest_refusals, "refusals.html")


@router.get("/audit")
async def audit(request: Request, login: Who) -> Response:
    """Who did what."""
    return await _log(request, login, audit_log, "audit.html")


async def _log(request: Request, login: Login, read: Callable[..., Sequence[Any]], template: str) -> Response:
    listing = Listing.asked_for(request)
    rows = await asyncio.to_thread(read, request.app.state.database, listing.limit, listing.offset, listing.search)
    return draw(request, template, login, **listing.shown(rows))


def number(text: str) -> float:
    """A form's number; raises `ConfigError`."""
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError("The days must be a number.") from error


async def act_on(
    request: Request,
    login: Login,
    act: Callable[[Administration], object],
    page: Callable[..., Awaitable[Response]],
    then: str,
) -> Response:
    """Do what a form asks for, and send the browser on; a refusal is told on the form's own page."""
    try:
        await asyncio.to_thread(act, administration(request, login))
    except ConfigError as error:
        return await page(400, error=str(error))
    return RedirectResponse(then, 303)


async def _act_on_member(request: Request, login: Login, act: Callable[[Administration], object]) -> Response:
    return await act_on(request, login, act, partial(_members, request, login), "/admin")


async def _act_on_device(
    request: Request, login: Login, member: str, act: Callable[[Administration], object]
) -> Response:
    then = f"/admin/devices?{urlencode({'member': member})}"
    page = partial(_devices, request, login, Listing(member=member))
    return await act_on(request, login, act, page, then)


async def _quarantines(request: Request, login: Login, status: int = 200, **values: Any) -> Response:
    found = await asyncio.to_thread(devices_in_quarantine, request.app.state.database)
    return draw(request, "quarantine.html", login, status, quarantines=found, **values)


async def _members(request: Request, login: Login, status: int = 200, **values: Any) -> Response:
    services = request.app.state.services
    listing = Listing.asked_for(request)
    rows = await asyncio.to_thread(services.membership.members)
    shown = await asyncio.to_thread(display_names, services.database)
    given = {row.member: row for row in await asyncio.to_thread(services.ledger.recent_contributions)}
    found = [
        (row, shown.get(row.name, row.name), given.get(row.name))
        for row in rows
        if _contains((row.name, shown.get(row.name, ""), *row.accounts), listing.search)
    ]
    values = {"invited": "", "invitation": None, "roles": sorted(ROLE_RANKS)} | values
    part = found[listing.offset : listing.offset + listing.limit]
    return draw(request, "members.html", login, status, **listing.shown(part), **values)


def _contains(texts: Iterable[str], search: str) -> bool:
    return any(search.casefold() in text.casefold() for text in texts)


async def _devices(request: Request, login: Login, listing: Listing, status: int = 200, **values: Any) -> Response:
    part = (listing.member, listing.limit, listing.offset, listing.search)
    found = await asyncio.to_thread(device_rows, request.app.state.database, *part)
    return draw(request, "devices.html", login, status, **listing.shown(found), **values)


def draw(request: Request, template: str, login: Login | None, status: int = 200, **values: Any) -> Response:
    """A page from its template."""
    known = {"run": request.app.state.config.run.name, "login": login, "here": request.url.path, "error": ""}
    return HTMLResponse(templates.get_template(template).render(known | values), status)
