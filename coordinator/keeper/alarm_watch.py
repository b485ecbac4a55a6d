"""Alarms about the model and the devices, which the keeper raises, clears and audits.

The keeper has this task because a run has only one keeper, whereas several services may show the
alarms. The keeper measures each step's update norm. The states that devices report in sessions show
which devices cannot take part. A device that trains but has not seen the keeper for the lifetime of
DHT records is in a separate DHT, alone or with others. A device that has been starting for minutes
has not found the keeper, or cannot download the run's state. The keeper only raises the alarm: each
session receives the keeper's newest addresses anyway, and peers that do not see the keeper try
these addresses every few seconds (`peer.swarm.record_exchange`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

from sqlalchemy import delete, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from coordinator.checkpoints.validations import validations
from coordinator.ledger.reading import SETTLED_S, LedgerReader
from coordinator.ledger.sessions import APART, OnlineSession, online_sessions
from coordinator.run.directory import RunDirectory
from coordinator.statistics.alarms import MODEL_KINDS, SPLIT, STARTING, Alarm, Vitals, alarms_of, write_alarms
from coordinator.statistics.return_point import read_return_point
from coordinator.store.checkpoint_models import UnigramBaseline, UpdateNorm
from coordinator.store.engine import Database
from peer.config.phases import phase_at
from peer.progress.fingerprint import SKETCH_SIZE, Sketch

logger = logging.getLogger(__name__)
RECENT_STEPS = 500  # number of recent steps searched for the lowest loss
LOOK_EVERY_S = 5.0
PATIENCE_S = 30.0  # time within which all peers find a restarted keeper
STARTING_S = 180.0  # time that a device may take to start
MAX_NAMED = 5


class AlarmWatch:
    """Alarms about the model; call `step_taken` after each step, and `look` at any time."""

    def __init__(
        self, database: Database, directory: RunDirectory, ledger: LedgerReader, clock: Callable[[], float]
    ) -> None:
        self._database, self._directory, self._ledger, self._clock = database, directory, ledger, clock
        self._last: tuple[int, int, Sketch] | None = None  # era, step, sketch
        self._looked_at = clock()

    def step_taken(self, era: int, step: int, sketch: Sketch) -> None:
        """Update all alarms after a step; skip this step if the database does not answer."""
        norm = self._moved(era, step, sketch)
        try:
            self._database.transact(lambda session: _keep(session, step, norm))
            self._decide(step)
        except DBAPIError as error:
            logger.warning("the alarms were not looked at: %s", error.orig)

    def look(self, step: int) -> None:
        """Update the alarms between steps, because a step's losses arrive with a delay."""
        if self._clock() < self._looked_at + LOOK_EVERY_S:
            return
        try:
            self._decide(step)
        except DBAPIError as error:
            logger.warning("the alarms were not looked at: %s", error.orig)

    def _moved(self, era: int, step: int, sketch: Sketch) -> float | None:
        """Return the step's update norm, or None if the state before the step is unknown."""
        last, self._last = self._last, (era, step, sketch)
        return update_norm(last[2], sketch) if last is not None and last[:2] == (era, step - 1) else None

    def _decide(self, step: int) -> None:
        self._looked_at = self._clock()
        config = self._directory.config
        vitals = self._vitals(step, phase_at(config, step).from_step)
        found = alarms_of(vitals, warmup_steps=config.at_step(step).schedule.warmup_steps)
        for alarm in self._database.transact(lambda session: write_alarms(session, MODEL_KINDS, found, self._clock())):
            advice = read_return_point(self._database, alarm.step).advice(self._directory.path)
            logger.error("alarm, step %d: %s. %s", alarm.step, alarm.detail, advice, extra={"step": alarm.step})

    def _vitals(self, step: int, began: int) -> Vitals:
        since, settled = max(began, step - RECENT_STEPS), self._clock() - SETTLED_S
        steps = [row for row in self._ledger.steps(after=since) if row.completed_at <= settled]
        newest = validations(self._database)[-1:]
        with self._database() as session:
            known = select(UpdateNorm).where(UpdateNorm.step > since, UpdateNorm.step <= step)
            updates = [(row.step, row.norm) for row in session.scalars(known.order_by(UpdateNorm.step))]
            baseline = session.get(UnigramBaseline, newest[0].set_sha256) if newest else None
        return Vitals(
            losses=[(row.step, row.loss) for row in steps],
            updates=updates,
            began=began,
            held_out=(newest[0].step, newest[0].mlm_loss) if newest and newest[0].step >= began else None,
            unigram=None if baseline is None else baseline.loss,
        )


def update_norm(before: Sketch, after: Sketch) -> float:
    """Estimate the norm of the difference between two states' parameters from their sketches.

    The expected square of a random-sign projection is the squared norm of the projected tensors
    (Johnson-Lindenstrauss). The 32 projections cover each tensor once. A 25 % error hides no jump.
    """
    return math.dist(before[:SKETCH_SIZE], after[:SKETCH_SIZE])


def _keep(session: Session, step: int, norm: float | None) -> None:
    """Store a step's update norm; delete old norms and those of undone steps."""
    session.execute(delete(UpdateNorm).where(UpdateNorm.step >= step))
    session.execute(delete(UpdateNorm).where(UpdateNorm.step < step - 2 * RECENT_STEPS))
    if norm is not None:
        session.add(UpdateNorm(step=step, norm=norm if math.isfinite(norm) else 1e300))


class DeviceWatch:
    """Alarms about the devices; `look` may be called at any time."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database, self._clock = database, clock
        self._looked_at = self._whole_at = clock()
        self._starting_since: dict[str, float] = {}  # session id -> Unix time

    def look(self, step: int) -> None:
        """Raise or clear the alarms; `step` is the keeper's current step."""
        now = self._clock()
        if now < self._looked_at + LOOK_EVERY_S:
            return
        self._looked_at = now
        try:
            online = online_sessions(self._database, now)
            found = [*self._split(online, step, now), *self._starting(online, step, now)]
            new = self._database.transact(lambda session: write_alarms(session, [SPLIT, STARTING], found, now))
        except DBAPIError as error:
            logger.warning("nobody looked whether all devices take part: %s", error.orig)
            return
        for alarm in new:
            logger.error("alarm: %s", alarm.detail, extra={"step": step})

    def _split(self, online: Sequence[OnlineSession], step: int, now: float) -> list[Alarm]:
        apart = [session for session in online if session.state == APART]
        if not apart:
            self._whole_at = now
        if now < self._whole_at + PATIENCE_S:
            return []
        detail = f"{len(apart)} of {len(online)} devices train without seeing the keeper ({_names(apart)})"
        return [Alarm(SPLIT, step, detail)]

    def _starting(self, online: Sequence[OnlineSession], step: int, now: float) -> list[Alarm]:
        starting = [session for session in online if session.state == "starting"]
        self._starting_since = {
            session.session_id: self._starting_since.get(session.session_id, now) for session in starting
        }
        late = [session for session in starting if now >= self._starting_since[session.session_id] + STARTING_S]
        if not late:
            return []
        minutes = f"{STARTING_S / 60:.0f} minutes"
        detail = f"{len(late)} of {len(online)} devices have been starting for more than {minutes} ({_names(late)})"
        return [Alarm(STARTING, step, detail)]


def _names(sessions: Sequence[OnlineSession]) -> str:
    names = sorted({session.member for session in sessions})
    return ", ".join(names[:MAX_NAMED]) + (", ..." if len(names) > MAX_NAMED else "")
