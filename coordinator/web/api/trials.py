"""The API for trying the model: visitors' sentences are queued, and answers are polled by id."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, HTTPException, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from coordinator.ledger.recorded_checkpoints import CheckpointRow
from coordinator.playground.questions import (
    MAX_BLANKS,
    MAX_CHARACTERS,
    PATIENCE_S,
    Candidate,
    QuestionRow,
    QueueFullError,
    ask,
    clean_sentence,
    find_question,
)
from coordinator.throttling.rate_limits import http_caller
from coordinator.web.state.snapshot import Snapshot
from coordinator.web.state.web_state import ASKS_PER_MINUTE, Web
from peer.config.run import RunConfig

WAIT = {"Retry-After": "10"}
MAX_PAGE_CHECKPOINTS = 12  # maximum number of checkpoints that the page compares for one sentence
Progress = Literal["waiting", "answered", "failed"]
router = APIRouter(prefix="/api/v1/trials", tags=["model"])


class Sentence(BaseModel):
    """A visitor's sentence, and the checkpoint to ask (default: the newest published one)."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    text: Annotated[str, Field(max_length=4 * MAX_CHARACTERS)]
    step: Annotated[int | None, Field(ge=0, le=2**31 - 1)] = None


class QuestionStatus(BaseModel):
    """A question's state; `blanks` has the likeliest tokens for each blank or the next token."""

    id: str
    step: int
    manifest_sha256: str
    state: Progress
    text: str
    blanks: Sequence[Sequence[Candidate]]
    reason: str
    ahead: int


class Playground(BaseModel):
    """The settings of the playground, where visitors try the model."""

    on: bool
    kind: Literal["blanks", "continuation"]
    auto_class: str  # transformers class that loads the run's checkpoints
    language: str
    max_characters: int
    max_blanks: int
    steps: list[int]  # steps of at most `MAX_PAGE_CHECKPOINTS` published checkpoints, ascending


async def admit_asking(request: Request, web: Web) -> None:
    """Limit the rate of questions per address. Raises `HTTPException` 429 above the limit."""
    if not web.asks.allows(http_caller(request.client)):
        raise HTTPException(429, f"An address may ask {ASKS_PER_MINUTE} questions a minute: wait a little.", WAIT)


@router.get("", response_model=Playground)
async def trial(request: Request, web: Web) -> Response:
    """Return the playground's settings and the available checkpoints."""
    snapshot = web.snapshot
    return await web.answer(request, "trials", snapshot.taken_at, partial(trial_of, web.config, snapshot))


def trial_of(config: RunConfig, snapshot: Snapshot) -> Playground:
    """Build the response for `/api/v1/trials`."""
    steps = [row.step for row in snapshot.published]
    return Playground(
        on=config.dashboard.try_it and bool(steps),
        kind="blanks" if config.objective.masks else "continuation",
        auto_class=config.objective.auto_class,
        language=config.run.language,
        max_characters=MAX_CHARACTERS,
        max_blanks=MAX_BLANKS,
        steps=spread(sorted(steps), MAX_PAGE_CHECKPOINTS),
    )


@router.post(
    "",
    status_code=202,
    responses={200: {"model": QuestionStatus, "description": "The answer was known."}},
    dependencies=[Depends(admit_asking)],
)
def ask_model(web: Web, sentence: Sentence, response: Response) -> QuestionStatus:
    """Ask a published checkpoint; respond with 202 if the question is queued, 200 if answered."""
    services = web.services
    if not services.config.dashboard.try_it:
        raise HTTPException(404, "Visitors cannot try this run's model.")
    text = clean_sentence(sentence.text, masked=services.config.objective.masks)
    checkpoint = _wanted(web.snapshot, sentence.step)
    try:
        row = ask(services.database, checkpoint, text, services.clock())
    except QueueFullError as error:
        raise HTTPException(429, str(error), {"Retry-After": f"{PATIENCE_S:.0f}"}) from error
    response.status_code = 202 if row.answered_at is None else 200
    return _asked(row)


@router.get("/{identity}")
def answer(web: Web, identity: Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]) -> QuestionStatus:
    """Return the state of a question, with its answer if available."""
    row = find_question(web.database, identity, web.services.clock())
    if row is None:
        raise HTTPException(404, "This question has expired: ask again.")
    return _asked(row)


def spread(steps: list[int], most: int) -> list[int]:
    """Return at most `most` of the steps, evenly spaced, including the first and the last."""
    if len(steps) <= most:
        return steps
    return [steps[round(index * (len(steps) - 1) / (most - 1))] for index in range(most)]


def _wanted(snapshot: Snapshot, step: int | None) -> CheckpointRow:
    found = [row for row in snapshot.published if step is None or row.step == step]
    if not found:
        named = "yet" if step is None else f"of step {step}"
        raise HTTPException(404, f"There is no published checkpoint {named}.")
    return found[0]  # the newest of these checkpoints


def _asked(row: QuestionRow) -> QuestionStatus:
    state: Progress = "failed" if row.reason else "waiting" if row.answered_at is None else "answered"
    return QuestionStatus(**vars(row), state=state, blanks=row.answer)
