"""`manyhands evaluate`: tasks by options or a run file, several checkpoints side by side, mistakes in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from auth.errors import ConfigError
from coordinator.cli.evaluate import app
from coordinator.context.open_run import open_run
from coordinator.evaluation.tasks.plan import Plan
from coordinator.evaluation.tasks.results import TaskResult
from coordinator.evaluation.tasks.worker import run_plan
from tests.support.evaluated_runs import FILL, make_evaluated_run
from tests.support.sound_checkpoints import add_sound_checkpoint
from tests.support.tiny_bert import save_tiny_bert

CONLL = "ada\tB-PER\nlives\tO\nin\tO\nparis\tB-LOC\n\n" * 10
FAST = ("--seeds", "1", "--epochs", "4", "--learning-rate", "0.01", "--max-length", "32")


def here(plan: Plan) -> TaskResult:
    """In this process: a new one takes seconds to import torch."""
    return run_plan(plan)


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the command runs, and where."""
    monkeypatch.setattr("coordinator.cli.evaluate.run_apart", here)
    monkeypatch.chdir(tmp_path)


def evaluate(*words: object) -> str:
    """Type it; raises what it raises."""
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False).stdout


def test_a_task_by_options_and_the_random_start_beside_it(tmp_path: Path) -> None:
    """As JSON with all seeds; the fine-tuned model of the checkpoint is kept, not that of the random start."""
    (tmp_path / "a.conll").write_text(CONLL)
    model = save_tiny_bert(tmp_path / "model")
    words = ("--task", "ner", "--train", "a.conll", "--test", "a.conll", "--random-start", "--save", tmp_path / "kept")
    found: list[dict[str, Any]] = json.loads(evaluate(model, *words, *FAST, "--json"))
    assert [each["checkpoint"] for each in found] == [str(model), "random start"]
    assert found[0]["tasks"]["ner"]["mean"] == 1.0
    assert found[0]["tasks"]["ner"]["seeds"][0]["scores"]["f1"] == 1.0
    assert (tmp_path / "kept" / "model.safetensors").is_file()


def test_a_run_file_against_another_checkpoint(tmp_path: Path) -> None:
    """All its tasks, paths relative to it, the run by its newest checkpoint; as Markdown and for people."""
    run = make_evaluated_run(tmp_path, FILL)
    with open_run(run.path) as opened:
        add_sound_checkpoint(run, opened.database, 5)
    other = save_tiny_bert(tmp_path / "other")
    table = evaluate(run.path, other, "--config", run.path / "run.yaml", "--markdown").splitlines()
    assert table[0] == "| checkpoint | fill (pseudo_perplexity) |"
    assert len(table) == 4
    assert sum("*" in line for line in table) == 1
    assert "pseudo_perplexity" in evaluate(run.path, "--config", run.path / "run.yaml")


def test_probes_are_shown_side_by_side(tmp_path: Path) -> None:
    """A column for each group."""
    (tmp_path / "p.json").write_text('[{"template": "{group} is a [MASK]", "groups": ["he", "she"], "top": 2}]')
    shown = evaluate(save_tiny_bert(tmp_path / "model"), "--task", "bias", "--test", "p.json")
    assert "{group} is a [MASK] (distance 0." in shown
    assert " ".join(shown.splitlines()[-3].split()) == "he she"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "either one task with `--task` or `--preset`, or a run file"),
        (("--task", "other"), "must be one of: ner, pos"),
        (("--task", "ner", "--train", "x"), "`--test` is missing"),
        (("--task", "ner", "--test", "x"), "`--train` is missing"),
        (
            ("--task", "ner", "--train", "x", "--test", "y", "--metric", "distance"),
            "`metric`: 'distance' must be one of: f1, f1_without_misc, precision, recall, accuracy (the kind is ner)",
        ),
        (
            ("--task", "pos", "--train", "x", "--test", "y", "--metric", "foo"),
            "`metric`: 'foo' must be one of: accuracy, macro_f1 (the kind is pos)",
        ),
        (("--config", "run/run.yaml", "--epochs", "2"), "`--epochs` is for one task"),
        (("--config", "run/run.yaml"), "names no tasks"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    """With what is missing or wrong, before anything is computed."""
    if "--config" in words:
        make_evaluated_run(tmp_path)
    with pytest.raises(ConfigError) as caught:
        evaluate(tmp_path, *words)
    assert said in str(caught.value)


def test_data_that_cannot_be_read_are_told_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first task may take hours, and the mistake may be in the last one's file."""
    plans: list[Plan] = []
    monkeypatch.setattr("coordinator.cli.evaluate.run_apart", plans.append)
    run = make_evaluated_run(tmp_path, FILL, FILL | {"name": "later", "test": "missing.txt"})
    with pytest.raises(ConfigError, match=r"missing\.txt"):
        evaluate(save_tiny_bert(tmp_path / "model"), "--config", run.path / "run.yaml")
    assert plans == []


def test_a_folder_that_holds_something_is_not_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the checkpoint that is evaluated nor another folder: it is refused before anything is computed."""
    plans: list[Plan] = []
    monkeypatch.setattr("coordinator.cli.evaluate.run_apart", plans.append)
    (tmp_path / "a.conll").write_text(CONLL)
    model = save_tiny_bert(tmp_path / "model")
    weights = (model / "model.safetensors").read_bytes()
    with pytest.raises(ConfigError, match="model exists and is not empty: choose another directory"):
        evaluate(model, "--task", "ner", "--train", "a.conll", "--test", "a.conll", "--save", model, *FAST)
    assert plans == []
    assert (model / "model.safetensors").read_bytes() == weights


def test_a_checkpoint_that_is_nowhere_is_told_before_the_data_are_read(tmp_path: Path) -> None:
    """The folder's name is misspelt, or another directory was meant."""
    with pytest.raises(ConfigError, match=r"There is no folder .*nowhere, and the hub has no model of that name"):
        evaluate(tmp_path / "nowhere", "--task", "fill-mask", "--test", "missing.txt")


def test_a_run_without_a_checkpoint_is_said(tmp_path: Path) -> None:
    """Nothing is made up for it."""
    run = make_evaluated_run(tmp_path)
    with pytest.raises(ConfigError, match="has no checkpoint yet"):
        evaluate(run.path, "--task", "bias", "--test", "x")
