"""An immutable snapshot of the run, the source of all pages, JSON, events and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from coordinator.checkpoints.validations import ValidationRow, validations
from coordinator.context.services import RunServices
from coordinator.evaluation.evaluations import EvaluationRow, evaluations
from coordinator.ledger.keeper_status import KeeperView, read_swarm_status
from coordinator.ledger.reading import (
    LATE_STEPS,
    READ_WHOLE_S,
    SETTLED_S,
    Contribution,
    Giving,
    LedgerReader,
    StepRow,
    read_giving,
)
from coordinator.ledger.recorded_checkpoints import CheckpointRow, checkpoints
from coordinator.ledger.sessions import OnlineSession, online_sessions, recent_devices
from coordinator.ledger.speed import time_left_s
from coordinator.ledger.steering import Helm, read_helm
from coordinator.members.names import display_names, publicly
from coordinator.publishing.publications import PublicationRow, publications
from coordinator.statistics.alarms import MODEL_KINDS, AlarmRow, raised_alarms
from coordinator.statistics.return_point import ReturnPoint, return_point
from coordinator.statistics.swarm_health import Figures, RoundHealth, read_figures, read_health

STALE_AFTER_S = 10.0  # the keeper writes once a second, but may pause for a few seconds while it averages


@dataclass(frozen=True)
class Snapshot:
    """The state of the run at one point in time."""

    taken_at: float  # Unix time in seconds
    steps: tuple[StepRow, ...]
    contributions: tuple[Contribution, ...]  # members' contributions, with public names
    online: tuple[OnlineSession, ...]
    recent_devices: int  # number of devices connected now or recently
    swarm: KeeperView | None
    checkpoints: tuple[CheckpointRow, ...]  # available checkpoints, newest first
    validations: tuple[ValidationRow, ...]
    publications: tuple[PublicationRow, ...]  # published checkpoints, ordered by step
    evaluations: tuple[EvaluationRow, ...]  # evaluations, ordered by step and task
    era: int
    giving: Giving
    health: RoundHealth  # averaging statistics for the newest fully reported steps
    figures: Figures
    helm: Helm  # combined effect of the operators' steering commands
    steps_version: int = 0  # increases when a step changes
    number: int = 0  # sequence number of the snapshot in this process
    alarms: tuple[AlarmRow, ...] = ()  # active alarms, oldest first
    time_left_s: float | None = None  # estimated time until the run's last step
    refresh_failed: bool = False  # True if the store has not responded since the snapshot was taken

    @property
    def stale(self) -> bool:
        """True if the snapshot is known to be out of date."""
        return self.refresh_failed or self.swarm is None or self.taken_at - self.swarm.updated_at > STALE_AFTER_S

    def return_point(self, alarm: AlarmRow) -> ReturnPoint | None:
        """Return the checkpoint to return to, or None if the alarm is not about the model."""
        return return_point(alarm.step, self.checkpoints, self.validations) if alarm.kind in MODEL_KINDS else None

    @property
    def last_step(self) -> int:
        """The newest global step; 0 before the first."""
        return self.steps[-1].step if self.steps else 0

    @property
    def checkpoint(self) -> CheckpointRow | None:
        """The newest checkpoint; None before the first."""
        return self.checkpoints[0] if self.checkpoints else None

    @property
    def published(self) -> list[CheckpointRow]:
        """The checkpoints that are not withheld from publication, newest first."""
        return [row for row in self.checkpoints if not row.withheld]

    @property
    def settled_step(self) -> StepRow | None:
        """The newest step for which all reports are expected to have arrived."""
        return next((row for row in reversed(self.steps) if row.completed_at <= self.taken_at - SETTLED_S), None)

    @property
    def version(self) -> tuple[int, bool]:
        """The version of cached responses, which changes with each snapshot."""
        return self.number, self.refresh_failed

    @property
    def curve_version(self) -> tuple[int, int, float]:
        """The version of cached curves, which changes with the training or validation losses."""
        newest = max((row.evaluated_at for row in self.validations), default=0.0)
        return self.steps_version, len(self.validations), newest

    @cached_property
    def losses(self) -> tuple[float | None, float | None]:
        """The first and the newest known training loss; both None if no step has one."""
        known = (row.loss for row in self.steps if row.loss is not None)
        newest = (row.loss for row in reversed(self.steps) if row.loss is not None)
        return next(known, None), next(newest, None)

    @cached_property
    def samples(self) -> int:
        """The total number of averaged samples."""
        return sum(row.samples for row in self.steps)

    @property
    def elapsed_s(self) -> float:
        """The total training time of all devices."""
        return sum(row.elapsed_s for row in self.contributions)

    @property
    def averaged_bytes(self) -> int:
        """The total number of bytes that devices have averaged for other devices."""
        return sum(row.averaged_bytes for row in self.contributions)

    @property
    def data_wait_s(self) -> float:
        """The part of the training time spent waiting for data."""
        return sum(row.data_wait_s for row in self.contributions)


def take_snapshot(services: RunServices, before: Snapshot | None) -> Snapshot:
    """Read a snapshot from the store; reuse steps from `before` that cannot have changed."""
    now = services.clock()
    era = services.ledger.current_era()
    goes_on = before is not None and before.era == era and now - before.giving.read_at <= READ_WHOLE_S
    known = before if goes_on else None
    steps = _steps(services.ledger, known)
    newest = steps[-1].step if steps else 0
    with services.database() as session:
        giving = read_giving(session, None if known is None else known.giving, newest, now)
        health = read_health(session, [row for row in steps[-LATE_STEPS:] if row.completed_at <= now - SETTLED_S])
    given = services.ledger.contributions(giving.by_member())
    swarm, helm = read_swarm_status(services.database), read_helm(services.database)
    return Snapshot(
        taken_at=now,
        steps=steps,
        contributions=publicly(given, display_names(services.database)),
        online=tuple(online_sessions(services.database, now)),
        recent_devices=recent_devices(services.database, now),
        swarm=swarm,
        checkpoints=tuple(checkpoints(services.database)),
        validations=tuple(validations(services.database)),
        publications=tuple(publications(services.database)),
        evaluations=tuple(evaluations(services.database)),
        era=era,
        giving=giving,
        health=health,
        figures=read_figures(services.database, now - services.quarantine.window_s),
        number=0 if before is None else before.number + 1,
        steps_version=0 if before is None else before.steps_version + (steps != before.steps),
        alarms=tuple(raised_alarms(services.database)),
        helm=helm,
        time_left_s=time_left_s(services.config, helm, swarm),
    )


def _steps(ledger: LedgerReader, before: Snapshot | None) -> tuple[StepRow, ...]:
    """Read the newest steps, or all of them if `before` is None."""
    if before is None or len(before.steps) <= LATE_STEPS:
        return tuple(ledger.steps())
    settled = before.steps[:-LATE_STEPS]
    return (*settled, *ledger.steps(after=settled[-1].step))
