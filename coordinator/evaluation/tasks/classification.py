"""Classification: a label for a text or a pair of texts (news, inference), or a tag for each word (named entities)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from transformers import PreTrainedModel

from coordinator.evaluation.tasks.examples import Classified, Tagged
from coordinator.evaluation.tasks.fine_tuning import Encoded, logits_of
from coordinator.evaluation.tasks.metrics import NO_ENTITY, ScoreReport, Scores, entity_scores, label_scores, tag_scores
from coordinator.evaluation.tasks.pretrained import Pretrained, WordWindow, cut, frame_of, pad_id, padded
from peer.config.evaluation import Task
from peer.data.batching.samples import IGNORED


class Classifying:
    """The task on one checkpoint; a `Subject`."""

    def __init__(
        self,
        pretrained: Pretrained,
        task: Task,
        train: Sequence[Classified],
        dev: Sequence[Classified],
        test: Sequence[Classified],
    ) -> None:
        self._pretrained, self._task = pretrained, task
        self._tokenizer = pretrained.tokenizer()
        self.pad = pad_id(self._tokenizer)
        self._length = pretrained.length(task.recipe)
        self.labels = sorted({example.label for example in train})
        self._commonest = Counter(example.label for example in train).most_common(1)[0][0]
        self._dev, self._test = dev, test
        self.train = [{**self._encoded(example), "labels": self.labels.index(example.label)} for example in train]
        self.examples = len(test)

    def model(self, seed: int) -> PreTrainedModel:
        """The checkpoint with a fresh head over the labels of the training set."""
        names = dict(enumerate(self.labels))
        numbers = {label: number for number, label in names.items()}
        return self._pretrained.model(
            "AutoModelForSequenceClassification", seed, id2label=names, label2id=numbers, pad_token_id=self.pad
        )

    def dev_scores(self, model: PreTrainedModel) -> Scores:
        """Return the scores on the development set."""
        return self._scores(self._dev, self.predict(model, self._dev))

    def test_scores(self, model: PreTrainedModel) -> ScoreReport:
        """Return the scores on the test set."""
        return ScoreReport(self._scores(self._test, self.predict(model, self._test)))

    def trivial_scores(self) -> Scores:
        """Return the scores on the development set of the commonest label for everything."""
        return self._scores(self._dev, [self._commonest] * len(self._dev))

    def predict(self, model: PreTrainedModel, examples: Sequence[Classified]) -> list[str]:
        """The likeliest label of each."""
        encoded = [self._encoded(example) for example in examples]
        outputs = logits_of(model, encoded, self._task.recipe.batch_size, lambda batch: padded(batch, self.pad))
        return [self.labels[int(number)] for output in outputs for number in output.logits.argmax(-1)]

    def _scores(self, truth: Sequence[Classified], predicted: Sequence[str]) -> Scores:
        return label_scores([example.label for example in truth], predicted)

    def _encoded(self, example: Classified) -> Encoded:
        found = self._tokenizer(example.text, example.pair, truncation=True, max_length=self._length)
        names = [name for name in ("input_ids", "token_type_ids") if name in found]
        return {name: list(found[name]) for name in names}


class Tagging:
    """The task on one checkpoint; a `Subject`."""

    def __init__(
        self, pretrained: Pretrained, task: Task, train: Sequence[Tagged], dev: Sequence[Tagged], test: Sequence[Tagged]
    ) -> None:
        self._pretrained, self._task = pretrained, task
        self._tokenizer = pretrained.tokenizer()
        self.pad = pad_id(self._tokenizer)
        self.labels = sorted({tag for sentence in train for tag in sentence.tags})
        counts = Counter(tag for sentence in train for tag in sentence.tags)
        self._commonest = counts.most_common(1)[0][0]
        self._frame = frame_of(self._tokenizer)
        self._room = self._frame.room(pretrained.length(task.recipe))
        self._train_set, self._dev, self._test = train, dev, test
        self.train = [self._encoded(train, window) for window in self._windows(train)]
        self.examples = len(test)

    def model(self, seed: int) -> PreTrainedModel:
        """The checkpoint with a fresh head over the tags of the training set."""
        names = dict(enumerate(self.labels))
        numbers = {label: number for number, label in names.items()}
        return self._pretrained.model("AutoModelForTokenClassification", seed, id2label=names, label2id=numbers)

    def dev_scores(self, model: PreTrainedModel) -> Scores:
        """Return the scores on the development set."""
        return self._report(self._dev, self.predict(model, self._dev)).scores

    def test_scores(self, model: PreTrainedModel) -> ScoreReport:
        """Return the scores on the test set."""
        return self._report(self._test, self.predict(model, self._test))

    def trivial_scores(self) -> Scores:
        """Return the scores on the development set of the commonest tag for every word."""
        return self._report(self._dev, [[self._commonest] * len(sentence.words) for sentence in self._dev]).scores

    def predict(self, model: PreTrainedModel, sentences: Sequence[Tagged]) -> list[list[str]]:
        """A tag for each word; one of which the tokenizer leaves nothing gets the commonest."""
        default = NO_ENTITY if NO_ENTITY in self.labels else self._commonest
        tags = [[default] * len(sentence.words) for sentence in sentences]
        windows = sorted(self._windows(sentences), key=lambda window: len(window.tokens))
        examples = [self._encoded(sentences, window) for window in windows]
        size = self._task.recipe.batch_size
        outputs = logits_of(model, examples, size, lambda batch: padded(batch, self.pad))
        chosen = [row for output in outputs for row in output.logits.argmax(-1).cpu()]  # each (length,)
        before = len(self._frame.before)
        for window, row in zip(windows, chosen, strict=True):
            for word, first in zip(window.words, window.firsts, strict=True):
                tags[window.sentence][word] = self.labels[int(row[before + first])]
        return tags

    def _report(self, truth: Sequence[Tagged], predicted: Sequence[Sequence[str]]) -> ScoreReport:
        right = [sentence.tags for sentence in truth]
        is_ner = self._task.kind == "ner"
        return entity_scores(right, predicted) if is_ner else ScoreReport(tag_scores(right, predicted))

    def _windows(self, sentences: Sequence[Tagged]) -> list[WordWindow]:
        return cut([sentence.words for sentence in sentences], self._tokenize, self._room)

    def _tokenize(self, word: str) -> Sequence[int]:
        """A word's tokens as within a text: with the space before it, where the tokenizer makes one of it."""
        ids: list[int] = self._tokenizer(f" {word}", add_special_tokens=False)["input_ids"]
        return ids

    def _encoded(self, sentences: Sequence[Tagged], window: WordWindow) -> Encoded:
        ids, before = self._frame.around(window.tokens), len(self._frame.before)
        labels = [IGNORED] * len(ids)
        for word, first in zip(window.words, window.firsts, strict=True):
            tag = sentences[window.sentence].tags[word]
            labels[before + first] = self.labels.index(tag) if tag in self.labels else IGNORED
        return {"input_ids": ids, "labels": labels}
