"""Extractive question answering: where in a context the answer stands, or that it is not there.

A long context becomes windows that overlap. In training, a window without the answer points at its `[CLS]` token. The
prediction is SQuAD 2.0's (Devlin et al. 2019, arXiv 1810.04805, sections 4.2 and 4.3): the best span of all windows
stands against the least `[CLS]` score of all windows, and is the answer unless that score is higher by more than a
threshold. As in SQuAD's script, the threshold is the one that gives the best score on the development set. If no
training or development question lacks an answer (SQuAD 1.1), the best span always is the answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedModel

from auth.errors import ConfigError
from coordinator.evaluation.tasks.examples import QuestionExample
from coordinator.evaluation.tasks.fine_tuning import Encoded, logits_of
from coordinator.evaluation.tasks.metrics import ScoreReport, Scores, answer_scores, mean_scores
from coordinator.evaluation.tasks.pretrained import Pretrained, pad_id, padded
from peer.config.evaluation import Task

LONGEST_ANSWER = 30  # tokens
OVERLAP_SHARE = 8  # of a window's length
NO_ANSWER = ""


@dataclass(frozen=True)
class ContextWindow:
    """A question and a piece of its context."""

    question: int
    encoded: Encoded
    offsets: tuple[tuple[int, int] | None, ...]  # characters of the context, for each token; None: not of the context
    null: int = 0  # the token whose scores mean no answer


@dataclass(frozen=True)
class AnswerCandidate:
    """The best span over all windows of a question, and the scores that decide whether it is the answer."""

    text: str = NO_ANSWER
    score: float = -math.inf  # of the span
    null: float = math.inf  # of no answer: the least over the windows

    @property
    def doubt(self) -> float:
        """The margin by which no answer is likelier than the span."""
        return math.inf if self.score == -math.inf else self.null - self.score

    def answer(self, threshold: float) -> str:
        """The span, unless the doubt exceeds the threshold."""
        return NO_ANSWER if self.doubt > threshold else self.text


class Answering:
    """The task on one checkpoint; a `Subject`."""

    def __init__(
        self,
        pretrained: Pretrained,
        task: Task,
        train: Sequence[QuestionExample],
        dev: Sequence[QuestionExample],
        test: Sequence[QuestionExample],
    ) -> None:
        self._pretrained, self._task = pretrained, task
        self._tokenizer = pretrained.tokenizer()
        if not self._tokenizer.is_fast:
            raise ConfigError(
                "Question answering needs a fast tokenizer, which knows where in the text a token stands."
            )
        self.pad = pad_id(self._tokenizer)
        self._length = pretrained.length(task.recipe)
        self._dev, self._test = dev, test
        self._may_lack_answers = any(not question.answers for question in (*train, *dev))
        self.train = [self._labelled(train, window) for window in self._windows(train)]
        self.examples = len(test)

    def model(self, seed: int) -> PreTrainedModel:
        """The checkpoint with a fresh head of two pointers."""
        return self._pretrained.model("AutoModelForQuestionAnswering", seed)

    def dev_scores(self, model: PreTrainedModel) -> Scores:
        """Return the scores on the development set, under the best threshold for it."""
        candidates = self.candidates(model, self._dev)
        return mean_scores(_answered(self._dev, candidates, self._threshold(candidates)))

    def test_scores(self, model: PreTrainedModel) -> ScoreReport:
        """Return the scores on the test set, under the threshold of the development set."""
        threshold = self._threshold(self.candidates(model, self._dev)) if self._may_lack_answers else math.inf
        return ScoreReport(mean_scores(_answered(self._test, self.candidates(model, self._test), threshold)))

    def trivial_scores(self) -> Scores:
        """Return the scores on the development set of no answer to anything."""
        return mean_scores(_answered(self._dev, [AnswerCandidate()] * len(self._dev), -math.inf))

    def candidates(self, model: PreTrainedModel, questions: Sequence[QuestionExample]) -> list[AnswerCandidate]:
        """The best span for each question, and the score of no answer."""
        windows = self._windows(questions)
        size = self._task.recipe.batch_size
        outputs = logits_of(model, [window.encoded for window in windows], size, lambda batch: padded(batch, self.pad))
        rows = [
            pair for output in outputs for pair in zip(output.start_logits.cpu(), output.end_logits.cpu(), strict=True)
        ]
        found = [AnswerCandidate()] * len(questions)
        for window, (starts, ends) in zip(windows, rows, strict=True):
            best, null = found[window.question], float(starts[window.null] + ends[window.null])
            score, span = best_span(starts, ends, window.offsets)
            if span is not None and score > best.score:
                best = AnswerCandidate(questions[window.question].context[slice(*span)], score, best.null)
            found[window.question] = replace(best, null=min(best.null, null))
        return found

    def _threshold(self, candidates: Sequence[AnswerCandidate]) -> float:
        if not self._may_lack_answers:
            return math.inf
        metric = self._task.main_metric
        answered = [scores[metric] for scores in _answered(self._dev, candidates, math.inf)]
        empty = [scores[metric] for scores in _answered(self._dev, candidates, -math.inf)]
        return best_threshold([candidate.doubt for candidate in candidates], answered, empty)

    def _windows(self, questions: Sequence[QuestionExample]) -> list[ContextWindow]:
        return [window for number, question in enumerate(questions) for window in self._cut(number, question)]

    def _cut(self, number: int, question: QuestionExample) -> list[ContextWindow]:
        room = self._length - self._tokenizer.num_special_tokens_to_add(pair=True)
        asked = self._tokenizer(question.question, add_special_tokens=False, return_offsets_mapping=True)
        ends = [end for _, end in asked["offset_mapping"][: room // 2]]  # the question has at most half of the room
        room -= len(ends)
        found = self._tokenizer(
            question.question[: max(ends, default=0)],
            question.context,
            truncation="only_second",
            max_length=self._length,
            stride=min(self._length // OVERLAP_SHARE, room - 1),
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        names = [name for name in ("input_ids", "token_type_ids") if name in found]
        windows = []
        for place in range(len(found["input_ids"])):
            parts, offsets = found.sequence_ids(place), found["offset_mapping"][place]
            inside = tuple(tuple(offset) if part == 1 else None for part, offset in zip(parts, offsets, strict=True))
            encoded = {name: list(found[name][place]) for name in names}
            windows.append(ContextWindow(number, encoded, inside, self._null_place(encoded["input_ids"])))
        return windows

    def _null_place(self, ids: Sequence[int]) -> int:
        """The place of `[CLS]`; the first token where the tokenizer has none."""
        mark = self._tokenizer.cls_token_id
        return ids.index(mark) if mark in ids else 0

    def _labelled(self, questions: Sequence[QuestionExample], window: ContextWindow) -> Encoded:
        question = questions[window.question]
        span = None
        if question.answers:
            begin = question.starts[0]
            span = token_span(window.offsets, begin, begin + len(question.answers[0]))
        start, end = span or (window.null, window.null)
        return {**window.encoded, "start_positions": start, "end_positions": end}


def _answered(
    questions: Sequence[QuestionExample], candidates: Sequence[AnswerCandidate], threshold: float
) -> list[Scores]:
    """Return each question's scores under a threshold."""
    return [
        answer_scores(question.answers, candidate.answer(threshold))
        for question, candidate in zip(questions, candidates, strict=True)
    ]


