"""The evaluator: tries each published checkpoint on the run's tasks, on any machine, outside the swarm.

It reaches the run by its directory or its web address (`evaluated_runs`). It imports no torch: each task runs
in a process of its own. The newest checkpoint that lacks a task comes first (`next_waiting`). Nothing waits for the
evaluator; what is left when it stops is evaluated at its next start.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from auth.errors import ManyhandsError, UnreachableError
from coordinator.evaluation.reports import EvaluationReport
from coordinator.evaluation.tasks.results import TaskResult, score_text
from coordinator.evaluation.tasks.running import Plan, run_apart
from peer.config.evaluation import Task

logger = logging.getLogger(__name__)

POLL_S = 5.0
LOOK_S = 0.2  # between two looks at whether to stop
RunPlan = Callable[[Plan, Callable[[], bool]], TaskResult | None]


@dataclass(frozen=True)
class Known:
    """A run's published checkpoints, and the evaluations that it has of them."""

    checkpoints: Sequence[tuple[int, str]]  # step and manifest's digest, the newest first
    done: Collection[tuple[str, str, str]]  # manifest, task, the task's digest


@dataclass(frozen=True)
class PendingEvaluation:
    """A task on a checkpoint."""

    step: int
    manifest_sha256: str
    task: Task


def next_waiting(
    tasks: Sequence[Task], known: Known, passed_over: Collection[tuple[str, str]]
) -> PendingEvaluation | None:
    """The first missing task of the newest checkpoint that lacks one; None if nothing waits.

    `passed_over`: manifest and task's digest of what cannot be evaluated.
    """
    for step, manifest in known.checkpoints:
        for task in tasks:
            is_done = (manifest, task.name, task.sha256) in known.done
            if not is_done and (manifest, task.sha256) not in passed_over:
                return PendingEvaluation(step, manifest, task)
    return None


class EvaluatedRun(Protocol):
    """A run, here or elsewhere."""

    is_elsewhere: bool  # its tasks come over the network

    @property
    def name(self) -> str: ...

    @property
    def place(self) -> Path: ...

    def tasks(self) -> Sequence[Task]: ...

    def known(self) -> Known: ...

    def checkpoint(self, waiting: PendingEvaluation) -> AbstractContextManager[Path]: ...

    def report(self, report: EvaluationReport) -> None: ...


@dataclass
class Evaluator:
    """The evaluator's parts; `run` is its loop."""

    source: EvaluatedRun
    should_stop: Callable[[], bool]
    clock: Callable[[], float] = time.time
    wait: Callable[[float], None] = time.sleep
    threads: int = 0
    evaluate: RunPlan = run_apart
    passed_over: set[tuple[str, str]] = field(default_factory=set)  # manifest and task that cannot be evaluated

    def run(self, *, once: bool = False) -> None:
        """Evaluate what is there and what comes, until told to stop; with `once`, until nothing waits."""
        while not self.should_stop():
            try:
                done = self.evaluate_next()
            except UnreachableError as error:
                logger.warning("%s", error)
                if once:
                    raise
                done = False
            if not done:
                if once:
                    return
                self._rest(POLL_S)

    def evaluate_next(self) -> bool:
        """Evaluate the task that comes next; false if none waits, or it was told to stop."""
        waiting = next_waiting(self.source.tasks(), self.source.known(), self.passed_over)
        if waiting is None:
            return False
        try:
            with self.source.checkpoint(waiting) as folder:
                result = self.evaluate(self._plan(waiting, folder), self.should_stop)
            if result is None:
                return False
            self._tell(waiting, result)
        except UnreachableError:
            raise
        except ManyhandsError as error:
            self.passed_over.add((waiting.manifest_sha256, waiting.task.sha256))
            logger.error("%s on the checkpoint of step %d: %s", waiting.task.name, waiting.step, error)
        return True

    def _plan(self, waiting: PendingEvaluation, folder: Path) -> Plan:
        base, cache = self.source.place, self.source.place / "examples"
        confined = self.source.is_elsewhere
        return Plan(str(folder), waiting.task, str(base), str(cache), confined=confined, threads=self.threads)

    def _tell(self, waiting: PendingEvaluation, result: TaskResult) -> None:
        self.source.report(
            EvaluationReport(
                run=self.source.name,
                step=waiting.step,
                manifest_sha256=waiting.manifest_sha256,
                evaluated_at=self.clock(),
                result=result,
            )
        )
        said = "step %d: %s %s %s"
        logger.info(
            said, waiting.step, waiting.task.name, result.metric, score_text(result), extra={"step": waiting.step}
        )

    def _rest(self, seconds: float) -> None:
        for _ in _looks(seconds):
            if self.should_stop():
                return
            self.wait(LOOK_S)


def _looks(seconds: float) -> Iterator[int]:
    return iter(range(max(1, round(seconds / LOOK_S))))
