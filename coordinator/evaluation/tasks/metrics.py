"""Metrics for entities (seqeval), labels (scikit-learn), answers (SQuAD), rankings (trec_eval)."""

from __future__ import annotations

import math
import re
import string
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from seqeval.metrics import accuracy_score as tag_accuracy, classification_report, f1_score as entity_f1
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from coordinator.evaluation.tasks.results import ClassScores

Scores = dict[str, float]
NO_ENTITY = "O"
MISC = "MISC"  # CoNLL 2003's class for names other than people, places and organisations
_PREFIXED = re.compile(r"[BIES]-.")
_PUNCTUATION = frozenset(string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


@dataclass(frozen=True)
class ScoreReport:
    """The scores on a test set and, for entities, the scores of each class."""

    scores: Scores
    classes: dict[str, ClassScores] = field(default_factory=dict)


def entity_scores(truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> ScoreReport:
    """Compute precision, recall and F1 of entities, overall and by class, and word accuracy.

    `f1_without_misc` excludes true and predicted entities of class `MISC`, as EuroEval does
    (Nielsen 2023, arXiv 2304.00906).
    """
    right, found = [list(map(_prefixed, tags)) for tags in truth], [list(map(_prefixed, tags)) for tags in predicted]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # seqeval scores 0 and warns if there are no entities
        table = classification_report(right, found, output_dict=True)
        without_misc = entity_f1(_without_misc(right), _without_misc(found))
    classes = {
        name: ClassScores(
            precision=float(row["precision"]),
            recall=float(row["recall"]),
            f1=float(row["f1-score"]),
            entities=int(row["support"]),
        )
        for name, row in table.items()
        if not name.endswith(" avg")
    }
    overall = table["micro avg"]
    scores = {
        "f1": float(overall["f1-score"]),
        "precision": float(overall["precision"]),
        "recall": float(overall["recall"]),
        "accuracy": float(tag_accuracy(right, found)),
        "f1_without_misc": float(without_misc),
    }
    return ScoreReport(scores, classes)


def _prefixed(tag: str) -> str:
    """Add `I-` to a tag without a prefix, because seqeval would split `TIM` into `T` and `IM`.

    Scores do not change: `I-` after a tag of another class begins an entity.
    """
    return tag if tag == NO_ENTITY or _PREFIXED.match(tag) else f"I-{tag}"


def _without_misc(sentences: list[list[str]]) -> list[list[str]]:
    return [[NO_ENTITY if tag[2:].upper() == MISC else tag for tag in tags] for tags in sentences]


def tag_scores(truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> Scores:
    """Compute accuracy and macro F1 over words."""
    flat = [tag for tags in truth for tag in tags], [tag for tags in predicted for tag in tags]
    return _accuracy_and_f1(*flat)


def label_scores(truth: Sequence[str], predicted: Sequence[str]) -> Scores:
    """Compute accuracy, macro F1 and Matthews correlation of the predicted labels.

    The correlation (Gorodkin 2004) is 1 for perfect predictions, and 0 for a constant prediction.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn returns 0 and warns if there is only one label
        correlation = float(matthews_corrcoef(list(truth), list(predicted)))
    return _accuracy_and_f1(truth, predicted) | {"matthews_correlation": correlation}


def _accuracy_and_f1(truth: Sequence[str], predicted: Sequence[str]) -> Scores:
    return {
        "accuracy": float(accuracy_score(list(truth), list(predicted))),
        "macro_f1": float(f1_score(list(truth), list(predicted), average="macro", zero_division=0)),
    }


def answer_scores(right: Sequence[str], given: str) -> Scores:
    """Compute exact match and F1 (0 to 1) of an answer, each for the closest correct answer.

    If there is no correct answer, only an empty answer scores 1 (SQuAD 2.0: Rajpurkar et al. 2018,
    arXiv 1806.03822).
    """
    answers = [normalized for answer in right if (normalized := normalized_answer(answer))] or [""]
    found = normalized_answer(given)
    return {
        "f1": max(_overlap(answer.split(), found.split()) for answer in answers),
        "exact_match": max(float(answer == found) for answer in answers),
    }


def mean_scores(scores: Sequence[Scores]) -> Scores:
    """Average each score over the examples."""
    return {name: sum(each[name] for each in scores) / len(scores) for name in scores[0]}


def retrieval_scores(judged: Mapping[str, Mapping[str, int]], ranked: Mapping[str, Sequence[str]]) -> Scores:
    """Compute nDCG@10 (with grades as gains), MRR@10 and recall@100, as trec_eval does.

    Each query must have at least one document with a grade above 0.
    """
    rows = [_ranking_scores(grades, ranked[query]) for query, grades in judged.items()]
    return mean_scores(rows)


def _ranking_scores(grades: Mapping[str, int], ranked: Sequence[str]) -> Scores:
    gains = [max(0, grades.get(document, 0)) for document in ranked]
    ideal = sorted((grade for grade in grades.values() if grade > 0), reverse=True)
    first = next((rank for rank, gain in enumerate(gains[:10], 1) if gain), None)
    return {
        "ndcg_at_10": _discounted(gains[:10]) / _discounted(ideal[:10]),
        "mrr_at_10": 0.0 if first is None else 1 / first,
        "recall_at_100": sum(gain > 0 for gain in gains[:100]) / len(ideal),
    }


def _discounted(gains: Sequence[int]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))


def normalized_answer(text: str) -> str:
    """Normalize like SQuAD's script: lower case, no ASCII punctuation or articles, single spaces."""
    bare = "".join(character for character in text.lower() if character not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def _overlap(right: Sequence[str], found: Sequence[str]) -> float:
    if not right or not found:
        return float(right == found)
    common = sum((Counter(right) & Counter(found)).values())
    return 2 * common / (len(right) + len(found))
