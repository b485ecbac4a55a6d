"""An evaluator's access to a run: through its directory, or through the URL of its dashboard.

Downloads are limited in size. The manifest is verified against the announced digest, and each file
against the manifest. Reports that cannot be delivered are stored and sent later.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from auth.errors import ManyhandsError, NotAllowedError, RequestError, StorageError, UnreachableError
from auth.files import make_private_directory, write_private
from coordinator.checkpoints.export import LEFT_OUT, exporting
from coordinator.checkpoints.manifest import MANIFEST, MAX_MANIFEST_BYTES, Manifest, verify
from coordinator.evaluation.evaluations import (
    OPERATOR,
    EvaluationRow,
    evaluations,
    published_checkpoints,
    record_evaluation,
)
from coordinator.evaluation.reports import EvaluationReport, EvaluatorKey, SignedReport
from coordinator.evaluation.tasks.results import Digest
from coordinator.run.checkpoint_names import checkpoint_name
from coordinator.run.directory import RunDirectory
from coordinator.store.engine import Database
from peer.config.evaluation import Task
from peer.network.downloads import incoming_file, is_served_name
from peer.network.http import asking, beginning, download, fetch, reaching

if TYPE_CHECKING:
    from httpx2 import Response

logger = logging.getLogger(__name__)
EVALUATING = ".evaluating"  # the leading dot excludes this folder from backups
MAX_DETAIL_BYTES = 1 << 20
REFUSALS: Mapping[int, type[ManyhandsError]] = {
    **dict.fromkeys((400, 401, 404, 409, 413, 422), RequestError),
    403: NotAllowedError,  # the report is kept, because the operator may allow the evaluator later
}


@dataclass(frozen=True)
class PendingEvaluation:
    """A task that has not yet been run on a checkpoint."""

    step: int
    manifest_sha256: str
    task: Task


def pending(
    tasks: Sequence[Task], checkpoints: Sequence[tuple[int, str]], done: Collection[tuple[str, str, str]]
) -> list[PendingEvaluation]:
    """Pair each task with each checkpoint (step, manifest digest), except the pairs in `done`."""
    named = [(task, task.sha256) for task in tasks]
    return [
        PendingEvaluation(step, manifest, task)
        for step, manifest in checkpoints
        for task, digest in named
        if (manifest, task.name, digest) not in done
    ]


class LocalRun:
    """A run whose directory is on this machine."""

    is_elsewhere = False

    def __init__(self, directory: RunDirectory, database: Database) -> None:
        self._directory, self._database = directory, database
        self.place = directory.path  # base of the tasks' relative paths; folder for the evaluator's files
        self.name = directory.config.run.name

    def waiting(self) -> list[PendingEvaluation]:
        """Return the configured evaluations without a result, newest published checkpoint first."""
        done = {(row.manifest_sha256, row.result.task, row.result.task_sha256) for row in evaluations(self._database)}
        published = [(row.step, row.manifest_sha256) for row in published_checkpoints(self._database)]
        return pending(self._directory.config.evaluation.tasks, published, done)

    @contextmanager
    def checkpoint(self, waiting: PendingEvaluation) -> Iterator[Path]:
        """Yield a folder of hard links to a checkpoint's files, which outlive the checkpoint."""
        if waiting.manifest_sha256 not in {row.manifest_sha256 for row in published_checkpoints(self._database)}:
            raise StorageError(f"The checkpoint of step {waiting.step} is no longer kept.")
        stored = verify(self._directory.checkpoint_dir(waiting.step), files=())
        if stored.manifest_sha256 != waiting.manifest_sha256:
            raise StorageError(f"Another checkpoint of step {waiting.step} has taken its place.")
        with _aside(self.place, waiting.step) as folder:
            with exporting(stored, folder, {}, link=True):
                pass
            yield folder

    def report(self, report: EvaluationReport) -> None:
        """Store a result; raises `StorageError` if its checkpoint was deleted or rolled back."""
        row = EvaluationRow(report.step, report.manifest_sha256, OPERATOR, report.result, report.evaluated_at)
        if not record_evaluation(self._database, row):
            raise StorageError(f"The checkpoint of step {report.step} has been removed or undone meanwhile.")


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)  # later versions may add keys


class _Overview(_Read):
    run: dict[str, Any]


class _Checkpoint(_Read):
    step: Annotated[int, Field(ge=0, le=2**31 - 1)]
    manifest_sha256: Digest
    withheld: str


class _Checkpoints(_Read):
    checkpoints: list[_Checkpoint]


class _Point(_Read):
    manifest_sha256: Digest


class _Curve(_Read):
    task_sha256: Digest
    points: list[_Point]
    config: Task


class _Evaluations(_Read):
    tasks: list[_Curve]


