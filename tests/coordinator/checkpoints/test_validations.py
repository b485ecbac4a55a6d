"""The table of what held-out text says of each checkpoint."""

from __future__ import annotations

import math

import pytest

from coordinator.checkpoints.validations import pending_checkpoints, record_validation, validations
from coordinator.ledger.recorded_checkpoints import record_checkpoint
from coordinator.store.engine import Database
from coordinator.store.eras import begin_era
from tests.support.served_page import validation_row

FIRST, SECOND = "1" * 64, "2" * 64


def checkpoint(database: Database, step: int, manifest_sha256: str = FIRST) -> None:
    """The keeper records a checkpoint."""
    record_checkpoint(database, step=step, size_bytes=1, manifest_sha256=manifest_sha256, now=0.0)


def test_what_is_recorded_is_read_in_order(database: Database) -> None:
    """Every number comes back as it was, the steps in their order whoever was evaluated first."""
    rows = [validation_row(step, mlm_loss=9.0 - step) for step in (3, 1, 2)]
    assert all(record_validation(database, row) for row in rows)
    assert validations(database) == sorted(rows, key=lambda row: row.step)


def test_another_checkpoint_of_the_same_step_is_evaluated_too(database: Database) -> None:
    """After a return the step is reached anew with other weights, and their measure takes the old one's place."""
    checkpoint(database, 10, FIRST)
    record_validation(database, validation_row(10, manifest_sha256=FIRST))
    checkpoint(database, 10, SECOND)
    assert [row.manifest_sha256 for row in pending_checkpoints(database)] == [SECOND]
    record_validation(database, validation_row(10, manifest_sha256=SECOND, accuracy=0.5))
    assert pending_checkpoints(database) == []
    assert [row.accuracy for row in validations(database)] == [0.5]


def test_a_checkpoint_that_was_undone_meanwhile_is_not_recorded(database: Database) -> None:
    """Its era ended at an earlier step; one of that era up to this step still counts, and so does the new era's."""
    with database.begin() as session:
        begin_era(session, after_step=5, now=0.0)
    assert not record_validation(database, validation_row(10, era=0))
    assert record_validation(database, validation_row(5, era=0))
    assert record_validation(database, validation_row(10, era=1))
    assert [row.step for row in validations(database)] == [5, 10]


def test_total_and_perplexity_follow_from_the_parts() -> None:
    """The total is the training's, perplexity is of the tokens alone."""
    row = validation_row(1, mlm_loss=2.0, sop_loss=0.25)
    assert row.loss == 2.25
    assert row.perplexity == pytest.approx(math.exp(2.0))
    assert validation_row(1, mlm_loss=2.0, sop_loss=None).loss == 2.0
    assert row.facts.items() >= {"step": 1, "loss": 2.25, "mlm_loss": 2.0, "perplexity": row.perplexity}.items()


@pytest.mark.parametrize("mlm_loss", [None, 5000.0])
def test_what_is_no_number_is_none(mlm_loss: float | None) -> None:
    """A broken model's perplexity is unknown, not infinite, which JSON could not say."""
    assert validation_row(1, mlm_loss=mlm_loss).perplexity is None
