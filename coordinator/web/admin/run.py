"""The administrators' pages about the run: checkpoints, the return to one of them, and steering of the live run."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from auth.errors import ConfigError, UnconfirmedError
from coordinator.checkpoints.rewind import contributors_since, rewind as undo_steps
from coordinator.ledger.presence import CheckpointRow
from coordinator.ledger.steering import OFFERED, Act, Steersman, announcements, read_helm
from coordinator.members.administration import Administration
from coordinator.members.administrators import Login
from coordinator.web.admin.members import Form, Who, act_on, draw
from coordinator.web.state.live import LiveSnapshot
from peer.config.steering import MAX_CHANGES, RANKS

router = APIRouter(prefix="/admin", include_in_schema=False)

SHOWN_ANNOUNCEMENTS = 20
Count = Annotated[int, Field(ge=0, le=2**40)]
SUSPECT = "suspect-"  # a field for each device that is to be cut off, followed by its id
Step = Annotated[int, Query(ge=0, le=2**40)]


@router.get("/checkpoints")
async def checkpoints(request: Request, login: Who, step: Step | None = None) -> Response:
    """All checkpoints; with a step, who has contributed since, and the form to go back to it."""
    return await _checkpoints(request, login, step)


@router.post("/rewind")
async def rewind(request: Request, login: Who, form: Form) -> Response:
    """Undo all steps after a checkpoint's, which must be typed again."""
    step, state = form["step"], request.app.state
    suspects = [name.removeprefix(SUSPECT) for name in form if name.startswith(SUSPECT)]

    def undo(run: Administration) -> None:
        if not step.isdecimal() or step != form["confirmation"]:
            raise ConfigError("To go back to a checkpoint, type its step again.")
        undo_steps(run, state.checkpoints_dir, state.services.ledger, int(step), suspects)

    return await act_on(request, login, undo, partial(_checkpoints, request, login, None), "/admin/checkpoints")


class SteeringRequest(BaseModel):
    """One act, with what it needs: a step to stop with, what to change from which step, a text to announce."""

    act: Act
    step: Count | None = None
    learning_rate_scale: float | None = None
    target_batch_size: Count | None = None
    checkpoint_every: Count | None = None
    compression: Annotated[str, Field(max_length=32)] | None = None
    powersgd_rank: Count | None = None
    text: Annotated[str, Field(max_length=1000)] = ""
    confirmed: bool = False  # the person has read what the change would do

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
            compression=self.compression,
            powersgd_rank=self.powersgd_rank,
            confirmed=self.confirmed,
        )


@router.get("/steering")
async def steering(request: Request, login: Who) -> Response:
    """What holds, what is to come, and the forms."""
    return await _steering(request, login)


@router.post("/steer")
async def steer(request: Request, login: Who, form: Form) -> Response:
    """One act from a form; fields that are left empty say nothing."""
    fields = {name: value for name, value in form.items() if value}

    def take(run: Administration) -> None:
        try:
            wish = SteeringRequest.model_validate(fields)
        except ValueError as error:
            raise ConfigError("Steps, samples and the rank are whole numbers, the scale a number.") from error
        run.steer(request.app.state.config, wish.take)

    try:
        return await act_on(request, login, take, partial(_steering, request, login), "/admin/steering")
    except UnconfirmedError as error:
        asked = {
            name: value for name, value in fields.items() if name in SteeringRequest.model_fields.keys() - {"confirmed"}
        }
        return await _steering(request, login, 409, error=error.consequences, asked=asked)


async def _checkpoints(request: Request, login: Login, step: int | None, status: int = 200, **values: Any) -> Response:
    live: LiveSnapshot = request.app.state.live
    rows: list[CheckpointRow] = list(live.current.checkpoints)
    losses = {row.step: row.facts["loss"] for row in live.current.validations}
    since = [] if step is None else await asyncio.to_thread(contributors_since, request.app.state.database, step)
    found = {
        "alarms": [(alarm, live.current.return_point(alarm)) for alarm in live.current.alarms],
        "checkpoints": rows,
        "losses": losses,
        "chosen": step,
        "contributors": since,
    }
    return draw(request, "checkpoints.html", login, status, **found, **values)


async def _steering(request: Request, login: Login, status: int = 200, **values: Any) -> Response:
    database = request.app.state.database
    helm, said = await asyncio.to_thread(lambda: (read_helm(database), announcements(database)))
    averaging = request.app.state.config.averaging
    values = (
        {
            "helm": helm,
            "chooses": helm.chooses(request.app.state.config),
            "orders": helm.orders[-MAX_CHANGES:],  # all that are to come, and the one in force
            "announcements": said[::-1][:SHOWN_ANNOUNCEMENTS],
            "asked": {},
            "compressions": () if averaging.sends_sparse else OFFERED,
            "ranks": () if averaging.sends_sparse or averaging.aggregation == "centered_clipping" else RANKS,
        }
        | values
    )
    return draw(request, "steering.html", login, status, **values)
