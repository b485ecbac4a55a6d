"""A recorded run that goes on: its batch fills up, its machines are heard of, its steps complete."""

from __future__ import annotations

import random

from sqlalchemy import func, insert, select, update
from sqlalchemy.orm import joinedload

from benchmarks.coordinator.recorded_rows import report_row, step_row
from benchmarks.coordinator.recorded_stays import RecordedDevice, RecordedMember, RecordedStay
from benchmarks.coordinator.recorded_steps import AVERAGING_S, TARGET, RecordedShare, RecordedStep, loss_at
from coordinator.ledger.ledger import enter_reports
from coordinator.ledger.presence import write_swarm_status
from coordinator.store.engine import Database
from coordinator.store.models import Device, DeviceSession, Report, Step
from coordinator.store.notify import Topic, tell


class LiveRun:
    """Writes what peers and keeper would."""

    def __init__(self, database: Database, rng: random.Random) -> None:
        self._database, self._rng = database, rng
        with database() as session:
            self._step = session.scalar(select(func.max(Step.step))) or 0
            self._seq = session.scalar(select(func.max(Report.seq))) or 0
            self._era = session.scalar(select(func.max(Report.era))) or 0
            open_ones = (
                select(DeviceSession).where(DeviceSession.ended_at.is_(None)).options(joinedload(DeviceSession.device))
            )
            self._stays = [_stay(row) for row in session.scalars(open_ones)]
        self._rate = sum(stay.device.samples_per_second for stay in self._stays)
        self._last_at: float | None = None

    @property
    def step(self) -> int:
        """Global steps completed."""
        return self._step

    def say(self, filled: float, eta_s: float, now: float) -> None:
        """All machines are heard of, and the keeper says how far the batch is (0 to 1)."""
        with self._database.begin() as session:
            here = DeviceSession.id.in_([stay.id for stay in self._stays])
            session.execute(update(DeviceSession).where(here).values(last_seen_at=now, step=self._step))
        write_swarm_status(
            self._database,
            step=self._step,
            samples_accumulated=min(TARGET, int(TARGET * filled)),
            target_batch_size=TARGET,
            peers=len(self._stays),
            samples_per_second=self._rate * self._rng.uniform(0.97, 1.03),
            eta_s=max(0.0, eta_s),
            addresses=["/ip4/127.0.0.1/tcp/31337/p2p/QmKeeperRecorded"],
            now=now,
        )

    def complete_step(self, now: float) -> None:
        """One more step, of all machines that are there."""
        self._step, self._seq = self._step + 1, self._seq + 1
        began_at = now - 60.0 if self._last_at is None else self._last_at
        loss = loss_at(self._step, self._step, self._rng)
        part = TARGET / (self._rate or 1.0)
        shares = tuple(
            RecordedShare(stay, samples, samples, loss, 0, "", AVERAGING_S)
            for stay in self._stays
            for samples in [round(part * stay.device.samples_per_second)]
        )
        step = RecordedStep(self._step, began_at, now, loss, shares)
        rows = [report_row(step, share, self._era, self._seq, self._rng) for share in shares]
        with self._database.begin() as session:
            enter_reports(session, rows)
            session.execute(insert(Step), [step_row(step, self._era)])
            tell(session, Topic.PROGRESS)
        self._last_at = now


def _stay(row: DeviceSession) -> RecordedStay:
    device: Device = row.device
    member = RecordedMember(device.member_id, "", None, 1.0)
    made = RecordedDevice(device.id, member, device.number, row.hardware, row.samples_per_second, device.role)
    return RecordedStay(row.id, made, row.started_at, float("inf"), row.software_version)
