"""`evaluation:` in a run file: downstream tasks for checkpoints, each with its data and recipe.

Used by an evaluator (`manyhands coordinator evaluator`) and by `manyhands evaluate`; peers ignore
it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from peer.config.base import Fraction, Positive, PositiveFloat, Section, Sha256, ShortName

Kind = Literal["ner", "pos", "classification", "qa", "fill-mask", "bias", "retrieval"]
Metric = Literal[
    "f1",
    "f1_without_misc",
    "precision",
    "recall",
    "accuracy",
    "macro_f1",
    "matthews_correlation",
    "exact_match",
    "pseudo_perplexity",
    "distance",
    "ndcg_at_10",
    "mrr_at_10",
    "recall_at_100",
]
# Metrics that can be plotted and compared, by kind of task; the default is first.
METRICS: Mapping[str, tuple[str, ...]] = {
    "ner": ("f1", "f1_without_misc", "precision", "recall", "accuracy"),
    "pos": ("accuracy", "macro_f1"),
    "classification": ("accuracy", "macro_f1", "matthews_correlation"),
    "qa": ("f1", "exact_match"),
    "fill-mask": ("pseudo_perplexity", "accuracy"),
    "bias": ("distance",),
    "retrieval": ("ndcg_at_10", "mrr_at_10", "recall_at_100"),
}
LOWER_IS_BETTER = frozenset({"pseudo_perplexity", "distance"})
UNTRAINED = frozenset({"fill-mask", "bias"})  # kinds of tasks that are evaluated without fine-tuning
MAY_BE_UNTRAINED = UNTRAINED | {"retrieval"}
HUB = "hub:"
Column = int | str
Name = Annotated[str, Field(min_length=1, max_length=1000)]


def is_web(path: str) -> bool:
    """Return whether the path is a web address."""
    return path.startswith(("http://", "https://"))


def _path_alone(value: Any) -> Any:
    return {"path": value} if isinstance(value, str) else value


class Examples(Section):
    """The location of a task's examples; in a run file, a plain path may replace the section."""

    path: Name
    """File (relative to the run file), web address, or `hub:OWNER/NAME`; the path may be given instead of the
    object."""
    sha256: Sha256 | None = None
    """Digest of the file as stored, before unpacking; required for a web address."""
    config_name: Name | None = None
    """Configuration of a dataset on the hub."""
    split: Name | None = None
    """Split of a dataset on the hub."""
    revision: Name | None = None
    """Revision of a dataset on the hub."""

    @model_validator(mode="after")
    def _keys_fit_the_path(self) -> Examples:
        is_hub = self.path.startswith(HUB)
        given = [key for key in ("config_name", "split", "revision") if getattr(self, key) is not None]
        if given and not is_hub:
            raise ValueError(
                f"`{given[0]}` is for datasets of the hub (`path: hub:OWNER/NAME`), not for {self.path!r:.80}"
            )
        if is_hub and self.sha256 is not None:
            raise ValueError("`sha256` is for files: a dataset of the hub is pinned by its `revision`")
        if is_web(self.path) and self.sha256 is None:
            raise ValueError(f"{self.path!r:.80} is a web address: give the file's `sha256`, so that it cannot change")
        return self

    @property
    def published(self) -> Examples:
        """The public form; a path outside the run's directory is reduced to the file name."""
        if is_web(self.path) or self.path.startswith(HUB):
            return self
        path = PurePath(self.path)
        is_outside = path.is_absolute() or ".." in path.parts or path.parts[:1] == ("~",)
        return self.model_copy(update={"path": path.name}) if is_outside else self


Where = Annotated[Examples, BeforeValidator(_path_alone)]


class Columns(Section):
    """The columns by role: names or, in CoNLL files, numbers from 0 (negative: from the end)."""

    text: Column | None = None
    """Column of the text: in CoNLL files a number (from 0; negative: from the end), in other formats a name; by
    default the usual column of the format."""
    pair: Column | None = None
    """Column of a second text."""
    label: Column | None = None
    """Column of the label; by default the usual column of the format."""


class Recipe(Section):
    """The recipe for fine-tuning a checkpoint on a task, the same for all compared checkpoints."""

    seeds: tuple[Annotated[int, Field(ge=0, lt=2**32)], ...] = Field(
        (0, 1, 2), min_length=1, max_length=32, strict=False
    )
    """Seeds, all different; a checkpoint is fine-tuned once with each."""
    epochs: Positive = 10
    """Maximum number of epochs."""
    patience: Positive = 3
    """Number of epochs without a better score on the development set after which training stops."""
    batch_size: Positive = 16
    """Number of examples in a batch."""
    learning_rate: PositiveFloat = 5e-5
    """Learning rate at the end of the warm-up."""
    weight_decay: float = Field(0.01, ge=0, allow_inf_nan=False)
    """Weight decay."""
    warmup_share: Fraction = 0.1
    """Share of all steps used for the warm-up."""
    max_length: int = Field(128, ge=8, le=8192)
    """Maximum number of tokens in an example."""
    max_train: Positive | None = None
    """Maximum number of training examples, of which the first are used; by default all."""
    max_test: Positive | None = None
    """Maximum number of test examples, of which the first are used; by default all."""

    @model_validator(mode="after")
    def _seeds_differ(self) -> Recipe:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"`seeds` ({', '.join(map(str, self.seeds))}) must all be different")
        return self


