"""The administrators' page that steers the live run, and the same acts as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from auth.errors import ConfigError
from coordinator.administrators import Login
from coordinator.steering import Act, Steersman, announcements, read_helm
from coordinator.web.admin_api import own_request
from coordinator.web.admin_pages import Form, Who, administration, draw

router = APIRouter(tags=["administration"])
SHOWN_ANNOUNCEMENTS = 20
Count = Annotated[int, Field(ge=0, le=2**40)]


class SteeringRequest(BaseModel):
    """One act, with what it needs: a step to stop with, what to change from which step, a text to announce."""

    model_config = ConfigDict(extra="forbid")
    act: Act
    step: Count | None = None
    learning_rate_scale: float | None = None
    target_batch_size: Count | None = None
    checkpoint_every: Count | None = None
    text: Annotated[str, Field(max_length=1000)] = ""

    def take(self, steersman: Steersman) -> str:
        """Do it; returns what follows. Raises `ConfigError`."""
        if self.act == "pause":
            return steersman.pause()
        if self.act == "resume":
            return steersman.resume()
        if self.act == "stop":
            return steersman.stop_at(self.step)
        if self.act == "announce":
            return steersman.announce(self.text)
        return steersman.change(
            self.step,
            learning_rate_scale=self.learning_rate_scale,
            target_batch_size=self.target_batch_size,
            checkpoint_every=self.checkpoint_every,
        )


@router.get("/admin/steering", include_in_schema=False)
async def steering(request: Request, login: Who) -> Response:
    """What holds, what is to come, and the forms."""
    return await _steering(request, login)


@router.post("/admin/steer", include_in_schema=False)
async def steer(request: Request, login: Who, form: Form) -> Response:
    """One act from a form; fields that are left empty say nothing."""
    fields = {name: value for name, value in form.items() if name in SteeringRequest.model_fields and value}
    try:
        act = SteeringRequest.model_validate(fields)
    except ValueError:
        return await _steering(request, login, 400, error="Steps and samples are whole numbers, the scale a number.")
    try:
        await _steer(request, login, act.take)
    except ConfigError as error:
        return await _steering(request, login, 400, error=str(error))
    return RedirectResponse("/admin/steering", 303)


@router.post("/api/admin/v1/steer", dependencies=[Depends(own_request)])
async def steer_by_api(request: Request, login: Who, body: SteeringRequest) -> dict[str, str]:
    """Steer the live run."""
    return {"done": await _steer(request, login, body.take)}


async def _steer(request: Request, login: Login, act: Callable[[Steersman], str]) -> str:
    return await asyncio.to_thread(administration(request, login).steer, request.app.state.config, act)


async def _steering(request: Request, login: Login, status: int = 200, **values: Any) -> Response:
    sessions = request.app.state.sessions
    helm, said = await asyncio.to_thread(lambda: (read_helm(sessions), announcements(sessions)))
    newest = said[::-1][:SHOWN_ANNOUNCEMENTS]
    return draw(request, "steering.html", login, status, helm=helm, announcements=newest, **values)
