"""The rule by which a checkpoint is released chooses what it says, and nothing else."""

from __future__ import annotations

import pytest

from auth.errors import ConfigError
from coordinator.checkpoints.validations import ValidationRow
from coordinator.evaluation.evaluations import EvaluationRow
from coordinator.ledger.presence import CheckpointRow
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
    """Of those kept and published, and measured on the newest's samples; and the sentence says so."""
    rows = [measured(1, 1.0), measured(2, 3.0), measured(3, 2.0), measured(4, 0.5), measured(5, None)]
    rows[0] = measured(1, 1.0, "b")
    row, why = choose("held-out-loss", kept(1, 2, 3, 4, 5, withheld=4), rows, [], TASKS)
    assert row.step == 3
    assert why == (
        "Released is the checkpoint with the lowest loss on held-out text (2.0000, step 3), of 2 that are kept."
    )


def test_a_tasks_best_mean_wins() -> None:
    """The highest F1, the lowest perplexity; results of another recipe or of failed seeds only do not count."""
    other = {**NER, "recipe": {"epochs": 3}}
    results = {1: made_up(NER, 0.7, 0.8), 2: made_up(NER, 0.6), 3: made_up(other, 0.99), 4: made_up(NER, failed=2)}
    rows = [EvaluationRow(step, str(step) * 64, "operator", result, 0.0) for step, result in results.items()]
    row, why = choose("ner", kept(1, 2, 3, 4), [], rows, TASKS)
    assert row.step == 1
    assert "best mean f1 on the task ner (0.7500 ± 0.0707, step 1), of 2 that are kept" in why
    fills = [EvaluationRow(step, str(step) * 64, "operator", made_up(FILL, 9.0 - step), 0.0) for step in (1, 2)]
    assert choose("fill", kept(1, 2), [], fills, TASKS)[0].step == 2


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
        ("ner", kept(1), "No checkpoint that is kept has a score"),
        ("best", kept(1), "must be one of: held-out-loss, newest, a step's number, ner, fill"),
    ],
)
def test_a_rule_that_chooses_nothing_is_one_sentence(rule: str, rows: list[CheckpointRow], said: str) -> None:
    """With what can be done."""
    with pytest.raises(ConfigError) as caught:
        choose(rule, rows, [], [], TASKS)
    assert said in str(caught.value)
