"""Our scores are seqeval's and scikit-learn's own on recorded predictions."""

from __future__ import annotations

import pytest
import seqeval.metrics
import sklearn.metrics

from coordinator.evaluation.tasks.metrics import entity_scores, tag_scores

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
