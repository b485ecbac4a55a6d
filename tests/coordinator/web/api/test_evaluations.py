"""The API of evaluations: curves for everybody, reports from those whom the operator allowed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from coordinator.context.services import RunServices, open_run_services
from coordinator.evaluation.evaluations import EvaluationRow, allow_evaluator, record_evaluation
from coordinator.evaluation.reports import EvaluationReport, EvaluatorKey
from coordinator.ledger.recorded_checkpoints import record_checkpoint
from coordinator.run.directory import RunDirectory
from coordinator.web.app import create_app
from coordinator.web.state.web_state import WebState
from tests.support.clocks import Clock
from tests.support.evaluated_runs import FILL, NER, made_up, set_tasks
from tests.support.served_page import fake_run

MANIFEST = "ab" * 32
ADDRESS = "/api/v1/evaluations"


@pytest.fixture
def services(tmp_path: Path, clock: Clock) -> Iterator[RunServices]:
    """A run with two tasks and a checkpoint."""
    with fake_run(tmp_path, clock) as made:
        directory = made.directory
    set_tasks(directory.path, [NER, FILL])
    with open_run_services(RunDirectory.open(directory.path), clock) as opened:
        record_checkpoint(opened.database, step=3, size_bytes=1, manifest_sha256=MANIFEST, now=0.0)
        yield opened


@pytest.fixture
def client(services: RunServices, tmp_path: Path) -> Iterator[TestClient]:
    """The run, served."""
    with TestClient(create_app(WebState(RunDirectory.open(tmp_path / "run"), services))) as made:
        yield made


def report(clock: Clock, **changes: Any) -> EvaluationReport:
    """What an evaluator says of the checkpoint."""
    result = made_up(NER, 0.5, 0.7, failed=1)
    content = {"run": "test-run", "step": 3, "manifest_sha256": MANIFEST, "evaluated_at": clock(), "result": result}
    return EvaluationReport.model_validate({**content, **changes})


def send(client: TestClient, key: EvaluatorKey, said: EvaluationReport) -> int:
    """Report it; the answer's status."""
    return int(client.post(ADDRESS, json=key.sign(said).model_dump()).status_code)


def test_an_allowed_evaluators_report_is_a_point_of_the_curve(
    client: TestClient, services: RunServices, evaluator_key: EvaluatorKey, clock: Clock
) -> None:
    """With mean, spread, failed seeds and who said it; the task without a point is there, too."""
    allow_evaluator(services.database, "gpu-box", evaluator_key.public_hex, 0.0)
    assert send(client, evaluator_key, report(clock)) == 200
    with TestClient(client.app) as fresh:
        ner, fill = fresh.get(ADDRESS).json()["tasks"]
    assert fill["points"] == []
    assert ner["references"] == [{"name": "an earlier model", "value": 0.9}]
    point = ner["points"][0]
    assert (point["step"], point["mean"], point["failed_seeds"], point["seeds"]) == (3, pytest.approx(0.6), 1, 3)
    assert (point["evaluator"], point["manifest_sha256"]) == ("gpu-box", MANIFEST)
    assert ner["config"]["test"]["path"] == "test.conll"


def test_who_is_not_allowed_is_told_what_to_ask_for(
    client: TestClient, evaluator_key: EvaluatorKey, clock: Clock
) -> None:
    """The answer has the operator's command."""
    answer = client.post(ADDRESS, json=evaluator_key.sign(report(clock)).model_dump())
    assert answer.status_code == 403
    assert f"evaluators DIR add NAME {evaluator_key.public_hex}" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"run": "other"}, 409),
        ({"step": 4}, 404),
        ({"manifest_sha256": "cd" * 32}, 404),
        ({"evaluated_at": 2e9}, 409),
        ({"result": made_up({**NER, "recipe": {"epochs": 3}}, 0.5)}, 409),
        ({"result": made_up({**NER, "name": "other"}, 0.5)}, 409),
    ],
)
def test_what_is_not_of_this_run_is_refused(
    client: TestClient,
    services: RunServices,
    evaluator_key: EvaluatorKey,
    clock: Clock,
    changes: dict[str, Any],
    status: int,
) -> None:
    """Another run, checkpoint, task or recipe, and the future; nothing is stored."""
    allow_evaluator(services.database, "gpu-box", evaluator_key.public_hex, 0.0)
    assert send(client, evaluator_key, report(clock, **changes)) == status
    with TestClient(client.app) as fresh:
        assert all(not task["points"] for task in fresh.get(ADDRESS).json()["tasks"])


def test_a_forged_or_malformed_report_is_refused(client: TestClient, evaluator_key: EvaluatorKey, clock: Clock) -> None:
    """401 for a signature that is none, 422 for another form, 413 for too much."""
    signed = evaluator_key.sign(report(clock)).model_dump()
    assert client.post(ADDRESS, json={**signed, "body": report(clock, step=2).body}).status_code == 401
    assert client.post(ADDRESS, json={"body": "x"}).status_code == 422
    assert client.post(ADDRESS, json={**signed, "body": "x" * 70_000}).status_code == 413


@pytest.mark.parametrize("path", ["/home/operator/private/test.conll", "../elsewhere/test.conll", "~/test.conll"])
def test_no_folder_of_the_operators_is_published(
    services: RunServices, tmp_path: Path, clock: Clock, path: str
) -> None:
    """Of a file outside of the run's directory everybody reads the name and the digest, of older results, too."""
    task = {**NER, "test": {"path": path, "sha256": "ab" * 32}}
    assert record_evaluation(services.database, EvaluationRow(3, MANIFEST, "operator", made_up(task, 0.5), 1.0))
    set_tasks(tmp_path / "run", [task])
    directory = RunDirectory.open(tmp_path / "run")
    with (
        open_run_services(directory, clock) as opened,
        TestClient(create_app(WebState(directory, opened))) as client,
    ):
        answer = client.get(ADDRESS)
    shown = answer.json()["tasks"][0]
    assert (shown["config"]["test"]["path"], shown["config"]["test"]["sha256"]) == ("test.conll", "ab" * 32)
    assert len(shown["points"]) == 1
    assert path not in answer.text
