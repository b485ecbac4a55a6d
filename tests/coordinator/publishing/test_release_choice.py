"""The rule by which a checkpoint is released chooses what it says, and nothing else."""

from __future__ import annotations

import pytest

from auth.errors import ConfigError
from coordinator.checkpoints.validations import ValidationRow
from coordinator.evaluation.evaluations import EvaluationRow
from coordinator.evaluation.tasks.results import TaskResult
from coordinator.ledger.recorded_checkpoints import CheckpointRow
from coordinator.publishing.release import choose
from peer.config.evaluation import Task
from tests.support.evaluated_runs import FILL, NER, made_up
from tests.support.served_page import validation_row

TASKS = [Task.model_validate(NER), Task.model_validate(FILL)]


def kept(*steps: int, withheld: int = 0) -> list[CheckpointRow]:
    """Checkpoints of these steps."""
    return [CheckpointRow(step, 1, str(step) * 64, 0.0, "bad" if step == withheld else "") for step in steps]


def measured(step: int, loss: float | None, set_sha256: str = "a") -> ValidationRow:
    """What held-out text says of one."""
    return validation_row(step, loss, sop_loss=None, manifest_sha256=str(step) * 64, set_sha256=set_sha256)


def test_the_lowest_loss_on_held_out_text_wins() -> None:
    """Of those measured on the newest's samples; the sentence counts these, and all that may be published."""
    rows = [measured(1, 1.0), measured(2, 3.0), measured(3, 2.0), measured(4, 0.5), measured(5, None)]
    rows[0] = measured(1, 1.0, "b")
    row, why = choose("held-out-loss", kept(1, 2, 3, 4, 5, withheld=4), rows, [], TASKS)
    assert row.step == 3
    assert why == (
        "The released checkpoint, of step 3, has the lowest loss on held-out text (2.0000), of 2 measured, of 4 "
        "that are kept and may be published."
    )


def rows_of(results: dict[int, TaskResult]) -> list[EvaluationRow]:
    """The results of the checkpoints of these steps."""
    return [EvaluationRow(step, str(step) * 64, "operator", result, 0.0) for step, result in results.items()]


def test_a_tasks_best_mean_on_the_development_set_wins() -> None:
    """The test set decides nothing, and the sentence has its score; it counts the evaluated ones and all."""
    other = {**NER, "recipe": {"epochs": 3}}
    results = {
        1: made_up(NER, 0.7, 0.8, dev=0.9),
        2: made_up(NER, 0.99, dev=0.6),
        3: made_up(other, 0.99, dev=0.99),
        4: made_up(NER, failed=2),
        5: made_up(NER, 0.99),
    }
    row, why = choose("ner", kept(1, 2, 3, 4, 5), [], rows_of(results), TASKS)
    assert row.step == 1
    assert why == (
        "The released checkpoint, of step 1, has the best mean f1 on the development set of the task ner (0.9000), of "
        "2 evaluated, of 5 that are kept and may be published. On the test set, which did not decide, it has "
        "0.7500 ± 0.0707."
    )
    fills = rows_of({step: made_up(FILL, 1.0, dev=9.0 - step) for step in (1, 2)})
    assert choose("fill", kept(1, 2), [], fills, TASKS)[0].step == 2


def test_a_task_without_a_development_set_chooses_nothing() -> None:
    """Its only score is that on the test set."""
    with pytest.raises(ConfigError, match="to choose by: give the task `dev` examples"):
        choose("fill", kept(1), [], rows_of({1: made_up(FILL, 1.0)}), TASKS)


def test_the_newest_or_a_step_by_name() -> None:
    """Withheld ones are not released either way."""
    assert choose("newest", kept(1, 2, 3, withheld=3), [], [], TASKS)[0].step == 2
    assert choose("1", kept(1, 2), [], [], TASKS)[0].step == 1


@pytest.mark.parametrize(
    ("rule", "rows", "said"),
    [
        ("newest", [], "no checkpoint that may be published"),
        ("7", kept(1), "There is no checkpoint of step 7"),
        ("held-out-loss", kept(1), "No checkpoint has a loss on held-out text"),
        ("ner", kept(1), "to choose by: run `manyhands coordinator evaluator DIR` first (`--evaluate` tries only"),
        ("best", kept(1), "must be one of: held-out-loss, newest, a step's number, ner, fill"),
    ],
)
def test_a_rule_that_chooses_nothing_is_one_sentence(rule: str, rows: list[CheckpointRow], said: str) -> None:
    """With what can be done."""
    with pytest.raises(ConfigError) as caught:
        choose(rule, rows, [], [], TASKS)
    assert said in str(caught.value)
