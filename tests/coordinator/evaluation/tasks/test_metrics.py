"""Our scores are seqeval's and scikit-learn's own on recorded predictions."""

from __future__ import annotations

import math
import random

import pytest
import seqeval.metrics
import sklearn.metrics

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


@pytest.mark.filterwarnings("ignore:TIM seems not to be NE tag")
def test_entities_are_scored_as_seqeval_does() -> None:
    """Precision, recall, F1 and accuracy are equal; and of four entities two are found, with five named."""
    found = entity_scores(TRUTH, PREDICTED)
    assert found.scores == {
        "f1": seqeval.metrics.f1_score(TRUTH, PREDICTED),
        "precision": seqeval.metrics.precision_score(TRUTH, PREDICTED),
        "recall": seqeval.metrics.recall_score(TRUTH, PREDICTED),
        "accuracy": seqeval.metrics.accuracy_score(TRUTH, PREDICTED),
        "f1_without_misc": seqeval.metrics.f1_score(TRUTH, PREDICTED),
    }
    assert found.scores["f1"] == pytest.approx(2 * 0.4 * 0.5 / 0.9)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
def test_each_class_of_entities_has_its_scores() -> None:
    """They are seqeval's; a tag without a prefix is a class of its own under its whole name."""
    classes = entity_scores(TRUTH, PREDICTED).classes
    assert sorted(classes) == ["LOC", "ORG", "PER", "TIM"]
    assert (classes["PER"].f1, classes["TIM"].f1, classes["TIM"].entities) == (1.0, 1.0, 1)
    assert (classes["LOC"].precision, classes["LOC"].recall, classes["ORG"].f1) == (0.0, 0.0, 0.0)
    table = seqeval.metrics.classification_report(TRUTH[:2], PREDICTED[:2], output_dict=True)
    for name, scores in entity_scores(TRUTH[:2], PREDICTED[:2]).classes.items():
        row = table[name]
        found = (scores.precision, scores.recall, scores.f1, scores.entities)
        assert found == (row["precision"], row["recall"], row["f1-score"], row["support"])
    assert entity_scores([["O", "O"]], [["O", "O"]]).classes == {}


def test_tags_are_scored_as_scikit_learn_does() -> None:
    """Accuracy and macro F1 over all words."""
    truth, predicted = [tag for tags in TRUTH for tag in tags], [tag for tags in PREDICTED for tag in tags]
    assert tag_scores(TRUTH, PREDICTED) == {
        "accuracy": sklearn.metrics.accuracy_score(truth, predicted),
        "macro_f1": sklearn.metrics.f1_score(truth, predicted, average="macro"),
    }


def correlation_of(truth: list[str], predicted: list[str]) -> float:
    """Matthews' correlation as Gorodkin writes it: covariances of the labels' indicators, summed over the labels."""
    pairs, count = list(zip(truth, predicted, strict=True)), len(truth)

    def covariance(first: int, second: int) -> float:
        return sum(
            sum((pair[first] == label) * (pair[second] == label) for pair in pairs) / count
            - sum(pair[first] == label for pair in pairs) * sum(pair[second] == label for pair in pairs) / count**2
            for label in {*truth, *predicted}
        )

    spread = covariance(0, 0) * covariance(1, 1)
    return covariance(0, 1) / math.sqrt(spread) if spread else 0.0


def test_labels_are_scored_by_matthews_correlation() -> None:
    """Two labels and four; some right, all right, all wrong, a constant answer, and a set with one label only."""
    rng = random.Random(0)
    for labels in ("ab", "abcd"):
        truth = [rng.choice(labels) for _ in range(60)]
        guesses = [rng.choice([label, rng.choice(labels)]) for label in truth]
        for predicted in (guesses, truth, ["a"] * 60):
            found = label_scores(truth, predicted)["matthews_correlation"]
            assert found == pytest.approx(correlation_of(truth, predicted), abs=1e-12)
    assert label_scores(["a", "b"], ["b", "a"])["matthews_correlation"] == -1.0
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
