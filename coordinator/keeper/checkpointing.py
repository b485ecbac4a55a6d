"""The keeper's checkpoints from one to the next: when one is due, what may be published, which of the older ones go.

A checkpoint is published only if its weights are finite, its probe's loss has not risen too far since the last one, and
the keeper computed its state itself. One that fails is kept for resuming, and the operator is told the reason.
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
from coordinator.checkpoints.writing import StateSnapshot, config_files, take_snapshot, write_checkpoint
from coordinator.ledger.ledger import Ledger
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
    """Writes the swarm's state to disk, and tells the database of it."""

    directory: RunDirectory
    config: RunConfig
    model: PreTrainedModel
    swarm: Swarm
    ledger: Ledger
    database: Database
    probes: Mapping[int, Batch]  # by sequence length
    newest: Manifest | None  # of the checkpoint that was written or resumed from
    clock: Callable[[], float]
    events: EventLog = NOWHERE
    every_steps: int | None = None  # as an operator wants it; None: as the run file says
    state_is_own: bool = True  # the keeper has computed it; false: it was taken from a member
    scheduled: Manifest | None = None  # the newest of those that the schedule asked for
    passing: set[int] = field(default_factory=set)  # steps written for those who joined just then; gone with the next

    def __post_init__(self) -> None:
        self.scheduled = self.newest

    def write_if_due(self, stopping: bool = False) -> None:
        """Write the state between two steps if that is due; on leaving, unless it is written already.

        What fails is said and tried again at the next step: training must go on.
        """
        newest, age_s = 0, 0.0
        if self.scheduled is not None:
            newest, age_s = self.scheduled.step, self.clock() - self.scheduled.created_at
        boundaries = {phase.from_step for phase in self.config.phases}
        due = is_due(
            self._settings,
            step=self.swarm.step,
            newest=newest,
            age_s=age_s,
            boundaries=boundaries,
            stopping=stopping,
        )
        if due:
            self.passing.discard(self.swarm.step)
            self._write_and_record()
            if self.newest is not None and self.newest.step == self.swarm.step:
                self.scheduled = self.newest

    def write_for_joiners(self) -> None:
        """Write the state for joiners that found the keeper giving it to others, unless one was written just now.

        It is no checkpoint of the schedule: the next one takes its place.
        """
        if self.newest is not None and self.clock() - self.newest.created_at < JOINERS_EVERY_S:
            return
        if self.swarm.step > (0 if self.newest is None else self.newest.step):
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
        """Make the database say what is on disk: a keeper may be killed between writing the one and the other."""
        remove_leftovers(self.directory.checkpoints_dir)
        steps = set(stored_steps(self.directory.checkpoints_dir))
        recorded = {row.step: row for row in checkpoints(self.database)}
        forget_checkpoints(self.database, sorted(recorded.keys() - steps))
        if resumed is None:
            return
        row = recorded.get(resumed.manifest.step)
        if row is None or row.manifest_sha256 != resumed.manifest_sha256:
            self._record(resumed, "it was never compared with the one before")

    @property
    def _settings(self) -> Checkpoints:
        """The run file's, but for how often an operator wants them now."""
        every = self.every_steps
        settings = self.config.checkpoints
        return settings if every is None else settings.model_copy(update={"every_steps": every})

    def restore(self, stored: StoredCheckpoint, era: int) -> None:
        """Take this checkpoint's state up, and have everybody return to it who is further."""
        with self.swarm.state.lock:
            restore_model(self.model, stored.path)
            restore_optimizer(self.model, self.swarm.state.optimizer, stored.path)
            self.swarm.state.restore(stored.manifest.step, era)
        self.newest = self.scheduled = stored.manifest
        self.passing.discard(stored.manifest.step)
        self.state_is_own = True
        self.reconcile(stored)

    def _write(self) -> tuple[StoredCheckpoint, str]:
        """The checkpoint on disk, and why it is not to be published."""
        with self.swarm.state.lock:
            snapshot = take_snapshot(self.swarm.step, self.model, self.swarm.state.optimizer)
            length = phase_at(self.config, snapshot.step).sequence_length
            loss = probe_loss(self.model, self.probes[length], self.config)
        withheld = self._why_withheld(snapshot, length, loss)
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

    def _why_withheld(self, snapshot: StateSnapshot, length: int, loss: float) -> str:
        last = self.newest
        comparable = last is not None and phase_at(self.config, last.step).sequence_length == length
        return why_withheld(
            snapshot.model,
            loss=loss,
            last_loss=last.probe_loss if last is not None and comparable else None,
            most_rise=self.config.checkpoints.max_loss_rise,
            is_own=self.state_is_own,
        )

    def _remove_old(self, spared: Collection[int]) -> None:
        steps = set(stored_steps(self.directory.checkpoints_dir))
        passed = (self.passing & steps) - set(spared)
        regular = steps - self.passing
        removed = sorted({*passed, *removable(self.config.checkpoints, regular, best_steps(self.database), spared)})
        remove_steps(self.directory.checkpoints_dir, removed)
        self.passing -= passed

    def _record(self, stored: StoredCheckpoint, withheld: str) -> None:
        """Tell the database of a checkpoint, and which are gone, also of those that it did not hear of in time."""
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
    """Return whether to write the state after `step`; the newest checkpoint is of step `newest` and `age_s` old.

    A phase's first state (`boundaries`) always is, or, if the keeper was away then, the first that it has of the phase.
    """
    every = settings.every_steps
    entered = any(newest < boundary <= step for boundary in boundaries)
    late = settings.every_minutes is not None and age_s >= 60 * settings.every_minutes
    return step > newest and (stopping or entered or late or step - newest >= every or step % every == 0)


def removable(
    settings: Checkpoints, steps: Collection[int], best: Sequence[int] = (), spared: Collection[int] = ()
) -> list[int]:
    """The steps whose checkpoints are to go, of those that there are.

    The newest stay, those of every so many steps, and the best (`best`: steps, the best first) by held-out loss.
    """
    newest = sorted(steps)[-settings.keep :]
    here = [step for step in best if step in steps]
    kept = {*newest, *here[: settings.keep_best], *spared}
    kept |= {step for step in steps if settings.keep_every_steps and step % settings.keep_every_steps == 0}
    return sorted(set(steps) - kept)


def why_withheld(
    model: Mapping[str, torch.Tensor],
    *,
    loss: float | None,
    last_loss: float | None,
    most_rise: float,
    is_own: bool,
) -> str:
    """The reason to publish nothing of this state; empty if there is none.

    `loss` is that of the checkpoint's own probe, `last_loss` the same probe's with the checkpoint before, None where
    there is none to compare with. `is_own`: the keeper has computed the state itself, from the swarm's averages.
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
