"""The evaluator: what it does next, on this machine and from another, and what it keeps when nobody answers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from auth.errors import ConfigError, UnreachableError
from coordinator.context.services import RunServices, open_run_services
from coordinator.evaluation.evaluated_runs import LocalRun, RemoteRun, pending
from coordinator.evaluation.evaluations import allow_evaluator, evaluations
from coordinator.evaluation.evaluator import Evaluator
from coordinator.evaluation.reports import EvaluationReport
from coordinator.evaluation.tasks.data import DataFolders, read_split, read_text
from coordinator.evaluation.tasks.plan import Plan
from coordinator.evaluation.tasks.results import TaskResult
from coordinator.evaluation.tasks.worker import run_plan
from coordinator.ledger.recorded_checkpoints import record_checkpoint
from manyhands import build_app
from peer.config.evaluation import Examples, Task
from tests.support.evaluated_runs import FILL, NER, made_up, make_evaluated_run
from tests.support.served_page import FakeRun, PageServer
from tests.support.sound_checkpoints import add_sound_checkpoint, record
from tests.support.web_files import serve_files

pytestmark = pytest.mark.usefixtures("forked")
ROOT = Path(__file__).resolve().parents[3]
OLD, NEW = "1" * 64, "2" * 64
ner, fill = Task.model_validate(NER), Task.model_validate(FILL)


def test_the_newest_checkpoint_comes_first_and_its_tasks_in_order() -> None:
    """Then the older ones; what is done is passed over, and with another recipe it is done again."""
    published = [(20, NEW), (10, OLD)]
    order = [(each.step, each.task.name) for each in pending([ner, fill], published, {(OLD, "ner", ner.sha256)})]
    assert order == [(20, "ner"), (20, "fill"), (10, "fill")]
    other = Task.model_validate({**NER, "recipe": {"epochs": 3}})
    assert len(pending([other], published, {(NEW, "ner", ner.sha256), (OLD, "ner", ner.sha256)})) == 2


def here(plan: Plan, _should_stop: Callable[[], bool]) -> TaskResult:
    """In this process: a new one takes seconds to import torch."""
    return run_plan(plan)


def never() -> bool:
    """Nobody asks to stop."""
    return False


@pytest.fixture
def services(tmp_path: Path) -> Iterator[RunServices]:
    """A run with a task whose files are there and one whose are not, and a checkpoint."""
    run = make_evaluated_run(tmp_path, NER, FILL)
    with open_run_services(run, lambda: 1000.0) as opened:
        add_sound_checkpoint(run, opened.database, 5)
        yield opened


def fake(services: RunServices, tmp_path: Path) -> FakeRun:
    """The run as the page's server takes it."""
    from coordinator.run.directory import RunDirectory

    return FakeRun(RunDirectory.open(tmp_path / "run"), services, {})


def test_on_the_runs_machine_results_go_into_the_database(services: RunServices, tmp_path: Path) -> None:
    """The task that can be done is done once, the other is told and not tried again; nothing is left on the disk."""
    directory = fake(services, tmp_path).directory
    source = LocalRun(directory, services.database)
    evaluator = Evaluator(source, never, clock=lambda: 50.0, evaluate=here)
    evaluator.run(once=True)
    found = evaluations(services.database)
    assert [(row.step, row.result.task, row.evaluator, row.evaluated_at) for row in found] == [
        (5, "fill", "operator", 50.0)
    ]
    assert (found[0].result.mean() or 0.0) > 1.0
    assert evaluator.evaluate_next() is False
    assert list((directory.path / ".evaluating").iterdir()) == []


def test_a_withheld_checkpoint_is_left_alone(services: RunServices, tmp_path: Path) -> None:
    """Nobody else gets it either."""
    directory = fake(services, tmp_path).directory
    record(services.database, add_sound_checkpoint(directory, services.database, 6), withheld="its loss rose")
    assert {waiting.step for waiting in LocalRun(directory, services.database).waiting()} == {5}


def test_from_elsewhere_it_fetches_reports_and_keeps_what_is_not_taken(services: RunServices, tmp_path: Path) -> None:
    """Before the operator allows it, its report waits; then it is delivered, and nothing is evaluated twice."""
    page = PageServer(fake(services, tmp_path))
    try:
        place = tmp_path / "elsewhere"
        source = RemoteRun(page.url, place)
        (place / "held-out.txt").write_text("A river is many small streams.")
        calls: list[str] = []

        def counted(plan: Plan, stop: Callable[[], bool]) -> TaskResult:
            calls.append(plan.task.name)
            assert plan.data.confined
            return here(plan, stop)

        evaluator = Evaluator(source, never, clock=lambda: 900.0, evaluate=counted)
        evaluator.run(once=True)
        assert evaluations(services.database) == []
        assert len(list((place / "outbox").iterdir())) == 1
        allow_evaluator(services.database, "gpu-box", source.key.public_hex, 0.0)
        evaluator.run(once=True)
        assert [(row.step, row.evaluator) for row in evaluations(services.database)] == [(5, "gpu-box")]
        assert list((place / "outbox").iterdir()) == []
        assert calls == ["ner", "fill"]
    finally:
        page.close()
    with pytest.raises(UnreachableError):
        evaluator.run(once=True)


