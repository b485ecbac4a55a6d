"""The validator over a real run directory with real checkpoints; the swarm is not needed for it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import torch
from transformers import AlbertForPreTraining

from coordinator.checkpoints import validator as module
from coordinator.checkpoints.validations import await_work, validations
from coordinator.checkpoints.validator import Validator, open_validator
from coordinator.context.open_run import OpenRun, open_run
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.recorded_checkpoints import record_checkpoint
from coordinator.service.parts import VALIDATOR, Part, PartProcess
from peer.models.held_out import open_validation_set
from tests.support.small_checkpoints import add_checkpoint, run_model
from tests.support.small_run import make_small_run
from tests.support.waiting import wait_until

LOWEST = 19  # priority
VALIDATION = {
    "share": 0.25,
    "samples": 64,
}  # drawn at random; of sixteen, none may be a pair of sentences in order or not
PHASES = ({"from_step": 8, "sequence_length": 64},)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[OpenRun]:
    """A run of two phases, a quarter of whose documents is held out."""
    with open_run(make_small_run(tmp_path, PHASES, VALIDATION).path) as opened:
        yield opened


@pytest.fixture
def validator(run: OpenRun) -> Validator:
    """Its validator."""
    return open_validator(run.directory.path)


def steps(run: OpenRun) -> list[int]:
    """Of which checkpoints there is a measure."""
    return [row.step for row in validations(run.database)]


def never() -> bool:
    """Nobody tells it to stop."""
    return False


@contextmanager
def running(run: OpenRun, part: Part) -> Iterator[PartProcess]:
    """A part's real process, ended with the block."""
    process = PartProcess(part, run.directory.path)
    process.start()
    try:
        yield process
    finally:
        process.end()


def test_measures_are_those_of_plain_transformers(run: OpenRun, validator: Validator) -> None:
    """What is recorded of a checkpoint is what `AlbertForPreTraining.from_pretrained` says of the same samples."""
    stored = add_checkpoint(run.directory, run.database, 5, seed=1)
    assert validator.evaluate_newest(never)
    (row,) = validations(run.database)
    found = open_validation_set(run.directory.config, run.directory.tokenizer_dir, run.directory.validation_dir)
    assert found is not None
    batch = found.samples
    labels = torch.full((batch.input_ids.numel(),), -100)
    labels[batch.label_positions] = batch.labels
    with torch.no_grad():
        output = AlbertForPreTraining.from_pretrained(stored.path).eval()(
            input_ids=batch.input_ids,
            token_type_ids=batch.token_type_ids,
            labels=labels.view_as(batch.input_ids),
            sentence_order_label=batch.sop_labels,
        )
    hits = output.prediction_logits.flatten(0, 1)[batch.label_positions].argmax(-1) == batch.labels
    assert row.loss == pytest.approx(float(output.loss), abs=1e-4)
    assert row.accuracy == pytest.approx(float(hits.float().mean()))
    assert batch.sop_labels is not None
    orders = (output.sop_logits.argmax(-1) == batch.sop_labels)[batch.sop_labels >= 0]
    assert row.sop_accuracy == pytest.approx(float(orders.float().mean()))
    assert (row.samples, row.predicted_tokens, row.sequence_length) == (batch.samples, len(batch.labels), 32)
    assert (row.era, row.manifest_sha256, row.set_sha256) == (0, stored.manifest_sha256, found.sha256)


def test_the_newest_comes_first_and_each_once(run: OpenRun, validator: Validator) -> None:
    """A validator that fell behind catches up from the newest on; one that starts anew finds nothing left to do."""
    for step in (1, 2, 3):
        add_checkpoint(run.directory, run.database, step, seed=step)
    found = []
    while validator.evaluate_newest(never):
        found.append(steps(run))
    assert found == [[3], [2, 3], [1, 2, 3]]
    assert len({row.loss for row in validations(run.database)}) == 3
    assert not open_validator(run.directory.path).evaluate_newest(never)


def test_each_phase_is_measured_at_its_own_length(run: OpenRun, validator: Validator) -> None:
    """From the boundary's checkpoint on, samples are of the new phase's length, and always the same ones."""
    for step in (7, 8, 9):
        add_checkpoint(run.directory, run.database, step)
        assert validator.evaluate_newest(never)
    rows = validations(run.database)
    assert [row.sequence_length for row in rows] == [32, 64, 64]
    assert rows[0].set_sha256 != rows[1].set_sha256 == rows[2].set_sha256
    assert rows[1].mlm_loss == rows[2].mlm_loss  # of the same weights


