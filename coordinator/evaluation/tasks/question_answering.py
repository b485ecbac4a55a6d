"""Extractive question answering: where in a context the answer stands, or that it is not there.

A long context becomes windows that overlap; the answer is the likeliest span of all of them (Devlin et al. 2019,
arXiv 1810.04805, section 4.2 and 4.3). A window without the answer points at its first token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from auth.errors import ConfigError
from coordinator.evaluation.tasks.examples import QuestionExample
from coordinator.evaluation.tasks.fine_tuning import Encoded, logits_of
from coordinator.evaluation.tasks.metrics import Scores, answer_scores
from coordinator.evaluation.tasks.pretrained import Pretrained, pad_id, padded
from peer.config.evaluation import Task

LONGEST_ANSWER = 30  # tokens
OVERLAP_SHARE = 4  # of a window's length
NO_ANSWER = ""


@dataclass(frozen=True)
class ContextWindow:
    """A question and a piece of its context."""

    question: int
    encoded: Encoded
    offsets: tuple[tuple[int, int] | None, ...]  # characters of the context, for each token; None: not of the context


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
        self._length = min(task.recipe.max_length, pretrained.max_length or 10**9)
        self._dev, self._test = dev, test
        self.train = [self._labelled(train, window) for window in self._windows(train)]
        self.examples = len(test)

    def model(self, seed: int) -> PreTrainedModel:
        """The checkpoint with a fresh head of two pointers."""
        return self._pretrained.model("AutoModelForQuestionAnswering", seed)

    def dev_scores(self, model: PreTrainedModel) -> Scores:
        """Return the scores on the development set."""
        return answer_scores([question.answers for question in self._dev], self.predict(model, self._dev))

    def test_scores(self, model: PreTrainedModel) -> Scores:
        """Return the scores on the test set."""
        return answer_scores([question.answers for question in self._test], self.predict(model, self._test))

    def trivial_scores(self) -> Scores:
        """Return the scores on the development set of no answer to anything."""
        return answer_scores([question.answers for question in self._dev], [NO_ANSWER] * len(self._dev))

    def predict(self, model: PreTrainedModel, questions: Sequence[QuestionExample]) -> list[str]:
        """The answer to each."""
        windows = self._windows(questions)
        size = self._task.recipe.batch_size
        outputs = logits_of(model, [window.encoded for window in windows], size, lambda batch: padded(batch, self.pad))
        rows = [
            pair for output in outputs for pair in zip(output.start_logits.cpu(), output.end_logits.cpu(), strict=True)
        ]
        best = [(float("-inf"), NO_ANSWER)] * len(questions)
        for window, (starts, ends) in zip(windows, rows, strict=True):
            score, span = best_span(starts, ends, window.offsets)
            context = questions[window.question].context
            answer = NO_ANSWER if span is None else context[span[0] : span[1]]
            best[window.question] = max(best[window.question], (score, answer), key=lambda pair: pair[0])
        return [answer for _, answer in best]

    def _windows(self, questions: Sequence[QuestionExample]) -> list[ContextWindow]:
        return [window for number, question in enumerate(questions) for window in self._cut(number, question)]

    def _cut(self, number: int, question: QuestionExample) -> list[ContextWindow]:
        length = self._length
        asked = self._tokenizer(question.question, truncation=True, max_length=length // 2, add_special_tokens=False)
        text = (
            self._tokenizer.decode(asked["input_ids"]) if len(asked["input_ids"]) >= length // 2 else question.question
        )
        found = self._tokenizer(
            text,
            question.context,
            truncation="only_second",
            max_length=length,
            stride=length // OVERLAP_SHARE // 2,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        names = [name for name in ("input_ids", "token_type_ids") if name in found]
        windows = []
        for place in range(len(found["input_ids"])):
            parts, offsets = found.sequence_ids(place), found["offset_mapping"][place]
            inside = tuple(tuple(offset) if part == 1 else None for part, offset in zip(parts, offsets, strict=True))
            encoded = {name: list(found[name][place]) for name in names}
            windows.append(ContextWindow(number, encoded, inside))
        return windows

    def _labelled(self, questions: Sequence[QuestionExample], window: ContextWindow) -> Encoded:
        question = questions[window.question]
        start, end = 0, 0
        if question.answers:
            begin = question.starts[0]
            start, end = token_span(window.offsets, begin, begin + len(question.answers[0]))
        return {**window.encoded, "start_positions": start, "end_positions": end}


def token_span(offsets: Sequence[tuple[int, int] | None], begin: int, end: int) -> tuple[int, int]:
    """The first and the last token of the characters from `begin` to `end`; (0, 0) if they are not all there."""
    inside = [place for place, span in enumerate(offsets) if span is not None and span[0] < end and span[1] > begin]
    spans = [offsets[place] for place in inside]
    if not spans or spans[0] is None or spans[-1] is None or spans[0][0] > begin or spans[-1][1] < end:
        return 0, 0
    return inside[0], inside[-1]


def best_span(
    starts: torch.Tensor, ends: torch.Tensor, offsets: Sequence[tuple[int, int] | None]
) -> tuple[float, tuple[int, int] | None]:
    """The likeliest span of characters and its score; None where the first token, no answer, is likelier.

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
    sums = sums.masked_fill(~valid, float("-inf"))
    place = int(sums.argmax())
    best, nothing = float(sums.flatten()[place]), float(starts[0] + ends[0])
    first, last = offsets[place // count], offsets[place % count]
    if first is None or last is None or nothing > best:
        return nothing, None
    return best, (first[0], last[1])
