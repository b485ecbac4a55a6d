"""Facts for model cards: of a run that nobody has contributed to, and of one that has everything."""

from __future__ import annotations

from dataclasses import replace

from coordinator.evaluation.evaluations import EvaluationRow
from coordinator.evaluation.tasks.results import ClassScores, SeedResult, result_of
from coordinator.publishing.card_facts import CardFacts
from peer.config.evaluation import Task
from peer.config.run import RunConfig
from tests.support.evaluated_runs import NER
from tests.support.served_page import validation_row


def facts(config: RunConfig, terms: str = "") -> CardFacts:
    """Of a run that nobody has contributed to."""
    return CardFacts(config, 5, "0" * 64, terms, None, (), {}, (), (), 0)


def full_facts() -> CardFacts:
    """Facts of a run with held-out text, tasks, classes of entities and volunteers, as released to the hub."""
    task = {**NER, "test": {"path": "hub:us/names", "config_name": "bn", "split": "test"}}
    sources = [{"kind": "builtin"}, {"kind": "text", "path": "blogs.txt", "license": "CC-BY-4.0"}]
    config = RunConfig.from_mapping(
        {
            "run": {"name": "ours", "language": "bn"},
            "data": {"sources": sources, "sequence_length": 128},
            "evaluation": {"tasks": [task]},
        }
    )
    person = ClassScores(precision=0.5, recall=0.25, f1=1 / 3, entities=8)
    seed = SeedResult(seed=0, scores={"f1": 0.75, "accuracy": 0.9}, dev_score=0.8, classes={"PER": person})
    result = result_of(Task.model_validate(task), [seed], 10, 1.0)
    return replace(
        facts(config, "Apache-2.0"),
        validations=[validation_row(5, 2.0)],
        evaluations=[EvaluationRow(5, "0" * 64, "operator", result, 0.0)],
        model_class="AlbertForPreTraining",
        probe_loss=2.5,
        device_hours=10.0,
        contributors=[("alice", 64)],
        year=2026,
        parameters=1_234_567,
        repository="us/ours",
    )
