"""The tables of what tasks said of checkpoints, and of who may say it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from auth.errors import ConfigError
from coordinator.evaluation.evaluations import (
    EvaluationRow,
    allow_evaluator,
    allowed_evaluators,
    curves,
    evaluations,
    evaluator_of,
    published_checkpoints,
    record_evaluation,
    remove_evaluator,
)
from coordinator.ledger.recorded_checkpoints import record_checkpoint
from coordinator.store.engine import Database
from peer.config.evaluation import Task
from tests.support.evaluated_runs import FILL, NER, made_up

FIRST, SECOND = "1" * 64, "2" * 64
KEY, OTHER_KEY = "ab" * 32, "cd" * 32


def checkpoint(database: Database, step: int, manifest: str = FIRST, withheld: str = "") -> None:
    """The keeper records a checkpoint."""
    record_checkpoint(database, step=step, size_bytes=1, manifest_sha256=manifest, now=0.0, withheld=withheld)


def row(step: int, manifest: str = FIRST, value: float = 0.5, at: float = 100.0) -> EvaluationRow:
    """An evaluation of the checkpoint of this step."""
    return EvaluationRow(step, manifest, "operator", made_up(NER, value), at)


def test_what_is_recorded_is_read_in_order(database: Database) -> None:
    """By steps, whoever came first; with every number."""
    checkpoint(database, 10, FIRST)
    checkpoint(database, 20, SECOND)
    rows = [row(20, SECOND), row(10, FIRST)]
    assert all(record_evaluation(database, each) for each in rows)
    assert evaluations(database) == rows[::-1]


def test_the_newer_word_counts_and_an_old_one_sent_again_does_not(database: Database) -> None:
    """Of one checkpoint and task there is one result."""
    checkpoint(database, 10)
    assert record_evaluation(database, row(10, value=0.5, at=100.0))
    assert record_evaluation(database, row(10, value=0.6, at=200.0))
    assert record_evaluation(database, row(10, value=0.5, at=100.0))
    assert [each.result.mean() for each in evaluations(database)] == [0.6]


def test_what_is_withheld_is_not_evaluated(database: Database) -> None:
    """The newest that may be published comes first."""
    checkpoint(database, 10)
    checkpoint(database, 20, SECOND, withheld="its loss rose")
    checkpoint(database, 30, "3" * 64)
    assert [each.step for each in published_checkpoints(database)] == [30, 10]


def test_a_curve_has_only_points_that_can_be_compared() -> None:
    """Those of today's data and recipe, with spread and reference lines; each task has one, even an empty one."""
    other = {**NER, "recipe": {"epochs": 3}}
    rows = [row(10), replace(row(20), result=made_up(other, 0.9)), replace(row(30), result=made_up(NER, 0.4, 0.6))]
    ner, fill = curves([Task.model_validate(NER), Task.model_validate(FILL)], rows)
    assert [point["step"] for point in ner["points"]] == [10, 30]
    assert ner["points"][1]["mean"] == pytest.approx(0.5)
    assert ner["points"][1]["std"] == pytest.approx(0.1414, abs=1e-4)
    assert ner["references"] == [{"name": "an earlier model", "value": 0.9}]
    assert (fill["points"], fill["metric"], fill["higher_is_better"]) == ([], "pseudo_perplexity", False)


def test_evaluators_are_known_by_their_keys(database: Database) -> None:
    """One is let in, takes another key, and is let in no longer."""
    allow_evaluator(database, "gpu-box", f" {KEY[:32]}\n{KEY[32:]} ", 1.0)  # as it comes from a clipboard
    assert evaluator_of(database, bytes.fromhex(KEY)) == "gpu-box"
    allow_evaluator(database, "gpu-box", OTHER_KEY, 2.0)
    assert evaluator_of(database, bytes.fromhex(KEY)) is None
    assert allowed_evaluators(database) == [("gpu-box", OTHER_KEY, 2.0)]
    remove_evaluator(database, "gpu-box")
    assert evaluator_of(database, bytes.fromhex(OTHER_KEY)) is None


@pytest.mark.parametrize(
    ("name", "key"), [("operator", KEY), ("Gpu Box", KEY), ("box", "ab"), ("box", "no key"), ("second", OTHER_KEY)]
)
def test_odd_names_and_keys_are_refused(database: Database, name: str, key: str) -> None:
    """Nobody is called as the operator's own evaluator is, and no key has two names."""
    allow_evaluator(database, "first", OTHER_KEY, 1.0)
    with pytest.raises(ConfigError):
        allow_evaluator(database, name, key, 1.0)
    with pytest.raises(ConfigError, match="No evaluator"):
        remove_evaluator(database, "nobody")
