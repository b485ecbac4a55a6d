"""The administrators' JSON API, behind the same login as the pages: its cookie, and its second token as a header."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Request
from pydantic import BaseModel, ConfigDict, Field

from coordinator.members.administrators import Login
from coordinator.web.admin.login import current_login, require_csrf, require_own_origin
from coordinator.web.admin.members import administration

router = APIRouter(prefix="/api/admin/v1", tags=["administration"])
Who = Annotated[Login, Depends(current_login)]
Text = Annotated[str, Field(max_length=200)]


async def own_request(request: Request, login: Who, x_csrf_token: Annotated[str, Header(max_length=64)]) -> None:
    """A dependency of what changes something: this login's second token came along, from our own page if from any."""
    if "origin" in request.headers:
        require_own_origin(request)
    require_csrf(login, x_csrf_token)


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: Text


class Invitation(_Body):
    """Whom to invite."""

    role: Text = "trainer"
    days: float = 7.0


class Revocation(_Body):
    """Whom to shut out, and why."""

    reason: Text = ""


class DeviceRevocation(Revocation):
    """Which of a member's devices to shut out: enough of the beginning of its id."""

    device: Text


class Release(_Body):
    """Whose quarantine to lift; without a device, that of all the member's devices."""

    device: Text = ""


class Return(BaseModel):
    """To which checkpoint, and the ids of devices to cut off, of those that contributed since."""

    model_config = ConfigDict(extra="forbid")
    step: Annotated[int, Field(ge=0, le=2**40)]
    suspects: Annotated[list[Text], Field(max_length=1000)] = []


class PublicName(_Body):
    """Under which name the public sees a member; empty: the member's own."""

    display_name: Text = ""


class HiddenName(_Body):
    """Whose name the public is not to see, or is to see again."""

    hidden: bool = True


class Erasure(_Body):
    """Whom to forget; the name twice."""

    confirmation: Text


@router.get("/session")
async def session(login: Who) -> dict[str, str]:
    """Who is logged in, and the token that changes need as `X-CSRF-Token`."""
    return {"name": login.name, "csrf_token": login.csrf_token}


@router.get("/members")
async def members(request: Request, login: Who) -> list[dict[str, Any]]:
    """All members, as the operator sees them."""
    found = await asyncio.to_thread(administration(request, login).members)
    return [{**asdict(row), "display_name": shown} for row, shown in found]


@router.get("/devices")
async def devices(request: Request, login: Who, member: Text = "") -> list[dict[str, Any]]:
    """The newest devices, of one member or of all."""
    return [asdict(row) for row in await asyncio.to_thread(administration(request, login).devices, member)]


@router.get("/refusals")
async def refusals(request: Request, login: Who) -> list[dict[str, Any]]:
    """The newest refusals."""
    return [asdict(row) for row in await asyncio.to_thread(administration(request, login).refusals)]


@router.get("/audit")
async def audit(request: Request, login: Who) -> list[dict[str, Any]]:
    """The newest acts of administration."""
    return [asdict(row) for row in await asyncio.to_thread(administration(request, login).audit)]


@router.post("/invite", dependencies=[Depends(own_request)])
async def invite(request: Request, login: Who, body: Invitation) -> dict[str, str]:
    """A new code, which is told only now."""
    run = administration(request, login)
    return {"code": await asyncio.to_thread(run.invite, body.name, body.role, body.days)}


@router.post("/revoke", dependencies=[Depends(own_request)])
async def revoke(request: Request, login: Who, body: Revocation) -> dict[str, int]:
    """Shut a member out."""
    run = administration(request, login)
    return {"devices_revoked": await asyncio.to_thread(run.revoke, body.name, body.reason)}


@router.post("/revoke-device", dependencies=[Depends(own_request)])
async def revoke_device(request: Request, login: Who, body: DeviceRevocation) -> dict[str, str]:
    """Shut one device of a member out."""
    run = administration(request, login)
    return {"device_revoked": await asyncio.to_thread(run.revoke_device, body.name, body.device, body.reason)}


@router.get("/quarantine")
async def quarantines(request: Request, login: Who) -> list[dict[str, Any]]:
    """The devices in quarantine, and by whose words."""
    return [asdict(row) for row in await asyncio.to_thread(administration(request, login).quarantines)]


@router.post("/quarantine", dependencies=[Depends(own_request)])
async def quarantine(request: Request, login: Who, body: DeviceRevocation) -> dict[str, str]:
    """Cut one device of a member off until that is lifted."""
    run = administration(request, login)
    return {"device_quarantined": await asyncio.to_thread(run.quarantine, body.name, body.device, body.reason)}


@router.post("/lift", dependencies=[Depends(own_request)])
async def lift(request: Request, login: Who, body: Release) -> dict[str, list[str]]:
    """Lift a quarantine."""
    run = administration(request, login)
    return {"devices_released": await asyncio.to_thread(run.lift, body.name, body.device)}


@router.post("/rewind", dependencies=[Depends(own_request)])
async def rewind(request: Request, login: Who, body: Return) -> dict[str, int]:
    """Undo all steps after a checkpoint's."""
    run, state = administration(request, login), request.app.state
    undone, era = await asyncio.to_thread(
        run.rewind, state.checkpoints_dir, state.services.ledger, body.step, body.suspects
    )
    return {"steps_undone": undone, "era": era}


@router.post("/display-name", dependencies=[Depends(own_request)])
async def display_name(request: Request, login: Who, body: PublicName) -> dict[str, str]:
    """Show a member under another name."""
    run = administration(request, login)
    await asyncio.to_thread(run.show_as, body.name, body.display_name)
    return {"display_name": body.display_name or body.name}


@router.post("/hide-name", dependencies=[Depends(own_request)])
async def hide_name(request: Request, login: Who, body: HiddenName) -> dict[str, str]:
    """Show the public a number instead of a member's name, or end that."""
    run = administration(request, login)
    return {"shown": await asyncio.to_thread(run.hide_name, body.name, body.hidden)}


@router.post("/erase", dependencies=[Depends(own_request)])
async def erase(request: Request, login: Who, body: Erasure) -> dict[str, str]:
    """Forget a member."""
    run = administration(request, login)
    return {"pseudonym": await asyncio.to_thread(run.erase, body.name, body.confirmation)}
