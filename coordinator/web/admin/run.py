"""The administrators' pages about the run: checkpoints, rewinding, and steering."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import Response
from pydantic import BaseModel, Field

from auth.errors import ConfigError, UnconfirmedError
from coordinator.checkpoints.rewind import contributors_since, rewind as undo_steps
from coordinator.ledger.steering import OFFERED, Act, Steersman, announcements, read_helm
from coordinator.members.administration import Administration
from coordinator.web.admin.admin_request import AdminRequest, Form, Who
from peer.config.steering import MAX_CHANGES, RANKS

router = APIRouter(prefix="/admin", include_in_schema=False)

SHOWN_ANNOUNCEMENTS = 20
Count = Annotated[int, Field(ge=0, le=2**40)]
SUSPECT = "suspect-"  # prefix of form fields, followed by the id of a device to quarantine
Step = Annotated[int, Query(ge=0, le=2**40)]


@router.get("/checkpoints")
async def checkpoints(visit: Who, step: Step | None = None) -> Response:
    """List the checkpoints; with `step`, also show a rewind form and later contributors."""
    return await _checkpoints(visit, step=step)


@router.post("/rewind")
async def rewind(visit: Who, form: Form) -> Response:
    """Undo all steps after a checkpoint; to confirm, the user types the checkpoint's step again."""
    step, web = form["step"], visit.web
    suspects = [name.removeprefix(SUSPECT) for name in form if name.startswith(SUSPECT)]

    def undo(run: Administration) -> None:
        if not step.isdecimal() or step != form["confirmation"]:
            raise ConfigError("To go back to a checkpoint, type its step again.")
        undo_steps(run, web.directory.checkpoints_dir, web.services.ledger, int(step), suspects)

    return await visit.act(undo, _checkpoints, "/admin/checkpoints")


class SteeringRequest(BaseModel):
    """A steering action with its arguments: a final step, changed settings, or an announcement."""

    act: Act
    step: Count | None = None
    learning_rate_scale: float | None = None
    target_batch_size: Count | None = None
    checkpoint_every: Count | None = None
    compression: Annotated[str, Field(max_length=32)] | None = None
    powersgd_rank: Count | None = None
    text: Annotated[str, Field(max_length=1000)] = ""
    confirmed: bool = False  # True if the user has accepted the consequences of the change

    def take(self, steersman: Steersman) -> str:
        """Perform the action; return its consequences as text. Raises `ConfigError` if refused."""
        if self.act == "pause":
            return steersman.pause()
        if self.act == "resume":
            return steersman.resume()
        if self.act == "stop":
            return steersman.stop_at(self.step)
        if self.act == "announce":
            return steersman.announce(self.text)
        return steersman.change(self.step, **self.model_dump(exclude={"act", "step", "text"}))


@router.get("/steering")
async def steering(visit: Who) -> Response:
    """Show the current and scheduled settings, and the forms to change them."""
    return await _steering(visit)


@router.post("/steer")
async def steer(visit: Who, form: Form) -> Response:
    """Perform the steering action from a form; empty fields are ignored."""
    fields = {name: value for name, value in form.items() if value}

    def take(run: Administration) -> None:
        try:
            wish = SteeringRequest.model_validate(fields)
        except ValueError as error:
            raise ConfigError("Steps, samples and the rank are whole numbers, the scale a number.") from error
        run.steer(visit.web.config, wish.take)

    try:
        return await visit.act(take, _steering, "/admin/steering")
    except UnconfirmedError as error:
        known = SteeringRequest.model_fields.keys() - {"confirmed"}
        asked = {name: value for name, value in fields.items() if name in known}
        return await _steering(visit, 409, error=error.consequences, asked=asked)


async def _checkpoints(visit: AdminRequest, status: int = 200, step: int | None = None, **values: Any) -> Response:
    snapshot, database = visit.web.snapshot, visit.web.database
    return visit.draw(
        "checkpoints.html",
        status,
        alarms=[(alarm, snapshot.return_point(alarm)) for alarm in snapshot.alarms],
        checkpoints=snapshot.checkpoints,
        losses={row.step: row.loss for row in snapshot.validations},
        chosen=step,
        contributors=[] if step is None else await asyncio.to_thread(contributors_since, database, step),
        **values,
    )


async def _steering(
    visit: AdminRequest, status: int = 200, asked: Mapping[str, str] | None = None, **values: Any
) -> Response:
    database, config = visit.web.database, visit.web.config
    helm, said = await asyncio.to_thread(lambda: (read_helm(database), announcements(database)))
    return visit.draw(
        "steering.html",
        status,
        helm=helm,
        chooses=helm.chooses(config),
        orders=helm.orders[-MAX_CHANGES:],  # the current change and all scheduled changes
        announcements=said[::-1][:SHOWN_ANNOUNCEMENTS],
        asked=asked or {},
        compressions=OFFERED,
        ranks=() if config.averaging.aggregation == "centered_clipping" else RANKS,
        **values,
    )
