"""The keeper's checkpoints from one to the next: when one is due, what may be published, which of the older ones go."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from transformers import PreTrainedModel

from auth.errors import StorageError
from coordinator.checkpoints.manifest import Manifest, StoredCheckpoint, remove_leftovers, remove_steps, stored_steps
from coordinator.checkpoints.probe import probe_loss, probe_tensors
from coordinator.checkpoints.validations import best_steps
from coordinator.checkpoints.writing import StateSnapshot, take_snapshot, write_checkpoint
from coordinator.keeper.checkpoint_policy import is_due, removable, why_withheld
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.presence import checkpoints, forget_checkpoints, record_checkpoint
from coordinator.run.directory import RunDirectory
from coordinator.store.engine import Database, in_one_sentence
from peer.config.phases import phase_at
from peer.config.run import Checkpoints, RunConfig
from peer.data.batching.batches import Batch
from peer.models.build import checkpoint_config
from peer.models.checkpoint_state import restore_model, restore_optimizer
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
        try:
            with in_one_sentence():
                stored, withheld = self._write()
                self._remove_old({*(phase.from_step for phase in self.config.phases), self.swarm.step})
                self._record(stored, withheld)
        except (StorageError, OSError) as error:
            logger.error("%s", error)

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
            texts={
                "config.json": json.dumps(checkpoint_config(self.model), indent=2),
                "run.yaml": self.config.to_yaml(),
            },
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
        passed = (self.passing & steps) - {self.swarm.step}
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
