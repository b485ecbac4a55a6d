"""The evaluator, a process outside the swarm that runs tasks on each published checkpoint.

It runs on any machine with access to the run (`evaluated_runs`), and starts with the newest
checkpoint that lacks a result. Each task runs in a separate process, so this module does not import
torch. No other process waits for the evaluator; after a restart, it resumes the pending tasks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from auth.errors import ManyhandsError, UnreachableError
from coordinator.evaluation.evaluated_runs import LocalRun, RemoteRun
from coordinator.evaluation.reports import EvaluationReport
from coordinator.evaluation.tasks.data import DataFolders
from coordinator.evaluation.tasks.plan import Plan
from coordinator.evaluation.tasks.results import TaskResult, score_text
from coordinator.evaluation.tasks.running import run_apart

logger = logging.getLogger(__name__)

POLL_S = 5.0
LOOK_S = 0.2  # interval between checks of `should_stop`


@dataclass
class Evaluator:
    """A loop that runs each pending task and reports its result."""

    source: LocalRun | RemoteRun
    should_stop: Callable[[], bool]
    clock: Callable[[], float] = time.time
    threads: int = 0
    evaluate: Callable[[Plan, Callable[[], bool]], TaskResult | None] = run_apart
    passed_over: set[tuple[str, str]] = field(default_factory=set)  # failed evaluations: (manifest digest, task digest)

    def run(self, *, once: bool = False) -> None:
        """Run pending tasks until `should_stop()` is true or, with `once`, until none remains."""
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
                self._rest()

    def evaluate_next(self) -> bool:
        """Run the next pending task; return False if there is none or the evaluator must stop."""
        source = self.source
        possible = (it for it in source.waiting() if (it.manifest_sha256, it.task.sha256) not in self.passed_over)
        waiting = next(possible, None)
        if waiting is None:
            return False
        step, manifest, task = waiting.step, waiting.manifest_sha256, waiting.task
        folders = DataFolders(source.place, source.place / "examples", confined=source.is_elsewhere)
        try:
            with source.checkpoint(waiting) as folder:
                result = self.evaluate(Plan(str(folder), task, folders, threads=self.threads), self.should_stop)
            if result is None:
                return False
            source.report(
                EvaluationReport(
                    run=source.name, step=step, manifest_sha256=manifest, evaluated_at=self.clock(), result=result
                )
            )
            score = score_text(result)
            logger.info("step %d: %s %s %s", step, task.name, result.metric, score, extra={"step": step})
        except UnreachableError:
            raise
        except ManyhandsError as error:
            self.passed_over.add((manifest, task.sha256))
            logger.error("%s on the checkpoint of step %d: %s", task.name, step, error)
        return True

    def _rest(self) -> None:
        until = time.monotonic() + POLL_S
        while time.monotonic() < until and not self.should_stop():
            time.sleep(LOOK_S)
