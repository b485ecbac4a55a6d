"""Classification of texts or text pairs (topics, inference) and tagging of words (entities)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from transformers import PreTrainedModel

from coordinator.evaluation.tasks.examples import Classified, Tagged
from coordinator.evaluation.tasks.fine_tuning import Encoded, Subject
from coordinator.evaluation.tasks.metrics import NO_ENTITY, ScoreReport, entity_scores, label_scores, tag_scores
from coordinator.evaluation.tasks.pretrained import Frame, WordWindow, cut, frame_of
from peer.data.batching.samples import IGNORED


class Classifying(Subject):
    """A task that predicts a label for each text or text pair."""

    @cached_property
    def labels(self) -> list[str]:
        """The distinct labels of the training set, sorted."""
        return sorted({example.label for example in self.train})

    def encoded(self) -> list[Encoded]:
        """Return the training examples as model inputs."""
        return [{**self._encoded(example), "labels": self.labels.index(example.label)} for example in self.train]

    def model(self, seed: int) -> PreTrainedModel:
        """Load the checkpoint with a new classification head for the training labels."""
        return self.pretrained.model("AutoModelForSequenceClassification", seed, self.labels, pad_token_id=self.pad)

    def answers(self, model: PreTrainedModel, examples: Sequence[Classified]) -> list[str]:
        """Return the most likely label of each text."""
        outputs = self.outputs(model, [self._encoded(example) for example in examples], "logits")
        return [self.labels[int(logits.argmax())] for (logits,) in outputs]  # each of shape (labels,)

    def trivial_answers(self, examples: Sequence[Classified]) -> list[str]:
        """Return the most frequent label of the training set for every example."""
        return [_commonest(example.label for example in self.train)] * len(examples)

    def report(self, examples: Sequence[Classified], answers: Sequence[str]) -> ScoreReport:
        """Compute accuracy, macro F1 and Matthews correlation of the predicted labels."""
        return ScoreReport(label_scores([example.label for example in examples], answers))

    def _encoded(self, example: Classified) -> Encoded:
        found = self.tokenizer(example.text, example.pair, truncation=True, max_length=self.length)
        return {name: list(found[name]) for name in ("input_ids", "token_type_ids") if name in found}


class Tagging(Subject):
    """A task that predicts a tag for each word of a sentence."""

    @cached_property
    def labels(self) -> list[str]:
        """The distinct tags of the training set, sorted."""
        return sorted({tag for sentence in self.train for tag in sentence.tags})

    @cached_property
    def _frame(self) -> Frame:
        return frame_of(self.tokenizer)

    def encoded(self) -> list[Encoded]:
        """Return the training sentences as model inputs, split into windows."""
        return [self._labelled(self.train[window.sentence], window) for window in self._windows(self.train)]

    def model(self, seed: int) -> PreTrainedModel:
        """Load the checkpoint with a new tagging head for the training tags."""
        return self.pretrained.model("AutoModelForTokenClassification", seed, self.labels)

    def answers(self, model: PreTrainedModel, sentences: Sequence[Tagged]) -> list[list[str]]:
        """Tag each word; words without tokens get `O`, or the most common tag if `O` is unused."""
        tags = self.trivial_answers(sentences)
        if NO_ENTITY in self.labels:
            tags = [[NO_ENTITY] * len(sentence.words) for sentence in sentences]
        windows = sorted(self._windows(sentences), key=lambda window: len(window.tokens))
        encoded = [{"input_ids": self._frame.around(window.tokens)} for window in windows]
        for window, (logits,) in zip(windows, self.outputs(model, encoded, "logits"), strict=True):
            chosen = logits.argmax(-1)  # (length,)
            for word, first in window.firsts.items():
                tags[window.sentence][word] = self.labels[int(chosen[len(self._frame.before) + first])]
        return tags

    def trivial_answers(self, sentences: Sequence[Tagged]) -> list[list[str]]:
        """Return the most frequent tag of the training set for every word."""
        commonest = _commonest(tag for sentence in self.train for tag in sentence.tags)
        return [[commonest] * len(sentence.words) for sentence in sentences]

    def report(self, sentences: Sequence[Tagged], answers: Sequence[Sequence[str]]) -> ScoreReport:
        """Score the predicted tags: named entities as spans, part-of-speech tags word by word."""
        right = [sentence.tags for sentence in sentences]
        return entity_scores(right, answers) if self.task.kind == "ner" else ScoreReport(tag_scores(right, answers))

    def _windows(self, sentences: Sequence[Tagged]) -> Iterator[WordWindow]:
        return cut([sentence.words for sentence in sentences], self._tokens, self._frame.room(self.length))

    def _tokens(self, word: str) -> Sequence[int]:
        """Tokenize a word with a leading space, which some tokenizers merge into its token."""
        ids: list[int] = self.tokenizer(f" {word}", add_special_tokens=False)["input_ids"]
        return ids

    def _labelled(self, sentence: Tagged, window: WordWindow) -> Encoded:
        ids = self._frame.around(window.tokens)
        labels = [IGNORED] * len(ids)
        for word, first in window.firsts.items():
            labels[len(self._frame.before) + first] = self.labels.index(sentence.tags[word])
        return {"input_ids": ids, "labels": labels}


def _commonest(labels: Iterable[str]) -> str:
    return Counter(labels).most_common(1)[0][0]