def best_threshold(doubts: Sequence[float], answered: Sequence[float], empty: Sequence[float]) -> float:
    """The largest doubt up to which questions should be answered for the highest sum of scores.

    `answered` and `empty` are each question's score with its span and with no answer. The result is -inf if answering
    nothing is best.
    """
    gains: dict[float, float] = {}
    for doubt, with_span, without in zip(doubts, answered, empty, strict=True):
        gains[doubt] = gains.get(doubt, 0.0) + with_span - without
    best, best_sum, total = -math.inf, 0.0, 0.0
    for doubt in sorted(gains):
        total += gains[doubt]
        if total > best_sum:
            best, best_sum = doubt, total
    return best


def token_span(offsets: Sequence[tuple[int, int] | None], begin: int, end: int) -> tuple[int, int] | None:
    """The first and the last token of the characters from `begin` to `end`; None if they are not all there."""
    inside = [place for place, span in enumerate(offsets) if span is not None and span[0] < end and span[1] > begin]
    spans = [offsets[place] for place in inside]
    if not spans or spans[0] is None or spans[-1] is None or spans[0][0] > begin or spans[-1][1] < end:
        return None
    return inside[0], inside[-1]


def best_span(
    starts: torch.Tensor, ends: torch.Tensor, offsets: Sequence[tuple[int, int] | None]
) -> tuple[float, tuple[int, int] | None]:
    """The score and the characters of the likeliest span within the context; None if the window has no such span.

    `starts` and `ends` are scores (length,), perhaps padded.
    """
    count = len(offsets)
    allowed = torch.tensor([span is not None for span in offsets])
    sums = starts[:count, None] + ends[None, :count]  # (first, last)
    valid = allowed[:, None] & allowed[None, :]
    valid = (
        valid
        & torch.ones(count, count, dtype=torch.bool).triu()
        & ~torch.ones(count, count, dtype=torch.bool).triu(LONGEST_ANSWER)
    )
    sums = sums.masked_fill(~valid, -math.inf)
    place = int(sums.argmax())
    first, last = offsets[place // count], offsets[place % count]
    if first is None or last is None:
        return -math.inf, None
    return float(sums.flatten()[place]), (first[0], last[1])
