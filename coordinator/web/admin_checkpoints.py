"""The administrators' page of checkpoints: which there are, and going back to one of them."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from auth.errors import ConfigError
from coordinator.administrators import Login
from coordinator.presence import CheckpointRow
from coordinator.web.admin_pages import Form, Who, administration, draw
from coordinator.web.live import LiveSnapshot

router = APIRouter(prefix="/admin", include_in_schema=False)
SUSPECT = "suspect-"  # a field for each device that is to be cut off, followed by its id
Step = Annotated[int, Query(ge=0, le=2**40)]


@router.get("/checkpoints")
async def checkpoints(request: Request, login: Who, step: Step | None = None) -> Response:
    """All checkpoints; with a step, who has contributed since, and the form to go back to it."""
    return await _checkpoints(request, login, step)


@router.post("/rewind")
async def rewind(request: Request, login: Who, form: Form) -> Response:
    """Undo all steps after a checkpoint's, which must be typed again."""
    step = form.get("step", "")
    suspects = [name.removeprefix(SUSPECT) for name in form if name.startswith(SUSPECT)]
    try:
        if not step.isdecimal() or step != form.get("confirmation"):
            raise ConfigError("To go back to a checkpoint, type its step again.")
        run, state = administration(request, login), request.app.state
        await asyncio.to_thread(run.rewind, state.checkpoints_dir, state.services.ledger, int(step), suspects)
    except ConfigError as error:
        return await _checkpoints(request, login, None, 400, error=str(error))
    return RedirectResponse("/admin/checkpoints", 303)


async def _checkpoints(request: Request, login: Login, step: int | None, status: int = 200, **values: Any) -> Response:
    live: LiveSnapshot = request.app.state.live
    rows: list[CheckpointRow] = list(live.current.checkpoints)
    losses = {row.step: row.facts["loss"] for row in live.current.validations}
    run = administration(request, login)
    since = [] if step is None else await asyncio.to_thread(run.contributors_since, step)
    found = {
        "alarms": live.current.alarms,
        "checkpoints": rows,
        "losses": losses,
        "chosen": step,
        "contributors": since,
    }
    return draw(request, "checkpoints.html", login, status, **found, **values)
