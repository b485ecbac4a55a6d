"""Extractive question answering: the span of a context that answers a question, if any.

A long context is split into overlapping windows. The training target of a window without the answer
is its `[CLS]` token. Prediction follows SQuAD 2.0 (Devlin et al. 2019, arXiv 1810.04805, sections
4.2 and 4.3). The best span over all windows is the answer unless the lowest `[CLS]` score exceeds
the span's score by more than a threshold, which is tuned on the development set. If every training
and development question has an answer (SQuAD 1.1), the best span is always the answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedModel

from auth.errors import ConfigError
from coordinator.evaluation.tasks.examples import QuestionExample
from coordinator.evaluation.tasks.fine_tuning import Encoded, Subject
from coordinator.evaluation.tasks.metrics import ScoreReport, Scores, answer_scores, mean_scores

LONGEST_ANSWER = 30  # maximum length of an answer in tokens
OVERLAP_SHARE = 8  # a window shares one token in this many with the next window
NO_ANSWER = ""


@dataclass(frozen=True)
class ContextWindow:
    """A question and a window of its context."""

    question: int
    encoded: Encoded
    offsets: tuple[tuple[int, int] | None, ...]  # (start, end) of each token in the context; None for other tokens
    null: int  # position of `[CLS]` (0 if absent), where "no answer" is scored


@dataclass(frozen=True)
class AnswerCandidate:
    """A question's best span over all windows, with the scores of this span and of "no answer"."""

    text: str = NO_ANSWER
    score: float = -math.inf  # score of the span
    null: float = math.inf  # score of "no answer": the lowest over all windows

    @property
    def doubt(self) -> float:
        """The score of "no answer" minus the score of the span; infinite if there is no span."""
        return math.inf if self.score == -math.inf else self.null - self.score

    def answer(self, threshold: float) -> str:
        """Return the text of the span, or "" if `doubt` exceeds the threshold."""
        return NO_ANSWER if self.doubt > threshold else self.text


