"""`evaluation:` in run.yaml: what is taken, what is refused, and what makes two results comparable."""

from __future__ import annotations

from typing import Any

import pytest

from auth.errors import ConfigError
from peer.config.evaluation import Task
from peer.config.run import RunConfig

NER = {"name": "ner", "kind": "ner", "train": "train.conll", "test": {"path": "test.conll", "sha256": "a" * 64}}


def config(*tasks: dict[str, Any]) -> RunConfig:
    """A run with these tasks."""
    return RunConfig.from_mapping({"evaluation": {"tasks": list(tasks)}})


def test_a_path_alone_is_enough() -> None:
    """And all else has its default."""
    task = config(NER).evaluation.tasks[0]
    assert task.train is not None
    assert (task.train.path, task.main_metric, task.recipe.seeds) == ("train.conll", "f1", (0, 1, 2))


def test_it_travels_and_comes_back_equal() -> None:
    """As YAML in checkpoints and as JSON to peers."""
    ours = config(NER)
    assert RunConfig.from_json(ours.to_json()) == ours


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "nothing"}, "evaluation.tasks.0.kind"),
        ({"metric": "distance"}, "must be one of: f1, f1_without_misc, precision, recall, accuracy (the kind is ner)"),
        ({"train": None}, "needs `train`"),
        ({"kind": "bias"}, "is not trained: it takes no `train`"),
        ({"kind": "retrieval"}, "of kind retrieval needs `queries` and `corpus`"),
        ({"corpus": "corpus.jsonl"}, "takes no `queries` and no `corpus`"),
        ({"test": "https://example.org/x"}, "give the file's `sha256`"),
        ({"test": {"path": "hub:a/b", "sha256": "a" * 64}}, "pinned by its `revision`"),
        ({"test": {"path": "x", "split": "test"}}, "`split` is for datasets of the hub"),
        ({"recipe": {"seeds": [1, 1]}}, "must all be different"),
        ({"recipe": {"epochs": 0}}, "evaluation.tasks.0.recipe.epochs"),
        ({"references": [{"name": "x", "value": float("inf")}]}, "references.0.value"),
        ({"more": 1}, "is not a known key"),
    ],
)
def test_a_mistake_is_one_sentence(change: dict[str, Any], said: str) -> None:
    """It names the key and what is allowed."""
    with pytest.raises(ConfigError) as caught:
        config({**NER, **change})
    assert said in str(caught.value)


def test_two_tasks_of_one_name_are_refused() -> None:
    """Their curves could not be told apart."""
    with pytest.raises(ConfigError, match="two tasks are called `ner`"):
        config(NER, NER)


def test_only_what_scores_depend_on_is_in_the_digest() -> None:
    """Another name or reference line leaves results comparable, another recipe or file does not."""
    ours = Task.model_validate(NER)
    same = {**NER, "name": "entities", "metric": "accuracy", "references": [{"name": "sahajBERT", "value": 0.9}]}
    assert Task.model_validate(same).sha256 == ours.sha256
    assert Task.model_validate({**NER, "recipe": {"epochs": 11}}).sha256 != ours.sha256
    assert Task.model_validate({**NER, "train": "other.conll"}).sha256 != ours.sha256
