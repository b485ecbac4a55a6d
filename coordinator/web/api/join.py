"""The API for joining: commands, machine requirements, invite codes, and the run's software.

The software consists of the wheel, the exact versions of its dependencies, the notebook, and
instructions for a coding agent. The URLs of the wheel and the constraints contain digests.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated

from fastapi import APIRouter, HTTPException, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from auth.invite_codes import tidy_invite_code
from coordinator.context.services import RunServices
from coordinator.members.join_page import (
    MAX_CODE_CHARS,
    Invitation,
    InviteState,
    Notebooks,
    QrCode,
    invite_facts,
    joining_line,
    notebooks_of,
)
from coordinator.run.software import NOTEBOOK_NAME, SKILL_NAME
from coordinator.statistics.verdict import usual_interval_s
from coordinator.web.http.answers import Tenths, answer, encode
from coordinator.web.state.snapshot import Snapshot
from coordinator.web.state.web_state import Web, WebState
from peer.limits.usage import LIBRARIES_BYTES
from peer.runtime.software import install_commands

router = APIRouter(tags=["people"])
STATE_COPIES = 3  # required memory as a multiple of the state (3 models): the state plus 6 more model copies


class SoftwareLinks(BaseModel):
    """URLs of the run's software; `wheel` and `constraints` end in `#sha256=` and a digest."""

    version: str
    wheel: str
    constraints: str
    install: list[str]  # commands to download, verify and install the wheel in its own directory
    notebook: str  # URL of the notebook, filled in with the software's URL and the join link
    skill: str  # URL of the instructions for a coding agent that joins for a user


class LoginLink(BaseModel):
    """An identity provider that can be used instead of an invite."""

    name: str
    title: str


class Needs(BaseModel):
    """Machine requirements; sizes are null until the first checkpoint, `step_s` until step 2."""

    state_bytes: int | None  # size of model and optimizer state, downloaded on joining
    memory_bytes: int | None  # approximate memory for libraries, state, and the model copies needed for averaging
    step_s: Tenths | None  # median duration of the latest global steps in seconds
    sequence_length: int  # tokens per sample
    target_batch_size: int  # samples per global step


class Joining(BaseModel):
    """Instructions for joining this run."""

    run: str
    join_link: str
    command: str  # shell command to join if the run's software is installed
    one_line: str  # shell command that installs the software, then joins
    software: SoftwareLinks
    notebooks: Notebooks | None
    logins: list[LoginLink]
    needs: Needs


class InviteCode(BaseModel):
    """An invite code, sent in the body because URLs are logged."""

    model_config = ConfigDict(extra="forbid")
    code: Annotated[str, Field(min_length=1, max_length=MAX_CODE_CHARS)]


class InviteAnswer(BaseModel):
    """The state of an invite code; the other fields are empty if the code is unknown."""

    state: InviteState
    member: str
    expires_at: float | None
    invitation: Invitation | None  # join commands and the invite page's URL; null unless the code is unused
    qr: QrCode | None  # QR code of the invite page's URL; null without an invitation


@router.get("/api/v1/joining", response_model=Joining)
async def joining(request: Request, web: Web) -> Response:
    """Return the instructions for joining and the machine requirements."""
    return await web.answer(request, "joining", web.snapshot.taken_at, partial(joining_of, web, web.snapshot))


@router.post("/api/v1/invite", response_model=InviteAnswer)
async def invite(web: Web, body: InviteCode) -> Response:
    """Return the state of an invite code, the invited member, and the commands to join."""
    services = web.services
    found = await asyncio.to_thread(invite_facts, services.database, body.code, services.clock())
    invitation = None
    if found.state == "open":
        code, software = tidy_invite_code(body.code), services.software_address
        invitation = Invitation.of(code, found.role, web.join_link, services.web_address, software)
    qr = None if invitation is None else QrCode.of(invitation.page)
    said = InviteAnswer(**vars(found), invitation=invitation, qr=qr)
    return Response(encode(said).content, media_type="application/json", headers={"Cache-Control": "no-store"})


def joining_of(web: WebState, snapshot: Snapshot) -> Joining:
    """Build the response for `/api/v1/joining`."""
    services, link = web.services, web.join_link
    command = f"manyhands join '{link}'"
    config = services.config.at_step(snapshot.swarm.step if snapshot.swarm else 0)
    state_bytes = None if snapshot.checkpoint is None else snapshot.checkpoint.size_bytes
    return Joining(
        run=config.run.name,
        join_link=link,
        command=command,
        one_line=joining_line(services.software_address, command),
        software=software_links(services),
        notebooks=notebooks_of(web.directory.settings.notebook_url),
        logins=[LoginLink(name=name, title=title) for name, title in services.logins.titles.items()],
        needs=Needs(
            state_bytes=state_bytes,
            memory_bytes=None if state_bytes is None else LIBRARIES_BYTES + STATE_COPIES * state_bytes,
            step_s=usual_interval_s(snapshot.steps),
            sequence_length=config.data.sequence_length,
            target_batch_size=config.averaging.target_batch_size,
        ),
    )


def software_links(services: RunServices) -> SoftwareLinks:
    """Return the URLs of the run's software."""
    return SoftwareLinks(
        version=services.software.version,
        wheel=services.software_address,
        constraints=services.software.constraints_address(services.web_address),
        install=list(install_commands(services.software_address)),
        notebook=f"{services.web_address}/software/{NOTEBOOK_NAME}",
        skill=f"{services.web_address}/software/{SKILL_NAME}",
    )


@router.get("/software/{name}", include_in_schema=False)
@router.head("/software/{name}", include_in_schema=False)
def software_file(request: Request, web: Web, name: str) -> Response:
    """Serve one file of the run's software; wheels of older versions are not available."""
    found = web.software.get(name)
    if found is None:
        raise HTTPException(404, "The run no longer provides this file, or never did: see the run's join page.")
    return answer(request, found)
