"""Scores of entities, tags and labels on recorded predictions: which figure has which name, and what is left out."""

from __future__ import annotations

import random

import pytest

from coordinator.evaluation.tasks.metrics import entity_scores, label_scores, tag_scores

# Recorded: what a model said of four sentences; `TIM` has no prefix in one of our data sets.
TRUTH = [
    ["B-PER", "I-PER", "O", "B-LOC"],
    ["O", "B-ORG", "I-ORG", "I-ORG", "O"],
    ["TIM", "TIM", "O"],
    ["O", "O"],
]
PREDICTED = [
    ["B-PER", "I-PER", "O", "B-ORG"],
    ["O", "B-ORG", "I-ORG", "O", "O"],
    ["TIM", "TIM", "O"],
    ["O", "B-LOC"],
]


def test_entities_are_scored_whole() -> None:
    """Of four entities two are found, with five named; of fourteen words eleven are right."""
    f1 = 2 * 0.4 * 0.5 / 0.9
    assert entity_scores(TRUTH, PREDICTED).scores == pytest.approx(
        {"f1": f1, "precision": 0.4, "recall": 0.5, "accuracy": 11 / 14, "f1_without_misc": f1}
    )


def test_each_class_of_entities_has_its_scores() -> None:
    """A tag without a prefix is a class of its own under its whole name."""
    classes = entity_scores(TRUTH, PREDICTED).classes
    assert sorted(classes) == ["LOC", "ORG", "PER", "TIM"]
    assert (classes["PER"].f1, classes["TIM"].f1, classes["TIM"].entities) == (1.0, 1.0, 1)
    assert (classes["LOC"].precision, classes["LOC"].recall, classes["ORG"].f1) == (0.0, 0.0, 0.0)
    [found] = entity_scores([["B-PER", "B-PER"]], [["B-PER", "O"]]).classes.values()
    assert (found.precision, found.recall, found.f1, found.entities) == (1.0, 0.5, pytest.approx(2 / 3), 2)
    assert entity_scores([["O", "O"]], [["O", "O"]]).classes == {}


def test_tags_and_labels_have_their_own_figures() -> None:
    """Words count alike; Matthews' correlation is 1 without mistakes, -1 for the reverse, 0 for a constant answer."""
    assert tag_scores(TRUTH, PREDICTED)["accuracy"] == pytest.approx(11 / 14)
    assert label_scores(["a", "a", "a", "b"], ["a"] * 4)["macro_f1"] == pytest.approx(6 / 7 / 2)
    for given, correlation in (("aab", 1.0), ("bba", -1.0), ("aaa", 0.0)):
        assert label_scores(list("aab"), list(given))["matthews_correlation"] == pytest.approx(correlation)
    assert label_scores(["a"], ["a"])["matthews_correlation"] == 0.0


def test_entities_are_scored_without_misc() -> None:
    """Neither missed nor invented names of this class count, in capitals or not; the other F1 counts them."""
    rng, classes = random.Random(0), ["PER", "LOC", "MISC", "misc", ""]
    truth = [rng.choice(classes) for _ in range(200)]
    guesses = [rng.choice([name, rng.choice(classes)]) for name in truth]

    def tags_of(names: list[str]) -> list[list[str]]:
        return [[f"B-{name}", f"I-{name}"] if name else ["O", "O"] for name in names]  # each a sentence of two words

    right = sum(name in ("PER", "LOC") for name in truth)
    given = sum(name in ("PER", "LOC") for name in guesses)
    common = sum(name == guess and name in ("PER", "LOC") for name, guess in zip(truth, guesses, strict=True))
    scores = entity_scores(tags_of(truth), tags_of(guesses)).scores
    assert scores["f1_without_misc"] == pytest.approx(2 * common / (right + given))
    assert scores["f1_without_misc"] != scores["f1"]
    missed = entity_scores([["B-PER", "B-MISC"]], [["B-PER", "O"]]).scores
    assert (missed["f1_without_misc"], missed["f1"]) == (1.0, pytest.approx(2 / 3))
