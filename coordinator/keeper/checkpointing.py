"""The keeper's checkpoints: their schedule, checks before publication, and removal of old ones.

A checkpoint is published only if its weights are finite, its loss on the probe has not risen too
far, and the keeper itself computed the state. Others are kept for resuming; the reason is recorded.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel

from auth.errors import StorageError
from coordinator.checkpoints.manifest import Manifest, StoredCheckpoint, remove_leftovers, remove_steps, stored_steps
from coordinator.checkpoints.probe import probe_loss, probe_tensors
from coordinator.checkpoints.validations import best_steps
from coordinator.checkpoints.writing import config_files, take_snapshot, write_checkpoint
from coordinator.ledger.recorded_checkpoints import checkpoints, forget_checkpoints, record_checkpoint
from coordinator.run.directory import RunDirectory
from coordinator.statistics.return_point import steps_to_spare
from coordinator.store.engine import Database, in_one_sentence
from peer.config.phases import phase_at
from peer.config.run import Checkpoints, RunConfig
from peer.data.batching.batches import Batch
from peer.models.checkpoint_state import restore_model, restore_optimizer
from peer.reporting.event_log import NOWHERE, CheckpointWritten, EventLog
from peer.swarm.swarm import Swarm

logger = logging.getLogger(__name__)
JOINERS_EVERY_S = 60.0


@dataclass
class Checkpointing:
    """A writer that saves the swarm's state to disk and records checkpoints in the database."""

    directory: RunDirectory
    config: RunConfig
    model: PreTrainedModel
    swarm: Swarm
    database: Database
    probes: Mapping[int, Batch]  # sequence length -> probe
    newest: Manifest | None  # manifest of the newest checkpoint, written or resumed from
    clock: Callable[[], float]
    events: EventLog = NOWHERE
    every_steps: int | None = None  # interval set by an operator; None to use the run file's
    state_is_own: bool = True  # True if the keeper computed it, False if it was downloaded from a member
    scheduled: Manifest | None = None  # manifest of the newest scheduled checkpoint
    turned_away: int = 0  # number of rejected joiners at the last check
    joiners_at: float = -math.inf  # time of the last attempt to write for joiners
    passing: set[int] = field(default_factory=set)  # steps of checkpoints only for joiners; the next write deletes them

    def __post_init__(self) -> None:
        self.scheduled = self.newest

    def write_if_due(self, stopping: bool = False) -> None:
        """Write the state if a checkpoint is due or, when stopping, if it is not on disk yet.

        A failed write is logged and retried after the next step; training continues.
        """
        newest, age_s = 0, 0.0
        if self.scheduled is not None:
            newest, age_s = self.scheduled.step, self.clock() - self.scheduled.created_at
        settings, boundaries = self.config.checkpoints, {phase.from_step for phase in self.config.phases}
        if self.every_steps is not None:
            settings = settings.model_copy(update={"every_steps": self.every_steps})
        step = self.swarm.step
        if is_due(settings, step=step, newest=newest, age_s=age_s, boundaries=boundaries, stopping=stopping):
            self.passing.discard(self.swarm.step)
            self._write_and_record()
            if self.newest is not None and self.newest.step == self.swarm.step:
                self.scheduled = self.newest

    def provide_for_joiners(self) -> None:
        """Write a checkpoint for download over HTTP if the keeper was too busy to serve joiners.

        Such a checkpoint is written at most once a minute. It does not affect the schedule, and is
        deleted when the next checkpoint is written.
        """
        if (turned_away := self.swarm.turned_away) <= self.turned_away:
            return
        self.turned_away = turned_away
        written_at = -math.inf if self.newest is None else self.newest.created_at
        if (now := self.clock()) - max(written_at, self.joiners_at) < JOINERS_EVERY_S:
            return
        if self.swarm.step > (0 if self.newest is None else self.newest.step):
            self.joiners_at = now
            self.passing.add(self.swarm.step)
            self._write_and_record()

    def _write_and_record(self) -> None:
        began = time.monotonic()
        try:
            with in_one_sentence():
                stored, withheld = self._write()
                boundaries = {phase.from_step for phase in self.config.phases}
                self._remove_old({*boundaries, self.swarm.step, *steps_to_spare(self.database)})
                self._record(stored, withheld)
        except (StorageError, OSError) as error:
            withheld = str(error)
            logger.error("%s", error)
        seconds = time.monotonic() - began
        self.events.add(CheckpointWritten(step=self.swarm.step, seconds=seconds, cause=withheld))

    def reconcile(self, resumed: StoredCheckpoint | None) -> None:
        """Update the database to match the disk, because a keeper may be killed between the two writes."""
        remove_leftovers(self.directory.checkpoints_dir)
        steps = set(stored_steps(self.directory.checkpoints_dir))
        recorded = {row.step: row for row in checkpoints(self.database)}
        forget_checkpoints(self.database, sorted(recorded.keys() - steps))
        if resumed is None:
            return
        row = recorded.get(resumed.manifest.step)
        if row is None or row.manifest_sha256 != resumed.manifest_sha256:
            self._record(resumed, "it was never compared with the one before")

    def restore(self, stored: StoredCheckpoint, era: int) -> None:
        """Restore this checkpoint's state, and make all peers that have taken later steps return to it."""
        with self.swarm.training.lock:
            restore_model(self.model, stored.path)
            restore_optimizer(self.model, self.swarm.training.optimizer, stored.path)
            self.swarm.state.restore(stored.manifest.step, era)
        self.newest = self.scheduled = stored.manifest
        self.passing.discard(stored.manifest.step)
        self.state_is_own = True
        self.reconcile(stored)

    def _write(self) -> tuple[StoredCheckpoint, str]:
        """Write a checkpoint. Return it and the reason not to publish it ("" if it may be published)."""
        with self.swarm.training.lock:
            snapshot = take_snapshot(self.swarm.step, self.model, self.swarm.training.optimizer)
            length = phase_at(self.config, snapshot.step).sequence_length
            loss = probe_loss(self.model, self.probes[length], self.config)
        last = self.newest
        comparable = last is not None and phase_at(self.config, last.step).sequence_length == length
        withheld = why_withheld(
            snapshot.model,
            loss=loss,
            last_loss=last.probe_loss if last is not None and comparable else None,
            most_rise=self.config.checkpoints.max_loss_rise,
            is_own=self.state_is_own,
        )
        stored = write_checkpoint(
            self.directory.checkpoints_dir,
            snapshot,
            run=self.config.run.name,
            era=self.swarm.state.era,
            texts={**config_files(self.model), "run.yaml": self.config.to_yaml()},
            tokenizer_dir=self.directory.tokenizer_dir,
            probe=probe_tensors(self.probes[length], self.config),
            probe_loss=loss if math.isfinite(loss) else None,
            created_at=self.clock(),
        )
        self.newest = stored.manifest
        if withheld:
            logger.error("The checkpoint of step %d is kept, but not published: %s.", snapshot.step, withheld)
        return stored, withheld

    def _remove_old(self, spared: Collection[int]) -> None:
        steps = set(stored_steps(self.directory.checkpoints_dir))
        passed = (self.passing & steps) - set(spared)
        regular = steps - self.passing
        removed = sorted({*passed, *removable(self.config.checkpoints, regular, best_steps(self.database), spared)})
        remove_steps(self.directory.checkpoints_dir, removed)
        self.passing -= passed

    def _record(self, stored: StoredCheckpoint, withheld: str) -> None:
        """Record a checkpoint, and delete the rows of all checkpoints no longer on disk."""
        gone = {row.step for row in checkpoints(self.database)} - set(stored_steps(self.directory.checkpoints_dir))
        record_checkpoint(
            self.database,
            step=stored.manifest.step,
            size_bytes=stored.size_bytes,
            manifest_sha256=stored.manifest_sha256,
            now=self.clock(),
            removed=sorted(gone),
            withheld=withheld,
        )


