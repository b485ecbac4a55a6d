"""`evaluation:`: the downstream tasks by which checkpoints are judged, each with its data and its recipe.

An evaluator reads it (`manyhands coordinator evaluator`), and `manyhands evaluate` takes the same tasks; peers pass
over it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from peer.config.base import Fraction, Positive, PositiveFloat, Section, Sha256, ShortName

Kind = Literal["ner", "pos", "classification", "qa", "fill-mask", "bias"]
Metric = Literal["f1", "accuracy", "macro_f1", "exact_match", "pseudo_perplexity", "distance"]
# Of each kind: what it measures, the one that is drawn first.
METRICS: Mapping[str, tuple[str, ...]] = {
    "ner": ("f1", "accuracy"),
    "pos": ("accuracy",),
    "classification": ("accuracy", "macro_f1"),
    "qa": ("f1", "exact_match"),
    "fill-mask": ("pseudo_perplexity", "accuracy"),
    "bias": ("distance",),
}
LOWER_IS_BETTER = frozenset({"pseudo_perplexity", "distance"})
UNTRAINED = frozenset({"fill-mask", "bias"})  # the checkpoint itself is asked, nothing is fine-tuned
HUB = "hub:"
Column = int | str
Name = Annotated[str, Field(min_length=1, max_length=1000)]


def is_web(path: str) -> bool:
    """Whether the path is a web address."""
    return path.startswith(("http://", "https://"))


def _path_alone(value: Any) -> Any:
    return {"path": value} if isinstance(value, str) else value


class Examples(Section):
    """A file, relative to who reads it, a web address, or `hub:OWNER/NAME`; the path alone will do."""

    path: Name
    sha256: Sha256 | None = None  # of the file as it lies there
    config_name: Name | None = None  # this and the next two: of a dataset on the hub
    split: Name | None = None
    revision: Name | None = None

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
            raise ValueError(
                f"{self.path!r:.80} is a web address: give the file's `sha256`, so that it stays what it is"
            )
        return self

    @property
    def published(self) -> Examples:
        """The same for everybody: of a file outside of the run's directory the name alone."""
        if is_web(self.path) or self.path.startswith(HUB):
            return self
        path = PurePath(self.path)
        is_outside = path.is_absolute() or ".." in path.parts or path.parts[:1] == ("~",)
        return self.model_copy(update={"path": path.name}) if is_outside else self


Where = Annotated[Examples, BeforeValidator(_path_alone)]


class Columns(Section):
    """The columns by role: a number in CoNLL files (from 0; negative: from the end), a name elsewhere."""

    text: Column | None = None  # None, like the others: the usual one of the format
    pair: Column | None = None  # a second text; None: there is none
    label: Column | None = None


class Recipe(Section):
    """The recipe by which a checkpoint is fine-tuned for a task; the same for all that are compared."""

    seeds: tuple[Annotated[int, Field(ge=0, lt=2**32)], ...] = Field(
        (0, 1, 2), min_length=1, max_length=32, strict=False
    )
    epochs: Positive = 10
    patience: Positive = 3  # epochs without a better score on the development set, then it ends
    batch_size: Positive = 16
    learning_rate: PositiveFloat = 5e-5
    weight_decay: float = Field(0.01, ge=0, allow_inf_nan=False)
    warmup_share: Fraction = 0.1  # of all steps
    max_length: int = Field(128, ge=8, le=8192)  # tokens
    max_train: Positive | None = None  # examples, the first ones; None, like the next: all
    max_test: Positive | None = None

    @model_validator(mode="after")
    def _seeds_differ(self) -> Recipe:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"`seeds` ({', '.join(map(str, self.seeds))}) must all be different")
        return self


class Reference(Section):
    """An earlier model's score on the same task: a line across the curve."""

    name: str = Field(min_length=1, max_length=80)
    value: float = Field(allow_inf_nan=False)


class Task(Section):
    """One task."""

    name: ShortName
    kind: Kind
    metric: Metric | None = None  # the one that is drawn and compared; None: the kind's first
    train: Where | None = None
    dev: Where | None = None  # None: a tenth of `train`
    test: Where
    columns: Columns = Columns()
    recipe: Recipe = Recipe()
    references: tuple[Reference, ...] = Field((), max_length=20, strict=False)

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Task:
        known = METRICS[self.kind]
        if self.metric is not None and self.metric not in known:
            raise ValueError(
                f"`metric` ({self.metric}) of a task of kind {self.kind} must be one of: {', '.join(known)}"
            )
        if self.is_trained and self.train is None:
            raise ValueError(f"the task `{self.name}` of kind {self.kind} needs `train`, examples to fine-tune on")
        if not self.is_trained and (self.train or self.dev):
            raise ValueError(f"the task `{self.name}` of kind {self.kind} is not trained: it takes `test` only")
        return self

    @property
    def is_trained(self) -> bool:
        """Whether checkpoints are fine-tuned for it, once for each seed."""
        return self.kind not in UNTRAINED

    @property
    def main_metric(self) -> str:
        """The one that is drawn and compared."""
        return self.metric or METRICS[self.kind][0]

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger value of it is a better one."""
        return self.main_metric not in LOWER_IS_BETTER

    @property
    def published(self) -> Task:
        """The task for everybody: without the folders of the operator's machine."""
        places = {key: None if place is None else place.published for key, place in self._places.items()}
        return self.model_copy(update=places)

    @property
    def _places(self) -> dict[str, Examples | None]:
        return {"train": self.train, "dev": self.dev, "test": self.test}

    @property
    def sha256(self) -> str:
        """The digest of data and recipe, on which scores depend: only scores with the same one can be compared."""
        told = self.model_copy(update={"references": (), "name": "task", "metric": None})
        return hashlib.sha256(told.model_dump_json().encode()).hexdigest()


class EvaluationTasks(Section):
    """All tasks of a run."""

    tasks: tuple[Task, ...] = Field((), max_length=32, strict=False)

    @model_validator(mode="after")
    def _names_differ(self) -> EvaluationTasks:
        names = [task.name for task in self.tasks]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two tasks are called `{twice[0]}`: each needs a `name` of its own")
        return self
