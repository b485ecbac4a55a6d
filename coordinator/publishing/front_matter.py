"""The front matter of a README.md: metadata in YAML by which the Hugging Face Hub finds and shows a model.

The cards of the model, its sentence embeddings, its task models and the demo begin with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from coordinator.checkpoints.validations import ValidationRow
from coordinator.evaluation.tasks.results import TaskResult
from coordinator.publishing.card_facts import CardFacts
from peer.config.evaluation import HUB, Task
from peer.config.run import RunConfig

# Of the hub's tasks; no pipeline runs a discriminator.
PIPELINES = {"mlm": "fill-mask", "mlm+sop": "fill-mask", "clm": "text-generation", "rtd": "replaced-token-detection"}

TASK_TYPES = {
    "ner": "token-classification",
    "pos": "token-classification",
    "classification": "text-classification",
    "qa": "question-answering",
    "fill-mask": "fill-mask",
    "bias": "fill-mask",
    "retrieval": "sentence-similarity",
}
_DATASET = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)


def document(front: Mapping[str, Any], sections: Iterable[str]) -> str:
    """Return a whole README.md; empty sections are left out."""
    head = yaml.safe_dump(dict(front), sort_keys=False, allow_unicode=True)
    return f"---\n{head}---\n\n" + "\n\n".join(filter(None, sections)) + "\n"


def front_matter(facts: CardFacts) -> dict[str, Any]:
    """Return the front matter of the model: what `shared_front_matter` has, and each measure."""
    config = facts.config
    newest = facts.validations[-1] if facts.validations else None
    pipeline = "" if is_discriminator(config) else PIPELINES[config.objective.name]
    front = shared_front_matter(facts, "transformers", pipeline)
    results = [] if newest is None else [_held_out_index(config, newest)]
    tasks = {task.name: task for task in config.evaluation.tasks}
    for row in facts.evaluations:
        if row.result.mean() is not None:
            results.append(task_index(row.result, tasks.get(row.result.task)))
    return front | (model_index(config.run.name, results) if results else {})


def shared_front_matter(facts: CardFacts, library: str, pipeline: str, tags: Sequence[str] = ()) -> dict[str, Any]:
    """Return language, library, licence, task and data sets, as the hub reads them."""
    config = facts.config
    paths = {path for source in config.all_sources if source.kind == "hub" for path in source.paths}
    datasets = sorted(path for path in paths if is_dataset_name(path))
    front: dict[str, Any] = {"language": config.run.language.partition("-")[0], "library_name": library}
    front |= {"license": facts.license.lower()} if facts.license else {}  # as the hub spells all of them
    front |= {"pipeline_tag": pipeline} if pipeline else {}
    front |= {"tags": [*tags, config.model.architecture, "manyhands", "collaborative-training"]}
    return front | ({"datasets": datasets} if datasets else {})


def model_index(name: str, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the measures of a model in the form in which the hub shows them."""
    return {"model-index": [{"name": name, "results": list(results)}]}


def _held_out_index(config: RunConfig, row: ValidationRow) -> dict[str, Any]:
    values = {
        "loss": row.mlm_loss,
        "perplexity": row.perplexity,
        "accuracy": row.accuracy,
        "sentence_order_accuracy": row.sop_accuracy,
    }
    if is_discriminator(config):
        values = {"accuracy": row.detection_accuracy, "f1": row.detection_f1}
    dataset = {"name": "held-out text of the run", "type": "held-out"}
    return {"task": {"type": PIPELINES[config.objective.name]}, "dataset": dataset, "metrics": _metrics(values)}


def task_index(result: TaskResult, task: Task | None) -> dict[str, Any]:
    """Return a task's measures for `model_index`; a dataset of the hub has the hub's name of it."""
    dataset = {"name": result.task, "type": result.task}
    if task is not None and task.test.path.startswith(HUB) and is_dataset_name(task.test.path.removeprefix(HUB)):
        test = task.test
        dataset["type"] = test.path.removeprefix(HUB)
        given = {"config": test.config_name, "split": test.split, "revision": test.revision}
        dataset |= {key: value for key, value in given.items() if value is not None}
    values = {name: result.mean(name) for name in result.metrics}
    return {"task": {"type": TASK_TYPES[result.kind]}, "dataset": dataset, "metrics": _metrics(values)}


def _metrics(values: Mapping[str, float | None]) -> list[dict[str, Any]]:
    return [
        {"type": kind, "value": round(value, 4), "name": kind.replace("_", " ")}
        for kind, value in values.items()
        if value is not None
    ]


def is_discriminator(config: RunConfig) -> bool:
    """Return whether the run trains a discriminator, which tells replaced tokens from original ones."""
    return config.objective.name == "rtd"


def is_dataset_name(path: str) -> bool:
    """Return whether a path has the form of a data set's name on the hub."""
    return _DATASET.fullmatch(path) is not None
