"""The public API for evaluations: results per task and checkpoint, and evaluators' reports."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from auth.errors import RequestError
from coordinator.context.services import RunServices
from coordinator.evaluation.evaluations import EvaluationRow, curves, evaluator_of, record_evaluation
from coordinator.evaluation.reports import EvaluationReport, SignedReport
from coordinator.evaluation.tasks.results import ProbeResult
from coordinator.web.state.snapshot import Snapshot
from coordinator.web.state.web_state import Web
from peer.config.evaluation import Reference, Task

MAX_CLOCK_AHEAD_S = 300.0
router = APIRouter(prefix="/api/v1", tags=["run"])


class Measure(BaseModel):
    """The mean and standard deviation of one metric over the valid seeds."""

    mean: float | None
    std: float | None


class EvaluationPoint(BaseModel):
    """The results of a task on one checkpoint; `evaluated_at` is a Unix time in seconds."""

    step: int
    manifest_sha256: str
    mean: float | None  # mean of the task's metric over valid seeds
    std: float | None
    seeds: int
    failed_seeds: int
    values: list[float]  # the task's metric for each valid seed
    metrics: dict[str, Measure]
    examples: int
    evaluator: str
    evaluated_at: float
    elapsed_s: float


class TaskCurve(BaseModel):
    """A task of the run file, with its results ordered by step."""

    name: str
    kind: str
    metric: str
    higher_is_better: bool
    task_sha256: str
    references: list[Reference]
    points: list[EvaluationPoint]
    probes: list[ProbeResult]  # the probes' results on the newest evaluated checkpoint
    config: Task


class Evaluations(BaseModel):
    """All tasks of the run, with their results."""

    era: int
    tasks: list[TaskCurve]


class Taken(BaseModel):
    """The evaluator, step and task of an accepted report."""

    evaluator: str
    step: int
    task: str


def evaluations_of(snapshot: Snapshot, tasks: Sequence[Task]) -> Evaluations:
    """Return the results of all checkpoints on the run's tasks."""
    return Evaluations(era=snapshot.era, tasks=[TaskCurve(**each) for each in curves(tasks, snapshot.evaluations)])


@router.get("/evaluations", response_model=Evaluations)
async def evaluations(request: Request, web: Web) -> Response:
    """Return each task's reference lines, and its results ordered by step."""
    snapshot, tasks = web.snapshot, web.config.evaluation.tasks
    return await web.answer(request, "evaluations", snapshot.taken_at, partial(evaluations_of, snapshot, tasks))


@router.post("/evaluations")
async def report(web: Web, signed: SignedReport) -> Taken:
    """Accept an evaluator's report.

    Errors: 401 (invalid signature), 403 (key not allowed by the operator), 404 (unknown checkpoint,
    perhaps undone), 409 (wrong run or task, or a time in the future).
    """
    try:
        opened = signed.opened()
    except RequestError as error:
        raise HTTPException(401, str(error)) from error
    name = await asyncio.to_thread(evaluator_of, web.database, bytes.fromhex(signed.key))
    if name is None:
        raise HTTPException(
            403,
            f"The operator must allow this evaluator: `manyhands coordinator evaluators DIR add NAME {signed.key}`.",
        )
    _check(web.services, opened)
    row = EvaluationRow(opened.step, opened.manifest_sha256, name, opened.result, opened.evaluated_at)
    if not await asyncio.to_thread(record_evaluation, web.database, row):
        raise HTTPException(
            404, f"The run has no such checkpoint of step {opened.step}: it may have been removed or undone."
        )
    return Taken(evaluator=name, step=opened.step, task=opened.result.task)


def _check(services: RunServices, report: EvaluationReport) -> None:
    """Raise 409 for a wrong run or task, or for a future time, which would block later reports."""
    if report.run != services.config.run.name:
        raise HTTPException(409, f"This is the run {services.config.run.name}, not {report.run}.")
    known = {task.name: task.sha256 for task in services.config.evaluation.tasks}
    if known.get(report.result.task) != report.result.task_sha256:
        raise HTTPException(409, f"The run has no task {report.result.task} with these examples and this recipe.")
    if report.evaluated_at > services.clock() + MAX_CLOCK_AHEAD_S:
        raise HTTPException(409, "The report is from the future: set the evaluator's clock.")