def test_a_report_that_is_led_elsewhere_is_kept(tmp_path: Path) -> None:
    """A redirect of a report would become a question for a page, whose answer says nothing of the report."""
    with serve_files() as web:
        web.redirects["api/v1/evaluations"] = web.url("page")
        web.files["page"] = b"{}"
        source = RemoteRun(web.address, tmp_path)
        result = made_up(NER, 0.5)
        report = EvaluationReport(run="small", step=5, manifest_sha256=NEW, evaluated_at=7.0, result=result)
        source.report(report)
    assert len(list((tmp_path / "outbox").iterdir())) == 1


def test_what_the_manifest_does_not_prove_is_not_evaluated(services: RunServices, tmp_path: Path) -> None:
    """A file that was changed on the way to the evaluator is refused, and the next thing is done."""
    run = fake(services, tmp_path)
    shutil.copytree(run.directory.checkpoint_dir(5), run.directory.checkpoint_dir(6))
    record_checkpoint(services.database, step=6, size_bytes=1, manifest_sha256=NEW, now=0.0)
    page = PageServer(run)
    try:
        source = RemoteRun(page.url, tmp_path / "elsewhere")
        evaluator = Evaluator(source, never, evaluate=lambda plan, _stop: made_up(FILL, 2.0))
        assert evaluator.evaluate_next()
        assert evaluator.passed_over == {(NEW, ner.sha256)}
    finally:
        page.close()


def test_tasks_from_elsewhere_name_no_files_of_this_machine(tmp_path: Path) -> None:
    """Only those in the evaluator's directory."""
    (tmp_path / "secret").write_text("x")
    inside = tmp_path / "inside"
    inside.mkdir()
    confined = DataFolders(inside, inside, confined=True)
    for path in ("../secret", str(tmp_path / "secret")):
        with pytest.raises(ConfigError, match="is outside of"):
            read_text(Examples(path=path), confined)
        assert read_text(Examples(path=path), DataFolders(inside, inside)) == "x"
    folder = Task.model_validate({**FILL, "test": f"hub:{tmp_path}"})
    with pytest.raises(ConfigError, match="is no dataset's name on the hub"):
        read_split(folder, "test", confined)


def test_the_command_evaluates_what_waits_and_ends(tmp_path: Path) -> None:
    """As a process of its own, with another one that computes; its log says what it found."""
    run = make_evaluated_run(tmp_path, FILL)
    with open_run_services(run, lambda: 1000.0) as opened:
        add_sound_checkpoint(run, opened.database, 5)
    words = [sys.executable, "-m", "manyhands", "coordinator", "evaluator", str(run.path), "--once", "--threads", "1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "step 5: fill pseudo_perplexity" in done.stderr
    with open_run_services(run, lambda: 1000.0) as opened:
        assert [(row.step, row.result.task) for row in evaluations(opened.database)] == [(5, "fill")]


def run_command(*words: str) -> Any:
    """Type it."""
    return CliRunner().invoke(build_app(), words)


def test_the_commands_say_what_is_missing(tmp_path: Path) -> None:
    """A directory without a run, a web address that is none, a run without tasks."""
    missing = run_command("coordinator", "evaluator", str(tmp_path / "x"))
    assert "with `--coordinator`" in str(missing.exception)
    wrong = run_command("coordinator", "evaluator", str(tmp_path / "x"), "--coordinator", "host:80")
    assert "must be the run's web address" in str(wrong.exception)
    run = make_evaluated_run(tmp_path)
    without = run_command("coordinator", "evaluator", str(run.path), "--once")
    assert "names no tasks" in str(without.exception)


def test_evaluators_are_added_listed_and_removed_by_command(tmp_path: Path) -> None:
    """And each change stands in the audit log."""
    run = str(make_evaluated_run(tmp_path).path)
    assert run_command("coordinator", "evaluators", run, "add", "gpu-box", "ab" * 32).exit_code == 0
    assert "gpu-box" in run_command("coordinator", "evaluators", run).output
    assert run_command("coordinator", "evaluators", run, "remove", "gpu-box", "--json").output.strip() == "[]"
    audit = run_command("coordinator", "audit", run).output
    assert "evaluators-add" in audit
