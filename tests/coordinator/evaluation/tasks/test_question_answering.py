"""Question answering as SQuAD 2.0 evaluates it: over all windows of a context, with and without answers.

The second half of this file is an independent evaluation: predictions from plain transformers, token by token, and the
functions of SQuAD's own script (evaluate-v2.0.py).
"""

from __future__ import annotations

import collections
import json
import math
import random
import re
import string
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

from coordinator.evaluation.tasks.data import DataFolders
from coordinator.evaluation.tasks.metrics import answer_scores, normalized_answer
from coordinator.evaluation.tasks.plan import Plan
from coordinator.evaluation.tasks.question_answering import (
    AnswerCandidate,
    best_span,
    best_threshold,
    token_span,
)
from coordinator.evaluation.tasks.worker import run_plan
from peer.config.evaluation import Task
from tests.support.tiny_bert import MAX_LENGTH

LONG = "the film was very good . "


def write_squad(path: Path, seed: int, *, unanswerable: bool) -> list[dict[str, Any]]:
    """Write questions on where somebody lives, some with contexts of several windows, and return them."""
    rng = random.Random(seed)
    paragraphs = []
    for number in range(40):
        where, who = rng.choice(["berlin", "paris"]), rng.choice(["ada", "grace"])
        context = LONG * rng.choice([0, 4, 7]) + f"{who} lives in {where} ." + f" {LONG.strip()}" * rng.choice([0, 5])
        answers = [{"text": where, "answer_start": context.index(where)}]
        lacks = unanswerable and rng.random() < 0.4
        if lacks:
            context, answers = context.replace(f"in {where}", "near the film"), []
        question = {"id": str(number), "question": f"where is {who} ?", "answers": answers, "is_impossible": lacks}
        paragraphs.append({"context": context, "qas": [question]})
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return paragraphs


@pytest.mark.parametrize("unanswerable", [True, False], ids=["2.0", "1.1"])
def test_scores_equal_those_of_squads_script(model: Path, tmp_path: Path, unanswerable: bool) -> None:
    """An independent evaluation of the kept model gives the same exact match and F1, and the task is learnt."""
    write_squad(tmp_path / "train", 0, unanswerable=unanswerable)
    dev = write_squad(tmp_path / "dev", 1, unanswerable=unanswerable)
    test = write_squad(tmp_path / "test", 2, unanswerable=unanswerable)
    recipe = {"seeds": [0], "epochs": 6, "batch_size": 8, "learning_rate": 0.01, "max_length": MAX_LENGTH}
    places = {name: name for name in ("train", "dev", "test")}
    task = Task.model_validate({"name": "qa", "kind": "qa", "recipe": recipe, **places})
    found = run_plan(Plan(str(model), task, DataFolders(tmp_path, tmp_path), save_to=str(tmp_path / "kept")))
    script = SquadEvaluation(tmp_path / "kept")
    threshold = script.best_threshold(dev) if unanswerable else math.inf
    assert found.seeds[0].scores == pytest.approx(script.scores(test, threshold))
    assert found.seeds[0].dev_score == pytest.approx(script.scores(dev, threshold)["f1"])
    assert (found.mean() or 0.0) > 0.9


def test_the_best_span_stands_against_the_least_null_score_of_all_windows() -> None:
    """A window without the answer, whose null score is high, does not silence the window that has it."""
    has_answer = AnswerCandidate("paris", score=6.0, null=2.0)
    assert (has_answer.answer(0.0), has_answer.answer(-5.0)) == ("paris", "")
    assert AnswerCandidate(null=3.0).answer(100.0) == ""


def test_the_threshold_is_the_best_on_the_development_set() -> None:
    """Questions with equal doubts are answered together; -inf answers none."""
    assert best_threshold([-2.0, 1.0, 3.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]) == 1.0
    assert best_threshold([-2.0, -2.0], [1.0, 0.0], [0.0, 1.0]) == -math.inf
    assert best_threshold([0.0], [0.0], [1.0]) == -math.inf


def test_spans_of_characters_and_tokens() -> None:
    """A span cut off by its window is none; the likeliest pair in order wins."""
    offsets = [None, None, (0, 3), (4, 9), None]
    assert token_span(offsets, 4, 9) == (3, 3)
    assert token_span(offsets, 4, 12) is None
    starts, ends = torch.tensor([0.0, 9.0, 2.0, 3.0, 9.0, 9.0]), torch.tensor([0.0, 9.0, 5.0, 1.0, 9.0, 9.0])
    assert best_span(starts, ends, offsets) == (7.0, (0, 3))
    assert best_span(starts[:2], ends[:2], [None, None]) == (-math.inf, None)