class Answering(Subject):
    """A task that answers each question with a span of its context, or "" if there is no answer."""

    def encoded(self) -> list[Encoded]:
        """Return the training examples as model inputs, split into windows."""
        return [self._labelled(self.train[window.question], window) for window in self._windows(self.train)]

    def model(self, seed: int) -> PreTrainedModel:
        """Load the checkpoint with a new head for the start and end of an answer."""
        return self.pretrained.model("AutoModelForQuestionAnswering", seed)

    def answers(self, model: PreTrainedModel, questions: Sequence[QuestionExample]) -> list[str]:
        """Return an answer to each question, using the threshold with the best development score."""
        candidates = self.candidates(model, questions)
        if all(question.answers for question in (*self.train, *self.dev)):
            return [candidate.text for candidate in candidates]
        judged = candidates if questions is self.dev else self.candidates(model, self.dev)
        with_spans, without = (
            [scores[self.task.main_metric] for scores in _scores(self.dev, answers)]
            for answers in ([candidate.text for candidate in judged], self.trivial_answers(self.dev))
        )
        threshold = best_threshold([candidate.doubt for candidate in judged], with_spans, without)
        return [candidate.answer(threshold) for candidate in candidates]

    def trivial_answers(self, questions: Sequence[QuestionExample]) -> list[str]:
        """Return "no answer" for each question."""
        return [NO_ANSWER] * len(questions)

    def report(self, questions: Sequence[QuestionExample], answers: Sequence[str]) -> ScoreReport:
        """Score the answers to these questions."""
        return ScoreReport(mean_scores(_scores(questions, answers)))

    def candidates(self, model: PreTrainedModel, questions: Sequence[QuestionExample]) -> list[AnswerCandidate]:
        """Return each question's best span, with the scores of this span and of "no answer"."""
        windows = self._windows(questions)
        outputs = self.outputs(model, [window.encoded for window in windows], "start_logits", "end_logits")
        found = [AnswerCandidate()] * len(questions)
        for window, (starts, ends) in zip(windows, outputs, strict=True):
            best, null = found[window.question], float(starts[window.null] + ends[window.null])
            score, span = best_span(starts, ends, window.offsets)
            if span is not None and score > best.score:
                best = AnswerCandidate(questions[window.question].context[slice(*span)], score, best.null)
            found[window.question] = replace(best, null=min(best.null, null))
        return found

    def _windows(self, questions: Sequence[QuestionExample]) -> list[ContextWindow]:
        if not self.tokenizer.is_fast:
            raise ConfigError(
                "Question answering needs a fast tokenizer, which knows where in the text a token stands."
            )
        return [window for number, question in enumerate(questions) for window in self._cut(number, question)]

    def _cut(self, number: int, question: QuestionExample) -> Iterator[ContextWindow]:
        room = self.length - self.tokenizer.num_special_tokens_to_add(pair=True)
        asked = self.tokenizer(question.question, add_special_tokens=False, return_offsets_mapping=True)
        ends = [end for _, end in asked["offset_mapping"][: room // 2]]  # the question fills at most half of the window
        found = self.tokenizer(
            question.question[: max(ends, default=0)],
            question.context,
            truncation="only_second",
            max_length=self.length,
            stride=min(self.length // OVERLAP_SHARE, room - len(ends) - 1),
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        for place, ids in enumerate(found["input_ids"]):
            parts, offsets = found.sequence_ids(place), found["offset_mapping"][place]
            inside = tuple(tuple(offset) if part == 1 else None for part, offset in zip(parts, offsets, strict=True))
            encoded = {name: list(found[name][place]) for name in ("input_ids", "token_type_ids") if name in found}
            mark = self.tokenizer.cls_token_id
            yield ContextWindow(number, encoded, inside, null=ids.index(mark) if mark in ids else 0)

    def _labelled(self, question: QuestionExample, window: ContextWindow) -> Encoded:
        span = None
        if question.answers:
            begin = question.starts[0]
            span = token_span(window.offsets, begin, begin + len(question.answers[0]))
        start, end = span or (window.null, window.null)
        return {**window.encoded, "start_positions": start, "end_positions": end}


def _scores(questions: Sequence[QuestionExample], answers: Sequence[str]) -> list[Scores]:
    return [answer_scores(question.answers, answer) for question, answer in zip(questions, answers, strict=True)]


def best_threshold(doubts: Sequence[float], answered: Sequence[float], empty: Sequence[float]) -> float:
    """Return the threshold with the highest total score; -inf if it is best never to answer.

    For each question, `answered` is the score of the span and `empty` the score of "no answer".
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
    """Return the first and last token of characters `begin` to `end`; None if one has no token."""
    inside = [place for place, span in enumerate(offsets) if span is not None and span[0] < end and span[1] > begin]
    spans = [offsets[place] for place in inside]
    if not spans or spans[0] is None or spans[-1] is None or spans[0][0] > begin or spans[-1][1] < end:
        return None
    return inside[0], inside[-1]


def best_span(
    starts: torch.Tensor, ends: torch.Tensor, offsets: Sequence[tuple[int, int] | None]
) -> tuple[float, tuple[int, int] | None]:
    """Return the score of the most likely span and its (start, end) in the context, or (-inf, None).

    `starts` and `ends` are logits (length,), possibly padded.
    """
    count = len(offsets)
    allowed = torch.tensor([span is not None for span in offsets])
    valid = (allowed[:, None] & allowed[None, :]).triu().tril(LONGEST_ANSWER - 1)  # indexed by (first, last) token
    sums = (starts[:count, None] + ends[None, :count]).masked_fill(~valid, -math.inf)
    place = int(sums.argmax())
    first, last = offsets[place // count], offsets[place % count]
    if first is None or last is None:
        return -math.inf, None
    return float(sums.flatten()[place]), (first[0], last[1])
