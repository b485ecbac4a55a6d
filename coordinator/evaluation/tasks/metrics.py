"""The metrics: seqeval's for entities, scikit-learn's for labels, SQuAD's for answers. Each gives scores by name."""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Sequence

from seqeval.metrics import accuracy_score as tag_accuracy, f1_score as entity_f1, precision_score, recall_score
from sklearn.metrics import accuracy_score, f1_score

Scores = dict[str, float]
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def entity_scores(truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> Scores:
    """Score sentences' tags: precision, recall and F1 over whole entities, accuracy over words."""
    right, found = [list(tags) for tags in truth], [list(tags) for tags in predicted]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tags without a prefix are entities, too; no entity found is a score of 0
        return {
            "f1": float(entity_f1(right, found)),
            "precision": float(precision_score(right, found)),
            "recall": float(recall_score(right, found)),
            "accuracy": float(tag_accuracy(right, found)),
        }


def tag_scores(truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> Scores:
    """Score sentences' tags: accuracy and macro F1 over words."""
    flat = [tag for tags in truth for tag in tags], [tag for tags in predicted for tag in tags]
    return label_scores(*flat)


def label_scores(truth: Sequence[str], predicted: Sequence[str]) -> Scores:
    """Accuracy, and F1 averaged over the labels."""
    return {
        "accuracy": float(accuracy_score(list(truth), list(predicted))),
        "macro_f1": float(f1_score(list(truth), list(predicted), average="macro", zero_division=0)),
    }


def answer_scores(truth: Sequence[Sequence[str]], predicted: Sequence[str]) -> Scores:
    """SQuAD's exact match and F1 (Rajpurkar et al. 2016, arXiv 1606.05250), from 0 to 1."""
    exact = [_best(_is_exact, answers, given) for answers, given in zip(truth, predicted, strict=True)]
    overlap = [_best(_overlap, answers, given) for answers, given in zip(truth, predicted, strict=True)]
    count = max(1, len(exact))
    return {"f1": sum(overlap) / count, "exact_match": sum(exact) / count}


def normalized_answer(text: str) -> str:
    """Lower case, no punctuation of any script, no English articles, single spaces: as SQuAD's own script compares."""
    bare = "".join(character for character in text.lower() if not unicodedata.category(character).startswith("P"))
    return " ".join(_ARTICLES.sub(" ", bare).split())


def _best(score: Callable[[str, str], float], answers: Sequence[str], given: str) -> float:
    return max(score(normalized_answer(answer), normalized_answer(given)) for answer in (answers or ("",)))


def _is_exact(answer: str, given: str) -> float:
    return float(answer == given)


def _overlap(answer: str, given: str) -> float:
    right, found = answer.split(), given.split()
    if not right or not found:
        return float(right == found)
    common = sum((Counter(right) & Counter(found)).values())
    return 2 * common / (len(right) + len(found))