def is_due(
    settings: Checkpoints, *, step: int, newest: int, age_s: float, boundaries: Collection[int], stopping: bool = False
) -> bool:
    """Return whether a checkpoint of `step` is due; `newest` is the step of the newest checkpoint.

    A checkpoint is due at each phase's start (`boundaries`), or at the keeper's next step after it.
    """
    every = settings.every_steps
    entered = any(newest < boundary <= step for boundary in boundaries)
    late = settings.every_minutes is not None and age_s >= 60 * settings.every_minutes
    return step > newest and (stopping or entered or late or step - newest >= every or step % every == 0)


def removable(
    settings: Checkpoints, steps: Collection[int], best: Sequence[int] = (), spared: Collection[int] = ()
) -> list[int]:
    """Return the steps whose checkpoints are to be removed.

    The newest, those at fixed intervals, the best by held-out loss (`best`), and `spared` are kept.
    """
    newest = sorted(steps)[-settings.keep :]
    here = [step for step in best if step in steps]
    kept = {*newest, *here[: settings.keep_best], *spared}
    kept |= {step for step in steps if settings.keep_every_steps and step % settings.keep_every_steps == 0}
    return sorted(set(steps) - kept)


def why_withheld(
    model: Mapping[str, torch.Tensor], *, loss: float | None, last_loss: float | None, most_rise: float, is_own: bool
) -> str:
    """Return the reason not to publish this state, or "" if it may be published.

    `loss` is the state's loss on the checkpoint's probe, `last_loss` the previous checkpoint's loss
    on the same probe (None: unknown). `is_own` is True if the keeper computed the state itself.
    """
    broken = next((name for name, tensor in model.items() if not torch.isfinite(tensor).all()), None)
    if broken is not None:
        return f"`{broken}` holds values that are not finite"
    if loss is None or not math.isfinite(loss):
        return "its loss is not finite"
    if last_loss is not None and loss > most_rise * last_loss:
        return f"its loss ({loss:.4f}) is more than {most_rise:g} times that of the checkpoint before ({last_loss:.4f})"
    if not is_own:
        return "its state was taken from a member, and nothing has been averaged with it since"
    return ""
