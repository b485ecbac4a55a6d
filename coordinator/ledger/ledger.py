"""The ledger: reports become steps and contributions, each report counted once and as far as receipts confirm it.

A step's sums are kept up to date in the transaction that stores a report or a receipt, so reading them costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import delete, func, select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from coordinator.ledger.contributions import Gift, gifts_by_member
from coordinator.ledger.counting import count_step
from coordinator.ledger.intake import Delivery, Verdict, record_reports, target_batch_size
from coordinator.ledger.presence import is_online
from coordinator.ledger.receipts import take_receipt
from coordinator.ledger.shares import record_lost, steps_undone
from coordinator.store.engine import Sessions
from coordinator.store.eras import begin_era, current_era, last_counting_step
from coordinator.store.locks import Lock, beside_others, one_at_a_time
from coordinator.store.models import (
    KEEPER_ROLE,
    Checkpoint,
    Device,
    Evaluation,
    Member,
    Receipt,
    Report,
    Session as Stay,
    Step,
    SwarmStatus,
    Validation,
)
from coordinator.store.notify import Topic, tell
from coordinator.throttling.cost_cache import Costly
from peer.config.run import RunConfig
from peer.reporting.messages import Lost, StepReport

SETTLED_S = 30.0  # after a step was completed its reports are in; peers that were cut off deliver theirs later


@dataclass(frozen=True)
class StepRow:
    """One global step, as far as it is reported."""

    step: int
    samples: int
    loss: float | None  # mean over samples; None while nobody has reported a loss
    devices: int
    completed_at: float
    target_batch_size: int


@dataclass(frozen=True)
class Contribution:
    """What a member has given so far."""

    member: str
    samples: int  # that receipts confirm
    devices: int
    online: int  # of these devices, now
    last_seen_at: float | None
    samples_per_second: float  # of the devices online
    elapsed_s: float  # that its devices trained, each counted; those steps that count
    data_wait_s: float  # of it, waiting for data
    averaged_bytes: int  # of others' numbers, in all steps, as the devices themselves say
    pending_samples: int = 0  # claimed, and neither confirmed nor denied by any receipt


def data_wait_share(contributions: Sequence[Contribution]) -> float | None:
    """Which part of the time that these have trained they waited for data; None before there is any."""
    elapsed_s = sum(row.elapsed_s for row in contributions)
    return min(1.0, sum(row.data_wait_s for row in contributions) / elapsed_s) if elapsed_s else None


class Ledger:
    """Reports in, steps and contributions out."""

    def __init__(self, sessions: Sessions, config: RunConfig, clock: Callable[[], float] = time.time) -> None:
        self._sessions = sessions
        self._config = config
        self._clock = clock
        self.recent_contributions = Costly(self.contributions)  # the same, perhaps somewhat older in a long run

    def record(
        self, device_id: str, session_id: str | None, seq: int, era: int, report: StepReport, completed_at: float
    ) -> Verdict:
        """Count a report, or refuse it and say why; a report that comes again is accepted again and counted once."""
        [outcome] = self.record_all([Delivery(device_id, session_id, seq, era, report, completed_at)])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def record_all(self, deliveries: Sequence[Delivery]) -> list[Verdict | Exception]:
        """The same for many in one transaction; one that cannot be recorded gives its error and spoils no other."""
        try:
            return list(
                self._sessions.transact(
                    lambda session: record_reports(session, self._config, deliveries, self._clock())
                )
            )
        except OperationalError as error:  # the database itself: the others would fare no better
            return [error] * len(deliveries)
        except Exception as error:  # noqa: BLE001 - the boundary of a batch: whose fault it is shows in smaller ones
            if len(deliveries) == 1:
                return [error]
            middle = len(deliveries) // 2
            return [*self.record_all(deliveries[:middle]), *self.record_all(deliveries[middle:])]

    def record_lost(self, device_id: str, seq: int, lost: Lost, at: float) -> str:
        """Count samples lost beside a device's reports; returns why not, or an empty string."""
        with self._sessions() as session:
            target = target_batch_size(session, self._config, lost.step)
        return record_lost(self._sessions, device_id, seq, lost, at, target, self._clock())

    def take_receipt(self, device_id: str, step: int, receipt: str) -> None:
        """Keep what a device, the keeper's, received at this step, and count by it; a bad one is recorded."""

        def take(session: Session) -> None:
            beside_others(session, Lock.ERA)
            one_at_a_time(session, Lock.COUNTING, step)
            now = self._clock()
            if take_receipt(session, self._config.run.name, device_id, step, receipt, now):
                target, least_share = (
                    target_batch_size(session, self._config, step),
                    self._config.membership.newcomer_share,
                )
                count_step(session, step, target, least_share, now)

        self._sessions.transact(take)

    def roll_back(self, step: int) -> int:
        """The swarm returned to the checkpoint of `step`: undo all later steps and begin a new era; returns its number.

        Reports of the undone steps stay, marked, and so will those that have yet to arrive. Their receipts, and what
        held-out samples and tasks said of undone checkpoints, go; nobody downloads one of these any more.
        """

        def undo(session: Session) -> int:
            one_at_a_time(session, Lock.ERA)
            steps_undone(session, step)
            era = begin_era(session, after_step=step, now=self._clock())
            session.execute(update(Report).where(Report.step > step).values(superseded=True))
            session.execute(delete(Step).where(Step.step > step))
            session.execute(delete(Receipt).where(Receipt.step > step))
            session.execute(delete(Validation).where(Validation.step > step))
            session.execute(delete(Evaluation).where(Evaluation.step > step))
            session.execute(delete(Checkpoint).where(Checkpoint.step > step))
            session.execute(update(SwarmStatus).values(era=era, step=step, samples_accumulated=0))
            tell(session, Topic.PROGRESS)
            return era

        return self._sessions.transact(undo)

    def current_era(self) -> int:
        """How often the swarm has returned to a checkpoint."""
        with self._sessions() as session:
            return current_era(session)

    def last_counting_step(self, era: int) -> int | None:
        """The last step of `era` that no later era undid; None where nothing was undone."""
        with self._sessions() as session:
            return last_counting_step(session, era)

    def last_step(self) -> int:
        """The highest step that anybody reported; 0 before the first."""
        with self._sessions() as session:
            return session.scalar(select(func.max(Step.step))) or 0

    def steps(self, after: int = 0) -> list[StepRow]:
        """All steps above `after`, in order."""
        columns = (Step.step, Step.samples, Step.loss_sum, Step.loss_samples, Step.devices, Step.completed_at)
        query = select(*columns, Step.target_batch_size).where(Step.step > after).order_by(Step.step)
        with self._sessions() as session:  # plain columns: of a long run, objects would take a second to make
            return [
                StepRow(
                    step=step,
                    samples=samples,
                    loss=loss_sum / loss_samples if loss_samples else None,
                    devices=devices,
                    completed_at=completed_at,
                    target_batch_size=target,
                )
                for step, samples, loss_sum, loss_samples, devices, completed_at, target in session.execute(query)
            ]

    def contributions(self, gifts: Mapping[int, Gift] | None = None) -> list[Contribution]:
        """Every member with a device, the largest contribution first, bytes after samples; without the keeper.

        `gifts` are what members gave, by their ids, where that is known already.
        """
        now = self._clock()
        present = (
            select(
                Member.id,
                Member.name,
                func.count(Device.id.distinct()),
                func.count(Device.id.distinct()).filter(is_online(now)),
                func.max(Stay.last_seen_at),
                func.sum(Stay.samples_per_second).filter(is_online(now)),
            )
            .join(Device.member)
            .outerjoin(Stay, Stay.device_id == Device.id)
            .where(Device.role != KEEPER_ROLE)
            .group_by(Member.id, Member.name)
        )
        with self._sessions() as session:
            given = gifts_by_member(session) if gifts is None else gifts
            rows = session.execute(present).all()
        found = [
            _contribution(given.get(member_id, Gift()), member, devices, online, last_seen_at, rate)
            for member_id, member, devices, online, last_seen_at, rate in rows
        ]
        return sorted(found, key=lambda row: (-row.samples, -row.averaged_bytes, row.member))

    def standing(self, member: str) -> tuple[int, int, int]:
        """A member's samples, rank (from 1; equals share one) and the number of members, for the terminal panel."""
        samples = {row.member: row.samples for row in self.contributions()}
        own = samples.get(member, 0)
        return own, 1 + sum(other > own for other in samples.values()), len(samples)


def _contribution(
    gift: Gift, member: str, devices: int, online: int, last_seen_at: float | None, rate: float | None
) -> Contribution:
    return Contribution(
        member=member,
        samples=int(gift.samples),
        devices=devices,
        online=online,
        last_seen_at=last_seen_at,
        samples_per_second=rate or 0.0,
        elapsed_s=gift.elapsed_s,
        data_wait_s=gift.data_wait_s,
        averaged_bytes=int(gift.averaged_bytes),
        pending_samples=int(gift.pending_samples),
    )
