"""The validator, which evaluates each new checkpoint on held-out samples.

Evaluating a large model takes minutes on a CPU, and the swarm must not wait. The validator is
therefore a separate low-priority process with one thread, which reads checkpoints from the database
and the disk. The run continues if the validator fails. Without a new checkpoint for `REST_S`, the
process exits to free the memory of torch and the model. The supervisor then restarts the validator,
which waits in `coordinator.checkpoints.validations.await_work` before importing torch.
`run_validator` is the entry point.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import PreTrainedModel

from auth.errors import StorageError
from coordinator.checkpoints.validations import POLL_S, ValidationRow, pending_checkpoints, record_validation
from coordinator.checkpoints.writing import restore_verified
from coordinator.ledger.recorded_checkpoints import CheckpointRow
from coordinator.run.directory import RunDirectory
from coordinator.store.checkpoint_models import UnigramBaseline
from coordinator.store.engine import Database, open_engine
from peer.config.run import RunConfig
from peer.data.tokenization.tokenizers import load_special_ids, load_tokenizer
from peer.models.build import build_model
from peer.models.held_out import ValidationSet, evaluate, open_validation_set, unigram_loss

logger = logging.getLogger(__name__)
REST_S = 300.0  # the process exits after this many seconds without a new checkpoint
LAST_S = 5.0  # seconds that may be spent on pending checkpoints when stopping


@dataclass
class Validator:
    """A loop that evaluates each new checkpoint on held-out samples."""

    directory: RunDirectory
    config: RunConfig
    model: PreTrainedModel
    database: Database
    clock: Callable[[], float] = time.time
    sets: dict[int, ValidationSet | None] = field(default_factory=dict)  # sequence length -> samples
    passed_over: set[str] = field(default_factory=set)  # manifest digests of checkpoints whose evaluation failed

    def run(self, stop: threading.Event) -> None:
        """Evaluate checkpoints, newest first, until `stop` is set or none appears for `REST_S`.

        After `stop`, spend up to `LAST_S` on pending checkpoints.
        """
        pending = pending_checkpoints(self.database)
        self.samples_at(pending[0].step if pending else 0)  # draw the samples, even without a checkpoint
        rest_at = self.clock() + REST_S
        while not stop.is_set():
            if self.evaluate_newest(stop.is_set):
                rest_at = self.clock() + REST_S
            elif self.clock() > rest_at and self.has_evaluated_all():
                return
            else:
                stop.wait(POLL_S)
        deadline = self.clock() + LAST_S
        while self.evaluate_newest(lambda: self.clock() > deadline):
            pass

    def evaluate_newest(self, should_stop: Callable[[], bool]) -> bool:
        """Evaluate the newest pending checkpoint; return False if there is none or if stopped."""
        for checkpoint in pending_checkpoints(self.database):
            samples = self.samples_at(checkpoint.step)
            if samples is None or checkpoint.manifest_sha256 in self.passed_over:
                continue
            try:
                return self._evaluate(checkpoint, samples, should_stop)
            except StorageError as error:
                self.passed_over.add(checkpoint.manifest_sha256)
                logger.warning("cannot evaluate the checkpoint of step %d: %s", checkpoint.step, error)
        return False

    def has_evaluated_all(self) -> bool:
        """Return whether no checkpoint is pending; always False if no text is held out."""
        return None not in self.sets.values() and not pending_checkpoints(self.database)

    def samples_at(self, step: int) -> ValidationSet | None:
        """Return the samples for the phase after this step, or None if no text is held out.

        Mask probability and sources are the same in all phases, to keep losses comparable.
        """
        now = self.config.at_step(step)
        data = now.data.model_copy(update={"sources": self.config.data.sources})
        now = now.model_copy(update={"objective": self.config.objective, "data": data})
        length = now.data.sequence_length
        if length not in self.sets:
            found = open_validation_set(now, self.directory.tokenizer_dir, self.directory.validation_dir)
            self.sets[length] = found
            if found is not None:
                self._keep_baseline(found)
            else:
                share = now.data.validation.share
                logger.warning("no text is held out: nothing to evaluate on; raise `data.validation.share` (%g)", share)
        return self.sets[length]

    def _keep_baseline(self, samples: ValidationSet) -> None:
        """Store a unigram model's loss on the samples, as a baseline for the keeper."""
        tokenizer_dir = self.directory.tokenizer_dir
        vocabulary, special = load_tokenizer(tokenizer_dir).get_vocab_size(), load_special_ids(tokenizer_dir)
        loss = unigram_loss(samples.samples, vocabulary, special)
        with self.database.begin() as session:
            session.merge(UnigramBaseline(set_sha256=samples.sha256, loss=loss))

    def _evaluate(self, checkpoint: CheckpointRow, samples: ValidationSet, should_stop: Callable[[], bool]) -> bool:
        """Evaluate a checkpoint, and store the result, with None for losses that are not finite.

        Return False if `should_stop` ends the evaluation early.
        """
        began_at = self.clock()
        folder = self.directory.checkpoint_dir(checkpoint.step)
        manifest = restore_verified(self.model, folder, checkpoint.manifest_sha256)
        result = evaluate(self.model, samples.samples, should_stop)
        if result is None:
            return False
        weight, detection_loss = self.config.objective.discriminator_weight, result.detection_loss
        detection_loss = None if detection_loss is None else weight * detection_loss
        finite = math.isfinite(result.mlm_loss + (result.sop_loss or 0.0) + (detection_loss or 0.0))
        now = self.clock()
        row = ValidationRow(
            step=checkpoint.step,
            era=manifest.era,
            manifest_sha256=checkpoint.manifest_sha256,
            set_sha256=samples.sha256,
            sequence_length=samples.samples.input_ids.shape[1],
            samples=result.samples,
            predicted_tokens=result.predicted_tokens,
            mlm_loss=result.mlm_loss if finite else None,
            sop_loss=result.sop_loss if finite else None,
            accuracy=result.accuracy,
            sop_accuracy=result.sop_accuracy,
            detection_loss=detection_loss if finite else None,
            detection_accuracy=result.detection_accuracy,
            detection_f1=result.detection_f1,
            elapsed_s=now - began_at,
            evaluated_at=now,
        )
        if not record_validation(self.database, row):
            raise StorageError(f"step {row.step} was undone by a return to an earlier checkpoint.")
        loss = "that is no number" if row.loss is None else f"{row.loss:.4f}"
        said = "step %d: loss on held-out text %s, accuracy %.4f"
        logger.info(said, row.step, loss, row.accuracy, extra={"step": row.step})
        return True


def open_validator(run_dir: Path, clock: Callable[[], float] = time.time) -> Validator:
    """Open a run's validator with an untrained model; raises `ConfigError` or `StorageError`."""
    directory = RunDirectory.open(run_dir)
    config, tokenizer_dir = directory.config, directory.tokenizer_dir
    vocabulary = load_tokenizer(tokenizer_dir).get_vocab_size()
    return Validator(
        directory=directory,
        config=config,
        model=build_model(config, vocabulary, load_special_ids(tokenizer_dir)),
        database=Database(open_engine(directory.database_url)),
        clock=clock,
    )


def run_validator(run_dir: Path, stop: threading.Event) -> None:
    """Run the validator until `stop` is set or no new checkpoint appears for `REST_S`."""
    torch.set_num_threads(1)
    open_validator(run_dir).run(stop)
