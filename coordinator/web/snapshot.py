"""One immutable picture of the run; page, JSON, events and metrics all come from it, so they never disagree."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.display_names import display_names, publicly
from coordinator.figures import Figures, read_figures
from coordinator.ledger import SETTLED_S, Contribution, Ledger, StepRow
from coordinator.presence import (
    CheckpointRow,
    OnlineSession,
    SwarmView,
    checkpoints,
    online_sessions,
    read_swarm_status,
)
from coordinator.publications import PublicationRow, publications
from coordinator.run_services import RunServices
from coordinator.validations import ValidationRow, validations

STALE_AFTER_S = 10.0  # the keeper writes once a second; while it averages it may be silent for a few


@dataclass(frozen=True)
class Snapshot:
    """The run at a moment."""

    taken_at: float  # Unix seconds
    steps: tuple[StepRow, ...]
    contributions: tuple[Contribution, ...]  # under the names that the public may know
    online: tuple[OnlineSession, ...]
    swarm: SwarmView | None
    checkpoints: tuple[CheckpointRow, ...]  # the newest first
    validations: tuple[ValidationRow, ...]
    publications: tuple[PublicationRow, ...]  # in the order of steps
    era: int
    figures: Figures
    refresh_failed: bool = False  # the store did not answer since: what is here is old

    @property
    def stale(self) -> bool:
        """Whether the picture is known not to be up to date."""
        return self.refresh_failed or self.swarm is None or self.taken_at - self.swarm.updated_at > STALE_AFTER_S

    @property
    def checkpoint(self) -> CheckpointRow | None:
        """The newest one."""
        return self.checkpoints[0] if self.checkpoints else None

    @property
    def settled_step(self) -> StepRow | None:
        """The newest step whose reports are in."""
        return next((row for row in reversed(self.steps) if row.completed_at <= self.taken_at - SETTLED_S), None)

    @property
    def samples(self) -> int:
        """All samples that were averaged in."""
        return sum(row.samples for row in self.steps)

    @property
    def elapsed_s(self) -> float:
        """How long all devices together have trained."""
        return sum(row.elapsed_s for row in self.contributions)

    @property
    def averaged_bytes(self) -> int:
        """What all devices have averaged for others."""
        return sum(row.averaged_bytes for row in self.contributions)

    @property
    def data_wait_s(self) -> float:
        """How much of that they waited for data."""
        return sum(row.data_wait_s for row in self.contributions)


def take_snapshot(services: RunServices, before: Snapshot | None) -> Snapshot:
    """Read the store; of the steps only what may have changed since `before`."""
    now = services.clock()
    era = services.ledger.current_era()
    return Snapshot(
        taken_at=now,
        steps=_steps(services.ledger, before if before is not None and before.era == era else None),
        contributions=publicly(services.ledger.contributions(), display_names(services.sessions)),
        online=tuple(online_sessions(services.sessions, now)),
        swarm=read_swarm_status(services.sessions),
        checkpoints=tuple(checkpoints(services.sessions)),
        validations=tuple(validations(services.sessions)),
        publications=tuple(publications(services.sessions)),
        era=era,
        figures=read_figures(services.sessions, now - services.quarantine.window_s),
    )


LATE_STEPS = 200  # reports may come late; those of older steps are read when the service starts anew


def _steps(ledger: Ledger, before: Snapshot | None) -> tuple[StepRow, ...]:
    if before is None or len(before.steps) <= LATE_STEPS:
        return tuple(ledger.steps())
    settled = before.steps[:-LATE_STEPS]
    return (*settled, *ledger.steps(after=settled[-1].step))
