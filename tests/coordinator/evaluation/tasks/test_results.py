"""Means, spreads and failures of seeds; what is refused from the network; the comparison table."""

from __future__ import annotations

import statistics

import pytest
from pydantic import ValidationError

from coordinator.cli.evaluate import Contestant, best_of, headings, markdown, table_rows
from coordinator.evaluation.tasks.fine_tuning import failure, split
from coordinator.evaluation.tasks.results import SeedResult, TaskResult, result_of, score_text
from peer.config.evaluation import Task


def ner_task(**changes: object) -> Task:
    """A task whose files are nowhere."""
    return Task.model_validate({"name": "ner", "kind": "ner", "train": "a", "test": "b", **changes})


def seed_result(seed: int, f1: float, why: str = "") -> SeedResult:
    """One seed's scores."""
    return SeedResult(seed=seed, scores={"f1": f1, "accuracy": 1.0}, epochs=2, failure=why)


def result(*scores: float, failed: float | None = None) -> TaskResult:
    """A result of these seeds, and of one that failed."""
    seeds = [seed_result(number, score) for number, score in enumerate(scores)]
    seeds += [] if failed is None else [seed_result(9, failed, "it is no better than the commonest answer")]
    return result_of(ner_task(), seeds, 10, 1.0)


def test_a_failed_seed_is_told_and_not_averaged_away() -> None:
    """Mean and spread are of those that converged."""
    found = result(0.5, 0.6, 0.7, failed=0.0)
    assert found.mean() == pytest.approx(0.6)
    assert found.std() == pytest.approx(statistics.stdev([0.5, 0.6, 0.7]))
    assert score_text(found) == "0.6000 ± 0.1000 (1 of 4 seeds failed)"
    assert [seed.seed for seed in found.failures] == [9]


def test_where_none_converged_there_is_no_mean() -> None:
    """Nor is a spread made up for one seed."""
    assert (result(failed=0.0).mean(), result(0.5).std()) == (None, None)
    assert score_text(result(failed=0.0)) == "none (1 of 1 seeds failed)"


@pytest.mark.parametrize(
    ("best", "trivial", "failed"), [(0.5, 0.4, False), (0.4, 0.4, True), (0.0, 0.0, True), (None, 0.0, True)]
)
def test_a_model_no_better_than_a_constant_has_failed(best: float | None, trivial: float, failed: bool) -> None:
    """So has one whose loss was no number, which has no score."""
    assert bool(failure(best, trivial)) is failed


def test_without_a_development_set_every_tenth_example_is_one() -> None:
    """It is no part of the training examples then; one of its own leaves them whole."""
    train, dev = split(list(range(25)), None)
    assert dev == [0, 10, 20]
    assert len(train) == 22
    assert not set(dev) & set(train)
    assert split([1, 2], [99]) == ([1, 2], [99])


@pytest.mark.parametrize(
    "change",
    [
        {"seeds": []},
        {"seeds": [{"scores": {"f1": float("nan")}}]},
        {"task": "../x"},
        {"kind": "other"},
        {"task_sha256": "x"},
        {"more": 1},
        {"elapsed_s": -1.0},
    ],
)
def test_a_result_that_is_none_is_refused(change: dict[str, object]) -> None:
    """From the network come no numbers that are none, no unknown keys, no odd names."""
    content = result(0.5).model_dump(mode="json")
    with pytest.raises(ValidationError):
        TaskResult.model_validate({**content, **change})


def test_the_table_marks_the_best_and_leaves_gaps() -> None:
    """A row for each checkpoint, a column for each task."""
    ours, theirs = Contestant("ours", {"ner": result(0.6, 0.7)}), Contestant("theirs", {"ner": result(0.5)})
    other = Contestant("other", {})
    assert headings([ours, theirs, other]) == ["checkpoint", "ner (f1)"]
    assert table_rows([ours, theirs, other]) == [["ours", "0.6500 ± 0.0707 *"], ["theirs", "0.5000"], ["other", "-"]]
    assert markdown([ours]).splitlines()[1] == "| --- | --- |"
    assert best_of([ours], "ner") is None
    assert ours.facts["tasks"]["ner"]["metrics"]["accuracy"] == {"mean": 1.0, "std": 0.0}


def test_of_perplexity_the_lower_is_better() -> None:
    """The star goes to the smaller number."""
    task = Task.model_validate({"name": "fill", "kind": "fill-mask", "test": "b"})
    low, high = (
        Contestant(str(value), {"fill": result_of(task, [SeedResult(scores={"pseudo_perplexity": value})], 1, 0.0)})
        for value in (5.0, 9.0)
    )
    assert best_of([high, low], "fill") is low