@pytest.mark.parametrize("question", ["where is ada ?", "where " * 20])
def test_the_shortest_windows_have_room_for_a_question_of_any_length(
    model: Path, tmp_path: Path, question: str
) -> None:
    """A question takes at most half of a window."""
    context = "ada lives in paris ."
    qas = [{"id": "1", "question": question, "answers": [{"text": "paris", "answer_start": 13}]}]
    (tmp_path / "x").write_text(json.dumps({"data": [{"paragraphs": [{"context": context, "qas": qas}]}]}))
    recipe = {"seeds": [0], "epochs": 1, "max_length": 8}
    task = Task.model_validate({"name": "qa", "kind": "qa", "train": "x", "test": "x", "recipe": recipe})
    assert run_plan(Plan(str(model), task, DataFolders(tmp_path, tmp_path))).examples == 1


@pytest.mark.parametrize(
    ("right", "given"),
    [
        (["the red house", "house"], "a house"),
        (["Paris"], "in paris"),
        ([], ""),
        ([], "paris"),
        (["The"], ""),
        (["the"], "house"),
        (["C++"], "c"),
        (["¿Dónde?"], "dónde"),
        (["প্যারিস।"], "প্যারিস"),
        (["a b b c"], "b b d"),
        (["$5 <= x"], "5 x"),
    ],
)
def test_an_answer_scores_as_in_squads_script(right: list[str], given: str) -> None:
    """Case, articles and ASCII punctuation do not count; marks of other scripts do."""
    assert answer_scores(right, given) == pytest.approx(official_scores(right, given))
    assert normalized_answer(given) == normalize_answer(given)


class SquadEvaluation:
    """An evaluation of a kept model that shares no code with ours."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModelForQuestionAnswering.from_pretrained(folder, use_safetensors=True).eval()
        self._known: dict[tuple[str, str], tuple[str, float]] = {}

    def scores(self, paragraphs: list[dict[str, Any]], threshold: float) -> dict[str, float]:
        """The script's averages over all questions."""
        rows = []
        for paragraph in paragraphs:
            for question in paragraph["qas"]:
                text, doubt = self.predicted(question["question"], paragraph["context"])
                given = "" if doubt > threshold else text
                rows.append(official_scores([answer["text"] for answer in question["answers"]], given))
        return {name: sum(row[name] for row in rows) / len(rows) for name in ("f1", "exact_match")}

    def best_threshold(self, paragraphs: list[dict[str, Any]]) -> float:
        """The one of all possible thresholds with the highest F1."""
        doubts = [self.predicted(each["qas"][0]["question"], each["context"])[1] for each in paragraphs]
        return max([-math.inf, *sorted(doubts)], key=lambda threshold: self.scores(paragraphs, threshold)["f1"])

    def predicted(self, question: str, context: str) -> tuple[str, float]:
        """The best span over all windows, and the least null score minus the span's."""
        known = self._known.get((question, context))
        if known is not None:
            return known
        encoded = self._tokenizer(
            question,
            context,
            truncation="only_second",
            max_length=MAX_LENGTH,
            stride=MAX_LENGTH // 8,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        text, best, null = "", -math.inf, math.inf
        for window, ids in enumerate(encoded["input_ids"]):
            with torch.no_grad():
                output = self._model(torch.tensor([ids]))
            starts, ends = output.start_logits[0].tolist(), output.end_logits[0].tolist()
            null = min(null, starts[0] + ends[0])
            inside = [place for place, part in enumerate(encoded.sequence_ids(window)) if part == 1]
            for first in inside:
                for last in inside:
                    if first <= last < first + 30 and starts[first] + ends[last] > best:
                        best = starts[first] + ends[last]
                        offsets = encoded["offset_mapping"][window]
                        text = context[offsets[first][0] : offsets[last][1]]
        self._known[question, context] = text, null - best
        return text, null - best


def official_scores(right: list[str], given: str) -> dict[str, float]:
    """As `get_raw_scores` of evaluate-v2.0.py does."""
    gold_answers = [answer for answer in right if normalize_answer(answer)] or [""]
    return {
        "exact_match": max(float(normalize_answer(answer) == normalize_answer(given)) for answer in gold_answers),
        "f1": max(compute_f1(answer, given) for answer in gold_answers),
    }


def normalize_answer(text: str) -> str:
    """As the function of this name in evaluate-v2.0.py."""
    lowered = "".join(mark for mark in text.lower() if mark not in set(string.punctuation))
    return " ".join(re.sub(re.compile(r"\b(a|an|the)\b", re.UNICODE), " ", lowered).split())


def compute_f1(gold: str, predicted: str) -> float:
    """As the function of this name in evaluate-v2.0.py."""
    gold_tokens, predicted_tokens = normalize_answer(gold).split(), normalize_answer(predicted).split()
    if not gold_tokens or not predicted_tokens:
        return float(gold_tokens == predicted_tokens)
    common = collections.Counter(gold_tokens) & collections.Counter(predicted_tokens)
    same = sum(common.values())
    if same == 0:
        return 0.0
    precision, recall = same / len(predicted_tokens), same / len(gold_tokens)
    return 2 * precision * recall / (precision + recall)
