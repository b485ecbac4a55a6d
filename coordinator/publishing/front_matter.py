"""The YAML front matter of a model card: the metadata that the Hugging Face Hub indexes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from huggingface_hub import CardData, EvalResult
from huggingface_hub.repocard_data import eval_results_to_model_index

from coordinator.evaluation.tasks.results import TaskResult
from coordinator.publishing.card_facts import CardFacts
from peer.config.evaluation import HUB, Task

# Objective -> pipeline tag on the Hub. For discriminators, the Hub has no tag.
DETECTION = "replaced-token-detection"
PIPELINES = {"mlm": "fill-mask", "mlm+sop": "fill-mask", "clm": "text-generation", "rtd": DETECTION}
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


def front_matter(
    facts: CardFacts,
    library: str,
    pipeline: str,
    tags: Sequence[str] = (),
    base_model: str = "",
    name: str = "",
    results: Sequence[EvalResult] = (),
) -> str:
    """Return the front matter as YAML; `name` is the model's name in the reported results."""
    config = facts.config
    paths = {path for source in config.all_sources if source.kind == "hub" for path in source.paths}
    card = CardData(
        language=config.run.language.partition("-")[0],
        library_name=library,
        license=facts.license.lower() or None,  # the Hub spells licences in lower case
        pipeline_tag=None if pipeline == DETECTION else pipeline,
        tags=[*tags, config.model.architecture, "manyhands", "collaborative-training"],
        datasets=sorted(filter(is_dataset_name, paths)) or None,
        base_model=base_model or None,
    )
    if results:
        card["model-index"] = _model_index(name, results)
    return card.to_yaml()


def _model_index(name: str, results: Sequence[EvalResult]) -> list[dict[str, Any]]:
    """Convert results to the Hub's format; keep tasks on the same dataset in separate entries."""
    tasks = groupby(results, lambda result: result.dataset_name)
    indices = [eval_results_to_model_index(name, list(each))[0] for _, each in tasks]
    return [{"name": name, "results": [found for index in indices for found in index["results"]]}]


def model_results(facts: CardFacts) -> list[EvalResult]:
    """Return the newest results on held-out text, and the mean scores of each task."""
    found: list[EvalResult] = []
    pipeline = PIPELINES[facts.config.objective.name]
    for row in facts.validations[-1:]:
        values = {
            "loss": row.mlm_loss,
            "perplexity": row.perplexity,
            "accuracy": row.accuracy,
            "sentence_order_accuracy": row.sop_accuracy,
        }
        if pipeline == DETECTION:
            values = {"accuracy": row.detection_accuracy, "f1": row.detection_f1}
        found += _results(values, task_type=pipeline, dataset_name="held-out text of the run", dataset_type="held-out")
    tasks = {task.name: task for task in facts.config.evaluation.tasks}
    for evaluation in facts.evaluations:
        if evaluation.result.mean() is not None:
            found += task_results(evaluation.result, tasks.get(evaluation.result.task))
    return found


def task_results(result: TaskResult, task: Task | None) -> list[EvalResult]:
    """Return a task's mean scores, labelled with its Hub dataset or, if none, with its name."""
    dataset: dict[str, str | None] = {"dataset_type": result.task}
    if task is not None and task.test.path.startswith(HUB) and is_dataset_name(task.test.path.removeprefix(HUB)):
        test = task.test
        dataset = {
            "dataset_type": test.path.removeprefix(HUB),
            "dataset_config": test.config_name,
            "dataset_split": test.split,
            "dataset_revision": test.revision,
        }
    values = {name: result.mean(name) for name in result.metrics}
    return _results(values, task_type=TASK_TYPES[result.kind], dataset_name=result.task, **dataset)


def _results(values: Mapping[str, float | None], **about: str | None) -> list[EvalResult]:
    return [
        EvalResult(metric_type=kind, metric_value=round(value, 4), metric_name=kind.replace("_", " "), **about)  # type: ignore[arg-type]
        for kind, value in values.items()
        if value is not None
    ]


def is_dataset_name(path: str) -> bool:
    """Return whether `path` is a valid dataset name on the Hub."""
    return _DATASET.fullmatch(path) is not None