class RemoteRun:
    """A run on another machine, accessed through its dashboard's HTTP API."""

    is_elsewhere = True

    def __init__(self, address: str, place: Path) -> None:
        self._address = address.rstrip("/")
        self.place = place  # base of the tasks' relative paths; folder for the evaluator's files
        self._outbox = place / "outbox"
        make_private_directory(self._outbox)
        self._told: set[tuple[str, str, str]] = set()  # delivered reports, perhaps not on the dashboard yet
        self.key = EvaluatorKey.load_or_create(place / "evaluator.key")

    @property
    def name(self) -> str:
        """The run's name; raises `UnreachableError` if the coordinator cannot be reached."""
        return str(self._ask("overview", _Overview).run.get("name", ""))

    def waiting(self) -> list[PendingEvaluation]:
        """Return the run's evaluations without a result, newest published checkpoint first.

        Stored reports are sent first; an evaluation with a stored report counts as done.
        """
        self.deliver()
        rows = self._ask("checkpoints", _Checkpoints).checkpoints
        curves = self._ask("evaluations", _Evaluations).tasks
        done = {
            (point.manifest_sha256, curve.config.name, curve.task_sha256) for curve in curves for point in curve.points
        }
        done |= self._told | {_subject(report) for report in self._undelivered().values()}
        tasks = [curve.config for curve in curves if curve.config.sha256 == curve.task_sha256]
        published = sorted(((row.step, row.manifest_sha256) for row in rows if not row.withheld), reverse=True)
        return pending(tasks, published, done)

    @contextmanager
    def checkpoint(self, waiting: PendingEvaluation) -> Iterator[Path]:
        """Yield a folder with the downloaded checkpoint; raises `StorageError` on a digest mismatch."""
        base = f"{self._address}/api/v1/checkpoints/{waiting.step}"
        with _aside(self.place, waiting.step) as folder:
            for name, entry in _manifest(base, waiting).files.items():
                if is_served_name(name) and name not in LEFT_OUT:
                    with incoming_file(folder, name, bytes.fromhex(entry.sha256), entry.size_bytes) as file:
                        for chunk in download(f"{base}/{name}", entry.size_bytes):
                            file.write(chunk)
            yield folder

    def report(self, report: EvaluationReport) -> None:
        """Sign and store a report, then try to deliver all stored reports."""
        name = f"{report.manifest_sha256[:16]}-{report.result.task}.json"
        write_private(self._outbox / name, self.key.sign(report).model_dump_json().encode())
        self.deliver()

    def deliver(self) -> None:
        """Send the stored reports; delete each one accepted or rejected, and stop on failure."""
        for path, report in self._undelivered().items():
            try:
                self._post(path.read_bytes())
            except RequestError as error:
                logger.warning("dropped a report: %s", error)
            except ManyhandsError as error:
                logger.warning("a report is kept for later: %s", error)
                return
            self._told.add(_subject(report))
            path.unlink()

    def _undelivered(self) -> dict[Path, EvaluationReport]:
        found = {}
        for path in sorted(self._outbox.glob("*.json")):
            try:
                found[path] = SignedReport.model_validate_json(path.read_bytes()).opened()
            except (ValidationError, RequestError):  # another version's report, which would be rejected
                path.unlink()
        return found

    def _ask(self, what: str, form: type[Any]) -> Any:
        url = f"{self._address}/api/v1/{what}"
        try:
            return form.model_validate_json(fetch(url))
        except (ValidationError, ValueError) as error:
            raise UnreachableError(f"{url} does not answer as a dashboard of this version.") from error

    def _post(self, body: bytes) -> None:
        url, headers = f"{self._address}/api/v1/evaluations", {"content-type": "application/json"}
        with reaching(self._address), asking("POST", url, content=body, headers=headers) as answer:
            if answer.is_success:
                return
            status, said = answer.status_code, _detail(answer)
        raise REFUSALS.get(status, UnreachableError)(said)


@contextmanager
def _aside(place: Path, step: int) -> Iterator[Path]:
    folder = place / EVALUATING / checkpoint_name(step)
    shutil.rmtree(folder, ignore_errors=True)
    make_private_directory(folder.parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _manifest(base: str, waiting: PendingEvaluation) -> Manifest:
    raw = fetch(f"{base}/{MANIFEST}", MAX_MANIFEST_BYTES)
    if hashlib.sha256(raw).hexdigest() != waiting.manifest_sha256:
        raise StorageError(f"The manifest of step {waiting.step} is not the one that was announced.")
    try:
        return Manifest.model_validate(json.loads(raw))
    except (ValidationError, ValueError, RecursionError) as error:
        raise StorageError(f"The manifest of step {waiting.step} is of no form that this version knows.") from error


def _subject(report: EvaluationReport) -> tuple[str, str, str]:
    return report.manifest_sha256, report.result.task, report.result.task_sha256


def _detail(answer: Response) -> str:
    try:
        return str(json.loads(beginning(answer, MAX_DETAIL_BYTES))["detail"])[:500]
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"the coordinator answers {answer.status_code}"
