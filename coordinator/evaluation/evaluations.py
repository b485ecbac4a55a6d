"""Stored results of downstream tasks, for the dashboard, model cards and releases."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from auth.errors import ConfigError
from coordinator.evaluation.tasks.results import TaskResult
from coordinator.ledger.recorded_checkpoints import CheckpointRow, checkpoints
from coordinator.store.engine import Database
from coordinator.store.locks import Lock, beside_others
from coordinator.store.models import AllowedEvaluator, Checkpoint, Evaluation
from coordinator.store.notify import Topic, tell
from peer.config.evaluation import Task

OPERATOR = "operator"  # name of the evaluator on the run's own machine
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_KEY = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True)
class EvaluationRow:
    """The result of one task on one checkpoint."""

    step: int
    manifest_sha256: str
    evaluator: str
    result: TaskResult
    evaluated_at: float  # Unix time in seconds

    @property
    def facts(self) -> dict[str, Any]:
        """The result as a point on the task's curve over steps, for scripts and the dashboard."""
        result = self.result
        return {
            "step": self.step,
            "manifest_sha256": self.manifest_sha256,
            "mean": result.mean(),
            "std": result.std(),
            "seeds": len(result.seeds),
            "failed_seeds": len(result.failures),
            "values": result.values(),
            "metrics": result.measures(),
            "examples": result.examples,
            "evaluator": self.evaluator,
            "evaluated_at": self.evaluated_at,
            "elapsed_s": result.elapsed_s,
        }


def evaluations(database: Database) -> list[EvaluationRow]:
    """Return all results, ordered by step and task."""
    with database() as session:
        found = session.scalars(select(Evaluation).order_by(Evaluation.step, Evaluation.task))
        return [_row(row) for row in found]


def curves(tasks: Sequence[Task], rows: Iterable[EvaluationRow]) -> list[dict[str, Any]]:
    """Return each task's curve; omit results from other versions of the task's data or recipe."""
    rows = list(rows)
    found = []
    for task in tasks:
        points = [row for row in rows if row.result.task == task.name and row.result.task_sha256 == task.sha256]
        found.append(
            {
                "name": task.name,
                "kind": task.kind,
                "metric": task.main_metric,
                "higher_is_better": task.higher_is_better,
                "task_sha256": task.sha256,
                "references": [reference.model_dump() for reference in task.references],
                "points": [row.facts for row in points],
                "probes": list(points[-1].result.probes) if points else [],
                "config": task.published,
            }
        )
    return found


def record_evaluation(database: Database, row: EvaluationRow) -> bool:
    """Store a result; return False if the checkpoint was deleted or rolled back.

    A newer result replaces the stored one; an older or repeated result is ignored.
    """

    def enter(session: Session) -> bool:
        beside_others(session, Lock.ERA)
        known = session.get(Checkpoint, row.step)
        if known is None or known.manifest_sha256 != row.manifest_sha256:
            return False
        stored = session.get(Evaluation, (row.manifest_sha256, row.result.task))
        if stored is None or stored.evaluated_at < row.evaluated_at:
            session.merge(
                Evaluation(
                    manifest_sha256=row.manifest_sha256,
                    task=row.result.task,
                    step=row.step,
                    evaluator=row.evaluator,
                    task_sha256=row.result.task_sha256,
                    result=row.result.model_dump_json(),
                    evaluated_at=row.evaluated_at,
                )
            )
            tell(session, Topic.PROGRESS)
        return True

    return database.transact(enter)


def published_checkpoints(database: Database) -> list[CheckpointRow]:
    """Return the checkpoints that may be published, newest first."""
    return [row for row in checkpoints(database) if not row.withheld]


def allow_evaluator(database: Database, name: str, key: str, now: float) -> None:
    """Allow results signed with this key; raises `ConfigError` if the name or key is invalid."""
    if not _NAME.fullmatch(name) or name == OPERATOR:
        raise ConfigError(
            f"An evaluator's name has small letters, digits and dashes, and is not {OPERATOR}: {name!r:.60}"
        )
    if not _KEY.fullmatch(key := "".join(key.split())):
        raise ConfigError("An evaluator's key has 64 hexadecimal digits, as the evaluator prints it at its start.")
    public_key = bytes.fromhex(key)

    def enter(session: Session) -> None:
        holder = session.scalar(select(AllowedEvaluator).where(AllowedEvaluator.public_key == public_key))
        if holder is not None and holder.name != name:
            raise ConfigError(f"This key is that of the evaluator {holder.name}: remove it first.")
        session.merge(AllowedEvaluator(name=name, public_key=public_key, added_at=now))

    database.transact(enter)


def remove_evaluator(database: Database, name: str) -> None:
    """Stop accepting results from an evaluator; raises `ConfigError` if the name is unknown."""

    def enter(session: Session) -> None:
        if session.get(AllowedEvaluator, name) is None:
            raise ConfigError(f"No evaluator is called {name!r:.60}.")
        session.execute(delete(AllowedEvaluator).where(AllowedEvaluator.name == name))

    database.transact(enter)


def allowed_evaluators(database: Database) -> list[tuple[str, str, float]]:
    """Return each evaluator's name, hexadecimal key and Unix time of admission, ordered by name."""
    with database() as session:
        rows = session.scalars(select(AllowedEvaluator).order_by(AllowedEvaluator.name))
        return [(row.name, row.public_key.hex(), row.added_at) for row in rows]


def evaluator_of(database: Database, public_key: bytes) -> str | None:
    """Return the name of the evaluator with this key, or None if the key is not allowed."""
    with database() as session:
        return session.scalar(select(AllowedEvaluator.name).where(AllowedEvaluator.public_key == public_key))


def _row(row: Evaluation) -> EvaluationRow:
    return EvaluationRow(row.step, row.manifest_sha256, row.evaluator, _parsed(row.result), row.evaluated_at)


@lru_cache(maxsize=10_000)
def _parsed(result: str) -> TaskResult:
    """Parse and cache a stored result, because results are read every second."""
    return TaskResult.model_validate_json(result)