@pytest.mark.parametrize("damage", ["bits", "removed", "foreign"])
def test_a_checkpoint_that_cannot_be_read_is_passed_over(
    run: OpenRun, validator: Validator, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Damaged, pruned, or replaced by another: it is told once, and the older one is evaluated."""
    for step in (1, 2):
        stored = add_checkpoint(run.directory, run.database, step)
    if damage == "bits":
        weights = stored.path / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + b"\x55")
    elif damage == "removed":
        shutil.rmtree(stored.path)
    else:
        record_checkpoint(run.database, step=2, size_bytes=1, manifest_sha256="0" * 64, now=0.0)
    assert validator.evaluate_newest(never)
    assert not validator.evaluate_newest(never)
    assert steps(run) == [1]
    assert caplog.text.count("cannot evaluate the checkpoint of step 2") == 1


def test_what_was_undone_while_it_was_evaluated_is_not_recorded(run: OpenRun, validator: Validator) -> None:
    """The swarm may return to an earlier checkpoint meanwhile; the step's next checkpoint is evaluated as any other."""
    add_checkpoint(run.directory, run.database, 5, seed=1)

    def undone_meanwhile() -> bool:
        Ledger(run.database, run.directory.config).roll_back(3)
        return False

    assert not validator.evaluate_newest(undone_meanwhile)
    assert steps(run) == []
    add_checkpoint(run.directory, run.database, 5, seed=2)
    assert validator.evaluate_newest(never)
    assert [(row.step, row.era) for row in validations(run.database)] == [(5, 1)]


def test_broken_weights_are_recorded_as_no_number(run: OpenRun, validator: Validator) -> None:
    """A checkpoint of NaNs has no loss, and does not come again and again."""
    model = run_model(run.directory, 0)
    with torch.no_grad():
        model.get_input_embeddings().weight.fill_(torch.nan)
    add_checkpoint(run.directory, run.database, 5, model=model)
    assert validator.evaluate_newest(never)
    assert not validator.evaluate_newest(never)
    (row,) = validations(run.database)
    assert (row.mlm_loss, row.sop_loss, row.loss, row.perplexity) == (None, None, None, None)


def test_nothing_held_out_is_told_and_not_fatal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where the share finds no document there is nothing to do, once said."""
    with open_run(make_small_run(tmp_path, validation={"share": 1e-9}).path) as run:
        add_checkpoint(run.directory, run.database, 1)
        validator = open_validator(run.directory.path)
        for _ in range(2):
            assert not validator.evaluate_newest(never)
        assert not validator.has_evaluated_all()
    assert caplog.text.count("raise `data.validation.share`") == 1


def test_the_last_checkpoint_is_evaluated_on_leaving(run: OpenRun, validator: Validator) -> None:
    """Told to stop, it evaluates what the keeper has just left behind, if there is time; else it leaves it."""
    add_checkpoint(run.directory, run.database, 1, seed=1)
    stop = threading.Event()
    stop.set()
    validator.run(stop)
    assert steps(run) == [1]


def test_a_last_checkpoint_that_takes_too_long_waits_for_the_next_start(
    run: OpenRun, validator: Validator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation that is cut short leaves no trace."""
    monkeypatch.setattr(module, "LAST_S", -1.0)
    add_checkpoint(run.directory, run.database, 1, seed=1)
    stop = threading.Event()
    stop.set()
    validator.run(stop)
    assert steps(run) == []
    assert validator.evaluate_newest(never)


def test_it_ends_when_no_checkpoint_has_come_for_a_while(
    run: OpenRun, validator: Validator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is evaluated before; the process that follows waits without torch until there is a checkpoint."""
    monkeypatch.setattr(module, "REST_S", -1.0)
    stop = threading.Event()
    assert await_work(run.directory, stop)  # the samples are to be drawn
    for step in (1, 2):
        add_checkpoint(run.directory, run.database, step, seed=step)
    validator.run(stop)
    assert steps(run) == [1, 2]
    stop.set()
    assert not await_work(run.directory, stop)
    add_checkpoint(run.directory, run.database, 3, seed=3)
    assert await_work(run.directory, stop)


def test_it_stays_where_the_next_process_would_try_again_in_vain(run: OpenRun, validator: Validator) -> None:
    """A checkpoint that cannot be read keeps waiting."""
    shutil.rmtree(add_checkpoint(run.directory, run.database, 1).path)
    assert not validator.evaluate_newest(never)
    assert not validator.has_evaluated_all()


def test_a_process_with_nothing_to_evaluate_holds_no_torch(run: OpenRun, validator: Validator) -> None:
    """Its libraries are loaded for the first checkpoint, and given back with the process."""
    assert validator.samples_at(0) is not None
    with running(run, VALIDATOR) as process:
        wait_until("the validator waits", lambda: process.read() or process.ready)
        assert "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text()
        add_checkpoint(run.directory, run.database, 1, seed=1)
        wait_until("the checkpoint is validated", lambda: steps(run) == [1])
        assert "libtorch" in Path(f"/proc/{process.pid}/maps").read_text()
        process.ask_to_stop()
        wait_until("the validator has ended", process.has_ended)
        assert process.end() == 0


def test_it_stays_out_of_the_others_way(run: OpenRun) -> None:
    """The process has a lower priority than whoever trains."""
    lower = min(psutil.Process().nice() + 1, LOWEST)  # the tests themselves may run at the lowest
    with running(run, VALIDATOR):
        wait_until(
            "the validator has lowered its priority",
            lambda: any(child.nice() >= lower for child in psutil.Process().children()),
        )
