"""The swarm's status as seen by the keeper, written to the database for the service."""

from __future__ import annotations

from collections.abc import Callable

from coordinator.ledger.keeper_status import write_swarm_status
from coordinator.ledger.speed import batch_left_s, run_speed
from coordinator.statistics.swarm_health import write_figures
from coordinator.store.engine import Database, log_trouble
from peer.reporting.metrics import Census, RoundTally
from peer.swarm.swarm import Swarm


class StatusWriter:
    """A writer of the swarm's status, and of counts of rounds and peers when they change."""

    def __init__(self, database: Database, swarm: Swarm, clock: Callable[[], float]) -> None:
        self._database, self._swarm, self._clock = database, swarm, clock
        self._figures: tuple[RoundTally, Census, int | None] | None = None  # last written counts

    def write(self) -> None:
        """Write the status, and the counts if they have changed."""
        swarm, progress = self._swarm, self._swarm.progress()
        with log_trouble("the swarm's status is not written"):
            speed = run_speed(self._database, self._clock())
            write_swarm_status(
                self._database,
                step=progress.step,
                samples_accumulated=progress.swarm_samples,
                target_batch_size=progress.target_batch_size,
                peers=progress.peers,
                samples_per_second=speed,
                eta_s=batch_left_s(progress.swarm_samples, progress.target_batch_size, speed),
                addresses=swarm.addresses,
                now=swarm.heard_at,
            )
            figures = swarm.rounds, swarm.census, swarm.missing_auxiliaries
            if figures != self._figures:
                write_figures(self._database, *figures)
                self._figures = figures
