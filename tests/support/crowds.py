"""Members with devices, stays and reports, for the tests of what the public sees of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.ledger.ledger import enter_reports
from coordinator.ledger.sessions import checked_claim, touch_sessions
from coordinator.store.engine import Database
from coordinator.store.models import Device, DeviceSession, Member

DAY = 86_400.0
NOW = 20_000 * DAY + 43_200.0  # noon
TODAY = 20_000


def crowd(database: Database, members: Mapping[str, Sequence[str]]) -> None:
    """Members by name, with the hardware of each of their devices: `ada-1`, `ada-2`, ..., all away since yesterday."""
    number = 0
    with database.begin() as session:
        for name, machines in members.items():
            member = Member(name=name, created_at=0.0)
            session.add(member)
            for place, hardware in enumerate(machines, start=1):
                device = Device(
                    id=f"{name.lower()}-{place}",
                    member=member,
                    number=number,
                    peer_id=f"Qm{name}{place}",
                    public_key=b"",
                    receipt_key=f"{number:064x}",
                    role="keeper" if name == "keeper" else "trainer",
                    created_at=0.0,
                )
                number += 1
                session.add(device)
                session.flush()
                session.add(stay(device.id, NOW - 2 * DAY, NOW - DAY, hardware))


def stay(
    device_id: str, began_at: float, seen_at: float, hardware: str = "cpu", *, ended: bool = True
) -> DeviceSession:
    """One stay, at ten samples a second."""
    return DeviceSession(
        id=f"{device_id}@{began_at:.0f}",
        device_id=device_id,
        started_at=began_at,
        last_seen_at=seen_at,
        ended_at=seen_at if ended else None,
        hardware=hardware,
        state="training",
        samples_per_second=10.0,
    )


def touch(database: Database, stay_id: str, **said: Any) -> None:
    """Have the device of this stay say this of itself; raises `RequestError` for what cannot be true."""
    touch_sessions(database, {stay_id: checked_claim(**said)})


def add_reports(database: Database, rows: Sequence[tuple[str, int, int, int | None, float]]) -> None:
    """Reports of device, step, samples, how many of them count, and when."""
    reports = [
        {
            "device_id": device,
            "seq": seq,
            "era": 0,
            "step": step,
            "samples": samples,
            "counted": counted,
            "group_size": 2,
            "averaging_s": 0.5,
            "samples_per_second": 5.0,
            "elapsed_s": 60.0,
            "data_wait_s": 0.0,
            "averaged_bytes": 0,
            "completed_at": at,
            "received_at": at,
            "superseded": False,
        }
        for seq, (device, step, samples, counted, at) in enumerate(rows, start=1)
    ]
    with database.begin() as session:
        enter_reports(session, reports)
