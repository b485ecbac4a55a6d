"""Our scores are seqeval's and scikit-learn's own on recorded predictions, and SQuAD's as its script counts."""

from __future__ import annotations

import pytest
import seqeval.metrics
import sklearn.metrics

from coordinator.evaluation.tasks.metrics import answer_scores, entity_scores, normalized_answer, tag_scores

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
    assert entity_scores(TRUTH, PREDICTED) == {
        "f1": seqeval.metrics.f1_score(TRUTH, PREDICTED),
        "precision": seqeval.metrics.precision_score(TRUTH, PREDICTED),
        "recall": seqeval.metrics.recall_score(TRUTH, PREDICTED),
        "accuracy": seqeval.metrics.accuracy_score(TRUTH, PREDICTED),
    }
    assert entity_scores(TRUTH, PREDICTED)["f1"] == pytest.approx(2 * 0.4 * 0.5 / 0.9)


def test_tags_are_scored_as_scikit_learn_does() -> None:
    """Accuracy and macro F1 over all words."""
    truth, predicted = [tag for tags in TRUTH for tag in tags], [tag for tags in PREDICTED for tag in tags]
    assert tag_scores(TRUTH, PREDICTED) == {
        "accuracy": sklearn.metrics.accuracy_score(truth, predicted),
        "macro_f1": sklearn.metrics.f1_score(truth, predicted, average="macro"),
    }


def test_answers_are_scored_as_squads_script_does() -> None:
    """Articles, marks and case do not count; the best of several answers does; no answer must be none."""
    assert normalized_answer("The  Eiffel-Tower!") == "eiffeltower"
    assert normalized_answer("¿Dónde?") == "dónde"
    scores = answer_scores([("the red house", "house"), ("Paris",), ()], ["a house", "in paris", ""])
    assert scores["exact_match"] == pytest.approx(2 / 3)
    assert scores["f1"] == pytest.approx((1 + 2 / 3 + 1) / 3)
