"""Sequence classification: a label for a text (news categories) or for a pair of them (paraphrase, inference)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from transformers import PreTrainedModel

from coordinator.evaluation.tasks.examples import Classified
from coordinator.evaluation.tasks.fine_tuning import Encoded, logits_of
from coordinator.evaluation.tasks.metrics import Scores, label_scores
from coordinator.evaluation.tasks.pretrained import Pretrained, pad_id, padded
from peer.config.evaluation import Task


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
        self._length = min(task.recipe.max_length, pretrained.max_length or 10**9)
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

    def test_scores(self, model: PreTrainedModel) -> Scores:
        """Return the scores on the test set."""
        return self._scores(self._test, self.predict(model, self._test))

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
