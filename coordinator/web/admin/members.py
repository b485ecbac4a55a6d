"""The administrators' pages about members and devices; templates escape all text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from auth.errors import ConfigError
from coordinator.members.administration import Administration
from coordinator.members.audit import audit_log
from coordinator.members.devices import device_rows
from coordinator.members.invites import ROLE_RANKS
from coordinator.members.join_page import Invitation, QrCode
from coordinator.members.names import display_names
from coordinator.members.quarantine import quarantines as devices_in_quarantine
from coordinator.store.refusals import newest_refusals
from coordinator.web.admin.admin_request import AdminRequest, Fields, Form, Page, Who, draw
from coordinator.web.admin.listing import Listing
from coordinator.web.http.login import (
    clear_cookie,
    read_form,
    require_own_origin,
    require_privacy,
    set_cookie,
    token_of,
)
from coordinator.web.state.web_state import Web

router = APIRouter(prefix="/admin", include_in_schema=False)


@router.get("/login")
async def login_form(request: Request, web: Web) -> Response:
    """Show the login form."""
    require_privacy(request)
    return draw(web, request, "login.html", None)


@router.post("/login")
async def log_in(request: Request, web: Web) -> Response:
    """Check the name and the password, and set the login cookie."""
    require_privacy(request)
    require_own_origin(request)
    form = await read_form(request)
    token = await web.login_desk.log_in(request, form.get("name", ""), form.get("password", ""))
    if token is None:
        return draw(web, request, "login.html", None, 403, error="The name or the password is wrong.")
    answer = RedirectResponse("/admin", 303)
    set_cookie(request, answer, token)
    return answer


@router.post("/logout")
async def log_out(visit: Who, _form: Form) -> Response:
    """Invalidate the login on the server, and delete its cookie."""
    await asyncio.to_thread(visit.web.login_desk.administrators.log_out, token_of(visit.request))
    answer = RedirectResponse("/admin/login", 303)
    clear_cookie(visit.request, answer)
    return answer


@router.get("")
async def members(visit: Who) -> Response:
    """List the members, with forms to invite, rename, revoke or erase a member."""
    return await _members(visit)


@router.post("/invite")
async def invite(visit: Who, form: Form) -> Response:
    """Create an invite code and show it once."""
    name, role, services = form["name"], form["role"], visit.web.services
    try:
        [code] = await asyncio.to_thread(visit.run.invite, name, role, number(form["days"]))
    except ConfigError as error:
        return await _members(visit, 400, error=str(error))
    link, software = visit.web.join_link, services.software_address
    invitation = Invitation.of(code, role, link, services.web_address, software)
    return await _members(visit, invited=name, invitation=invitation, qr=QrCode.of(invitation.page))


def number(text: str) -> float:
    """Parse a number from a form. Raises `ConfigError` if it is not a number."""
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError("The days must be a number.") from error


@router.get("/devices")
async def devices(visit: Who) -> Response:
    """List the devices of one member or of all members."""
    return await _devices(visit)


@router.get("/quarantine")
async def quarantines(visit: Who) -> Response:
    """List the quarantined devices, with the reports about them."""
    return await _quarantines(visit)


@router.get("/refusals")
async def refusals(visit: Who) -> Response:
    """List refused requests with member, device and reason."""
    return await _log(visit, newest_refusals, "refusals.html")


@router.get("/audit")
async def audit(visit: Who) -> Response:
    """Show the audit log."""
    return await _log(visit, audit_log, "audit.html")


async def _log(visit: AdminRequest, read: Callable[..., Sequence[Any]], template: str) -> Response:
    listing = Listing.asked_for(visit.request)
    rows = await asyncio.to_thread(read, visit.web.database, listing.limit, listing.offset, listing.search)
    return visit.draw(template, **listing.shown(rows))


async def _quarantines(visit: AdminRequest, status: int = 200, **values: Any) -> Response:
    found = await asyncio.to_thread(devices_in_quarantine, visit.web.database)
    return visit.draw("quarantine.html", status, quarantines=found, **values)


async def _members(visit: AdminRequest, status: int = 200, **values: Any) -> Response:
    services, listing = visit.web.services, Listing.asked_for(visit.request)
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
    return visit.draw("members.html", status, **listing.shown(part), **values)


def _contains(texts: Iterable[str], search: str) -> bool:
    return any(search.casefold() in text.casefold() for text in texts)


async def _devices(visit: AdminRequest, status: int = 200, member: str | None = None, **values: Any) -> Response:
    """Show the devices of `member`, or the devices selected by the URL if `member` is None."""
    listing = Listing.asked_for(visit.request) if member is None else Listing(member=member)
    part = (listing.member, listing.limit, listing.offset, listing.search)
    found = await asyncio.to_thread(device_rows, visit.web.database, *part)
    return visit.draw("devices.html", status, **listing.shown(found), **values)


Act = Callable[[Administration, Fields], object]


def _on_members(_form: Fields) -> tuple[Page, str]:
    return _members, "/admin"


def _on_devices(form: Fields) -> tuple[Page, str]:
    member = form["name"]
    return partial(_devices, member=member), f"/admin/devices?{urlencode({'member': member})}"


def _on_quarantines(_form: Fields) -> tuple[Page, str]:
    return _quarantines, "/admin/quarantine"


def _erase(run: Administration, form: Fields) -> None:
    if form["name"] != form["confirmation"]:
        raise ConfigError("To erase a member, type exactly the same name again.")
    run.erase(form["name"])


# (path of the form, function that returns its page and the URL to redirect to, action)
FORMS: Sequence[tuple[str, Callable[[Fields], tuple[Page, str]], Act]] = (
    ("revoke", _on_members, lambda run, form: run.revoke(form["name"], form["reason"])),
    ("display-name", _on_members, lambda run, form: run.show_as(form["name"], form["display_name"])),
    ("hide-name", _on_members, lambda run, form: run.hide_name(form["name"], form["hidden"] == "yes")),
    ("erase", _on_members, _erase),
    ("revoke-device", _on_devices, lambda run, form: run.revoke_device(form["name"], form["device"], form["reason"])),
    ("quarantine", _on_devices, lambda run, form: run.quarantine(form["name"], form["device"], form["reason"])),
    ("lift", _on_quarantines, lambda run, form: run.lift(form["name"], form["device"])),
)


def _offer(name: str, where: Callable[[Fields], tuple[Page, str]], act: Act) -> None:
    @router.post(f"/{name}")
    async def post(visit: Who, form: Form) -> Response:
        page, then = where(form)
        return await visit.act(lambda run: act(run, form), page, then)


for _form in FORMS:
    _offer(*_form)