class Reference(Section):
    """An earlier model's score on the same task, drawn as a horizontal line in the plot."""

    name: str = Field(min_length=1, max_length=80)
    """Name of the model."""
    value: float = Field(allow_inf_nan=False)
    """Score of the model."""


class Task(Section):
    """A downstream task."""

    name: ShortName
    """Name of the task; it must be unique."""
    kind: Kind
    """Kind of the task."""
    metric: Metric | None = None
    """Metric to draw and to compare; by default the kind's first."""
    train: Where | None = None
    """Training examples; not for `fill-mask` and `bias`; for `retrieval`, pairs of texts if the model is fine-tuned."""
    dev: Where | None = None
    """Development examples, for early stopping and for choosing the checkpoint to release; by default a tenth of
    `train`, if given."""
    test: Where
    """Test examples; for `retrieval`, the relevance judgements."""
    queries: Where | None = None
    """Queries for `retrieval`, used by `test` and `dev`."""
    corpus: Where | None = None
    """Documents for `retrieval`, used by `test` and `dev`."""
    columns: Columns = Columns()
    recipe: Recipe = Recipe()
    references: tuple[Reference, ...] = Field((), max_length=20, strict=False)
    """Scores of earlier models on the same task, drawn as lines across the curve."""

    @field_validator("metric", mode="before")
    @classmethod
    def _metric_fits_the_kind(cls, value: Any, info: ValidationInfo) -> Any:
        known = METRICS.get(info.data.get("kind", ""))
        if known is not None and value is not None and value not in known:
            raise ValueError(f"{value!r:.80} must be one of: {', '.join(known)} (the kind is {info.data['kind']})")
        return value

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Task:
        is_retrieval = self.kind == "retrieval"
        if is_retrieval != (self.queries is not None) or is_retrieval != (self.corpus is not None):
            raise ValueError(
                f"the task `{self.name}` of kind {self.kind} needs `queries` and `corpus`"
                if is_retrieval
                else f"the task `{self.name}` of kind {self.kind} takes no `queries` and no `corpus`"
            )
        if self.kind not in MAY_BE_UNTRAINED and self.train is None:
            raise ValueError(f"the task `{self.name}` of kind {self.kind} needs `train`, examples to fine-tune on")
        if self.kind in UNTRAINED and self.train:
            raise ValueError(f"the task `{self.name}` of kind {self.kind} is not trained: it takes no `train`")
        return self

    @property
    def is_trained(self) -> bool:
        """Return whether checkpoints are fine-tuned for the task, once for each seed."""
        return self.train is not None

    @property
    def main_metric(self) -> str:
        """The metric that is plotted and compared."""
        return self.metric or METRICS[self.kind][0]

    @property
    def higher_is_better(self) -> bool:
        """Return whether a larger value of the main metric is better."""
        return self.main_metric not in LOWER_IS_BETTER

    @property
    def published(self) -> Task:
        """The public form of the task, without directories of the operator's machine."""
        places = {key: None if place is None else place.published for key, place in self._places.items()}
        return self.model_copy(update=places)

    @property
    def _places(self) -> dict[str, Examples | None]:
        return {
            "train": self.train,
            "dev": self.dev,
            "test": self.test,
            "queries": self.queries,
            "corpus": self.corpus,
        }

    @property
    def sha256(self) -> str:
        """The digest of data and recipe; only scores with equal digests are comparable."""
        told = self.model_copy(update={"references": (), "name": "task", "metric": None})
        unused = None if self.kind == "retrieval" else {"queries", "corpus"}  # keeps other kinds' digests unchanged
        return hashlib.sha256(told.model_dump_json(exclude=unused).encode()).hexdigest()


class EvaluationTasks(Section):
    """All tasks on which a run's checkpoints are evaluated."""

    tasks: tuple[Task, ...] = Field((), max_length=32, strict=False)
    """Downstream tasks on which checkpoints are evaluated."""

    @model_validator(mode="after")
    def _names_differ(self) -> EvaluationTasks:
        names = [task.name for task in self.tasks]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two tasks are called `{twice[0]}`: each needs a `name` of its own")
        return self
