"""Members whose devices report to a ledger."""

from __future__ import annotations

from typing import Any

from coordinator.ledger.judgement import Delivery, ReportVerdict
from coordinator.ledger.keeper_status import write_swarm_status
from coordinator.ledger.ledger import Ledger
from coordinator.store.engine import Database
from coordinator.store.models import Device, Member
from peer.config.run import RunConfig
from peer.reporting.messages import StepReport
from tests.support.receipts import key_of, pseudonym_of, receipt_by
from tests.support.reports import report

TARGET = 100
CONFIG = RunConfig.from_mapping({"averaging": {"target_batch_size": TARGET}})
ACCEPTED = ReportVerdict(accepted=True)
DEVICES = {"ada-1": "Ada", "ada-2": "Ada", "bob-1": "Bob", "keeper-1": "keeper"}
REPORTERS = ("ada-1", "ada-2", "bob-1")


def add_members(database: Database) -> None:
    """Put two members with three devices, and the keeper, into the database."""
    with database.begin() as session:
        members = {name: Member(name=name, created_at=0.0) for name in dict.fromkeys(DEVICES.values())}
        session.add_all(
            Device(
                id=device,
                member=members[name],
                number=number,
                peer_id=key_of(device).peer_id,
                public_key=key_of(device).public_key,
                receipt_key=pseudonym_of(device),
                role="keeper" if name == "keeper" else "trainer",
                created_at=0.0,
            )
            for number, (device, name) in enumerate(DEVICES.items())
        )


def keeper_at(database: Database, step: int, now: float) -> None:
    """Have the keeper say that the swarm is at this step."""
    write_swarm_status(
        database,
        step=step,
        samples_accumulated=TARGET // 2,
        target_batch_size=TARGET,
        peers=2,
        samples_per_second=1.0,
        eta_s=None,
        addresses=(),
        now=now,
    )


def deliver(
    ledger: Ledger, device_id: str, session_id: str | None, seq: int, report: StepReport, completed_at: float
) -> ReportVerdict:
    """Record one report; an error is raised."""
    [outcome] = ledger.record_all([Delivery(device_id, session_id, seq, report, completed_at)])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def record(
    ledger: Ledger, device: str, step: int, *, seq: int | None = None, era: int = 0, **claims: Any
) -> ReportVerdict:
    """Report as a device; the sequence number is the step's unless a test says otherwise."""
    number = step if seq is None else seq
    return deliver(ledger, device, None, number, report(step, era=era, **claims), completed_at=1000.0 + step)


def confirm(ledger: Ledger, step: int, era: int = 0, **samples: int) -> None:
    """The keeper has received so many samples of each device (its id with `_` for `-`)."""
    received = {device.replace("_", "-"): brought for device, brought in samples.items()}
    ledger.take_receipt("keeper-1", step, receipt_by("keeper-1", step, received, era=era))
