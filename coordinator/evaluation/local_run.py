"""A run on this machine, as an evaluator sees it: checkpoints on its disk, results straight into its database."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from auth.errors import StorageError
from auth.files import make_private_directory
from coordinator.checkpoints.export import exporting
from coordinator.checkpoints.manifest import verify
from coordinator.evaluation.evaluations import (
    OPERATOR,
    EvaluationRow,
    evaluations,
    published_checkpoints,
    record_evaluation,
)
from coordinator.evaluation.evaluator import Known, PendingEvaluation
from coordinator.evaluation.reports import EvaluationReport
from coordinator.run.directory import RunDirectory
from coordinator.store.engine import Database
from peer.config.evaluation import Task

EVALUATING = ".evaluating"  # a backup passes over it


class LocalRun:
    """An `EvaluatedRun` of `coordinator.evaluation.evaluator`."""

    is_elsewhere = False

    def __init__(self, directory: RunDirectory, database: Database) -> None:
        self._directory, self._database = directory, database

    @property
    def name(self) -> str:
        """The run's name."""
        return self._directory.config.run.name

    @property
    def place(self) -> Path:
        """The folder that tasks' relative paths start from, and that evaluation's own files are in."""
        return self._directory.path

    def tasks(self) -> Sequence[Task]:
        """Return the tasks of the run file."""
        return self._directory.config.evaluation.tasks

    def known(self) -> Known:
        """Its published checkpoints, the newest first, and what is known of them."""
        done = {(row.manifest_sha256, row.result.task, row.result.task_sha256) for row in evaluations(self._database)}
        return Known([(row.step, row.manifest_sha256) for row in published_checkpoints(self._database)], done)

    @contextmanager
    def checkpoint(self, waiting: PendingEvaluation) -> Iterator[Path]:
        """Its files, linked aside: the keeper may remove the checkpoint meanwhile. Raises `StorageError`."""
        if waiting.manifest_sha256 not in {row.manifest_sha256 for row in published_checkpoints(self._database)}:
            raise StorageError(f"The checkpoint of step {waiting.step} is no longer kept.")
        stored = verify(self._directory.checkpoint_dir(waiting.step), files=())
        if stored.manifest_sha256 != waiting.manifest_sha256:
            raise StorageError(f"Another checkpoint of step {waiting.step} has taken its place.")
        folder = self.place / EVALUATING / stored.path.name
        shutil.rmtree(folder, ignore_errors=True)
        make_private_directory(folder.parent)
        try:
            with exporting(stored, folder, {}, link=True):
                pass
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def report(self, report: EvaluationReport) -> None:
        """Store it; raises `StorageError` if the checkpoint was undone meanwhile."""
        row = EvaluationRow(report.step, report.manifest_sha256, OPERATOR, report.result, report.evaluated_at)
        if not record_evaluation(self._database, row):
            raise StorageError(f"The checkpoint of step {report.step} has been removed or undone meanwhile.")
