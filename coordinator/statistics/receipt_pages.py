"""Public data for recomputing the leaderboard: claims, their samples that count, and the receipts that decide it.

The signed bytes are made again from what is stored. Members appear under the names that the dashboard shows.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from auth.receipts import ReceiptBody
from coordinator.ledger.receipts import samples_by_number
from coordinator.members.names import display_names
from coordinator.store.engine import Database
from coordinator.store.eras import current_era
from coordinator.store.models import KEEPER_ROLE, Device, Member, Receipt, Report

MAX_STEPS = 200
MOST_NUMBERS = 20_000  # claims and receipts' entries of one page; a page of one step may have more


def receipts_page(database: Database, run: str, after: int, limit: int) -> dict[str, Any]:
    """Steps above `after` of which somebody claims samples, in order; `next` is the last one, or None at the end."""
    shown = display_names(database)
    with database() as session:
        numbers = _steps(session, after, limit + 1)
        steps = _whole_page(session, numbers[:limit])
        devices = _devices(session, shown, steps)
        era = current_era(session)
    peer_ids = {device["number"]: peer_id for peer_id, device in devices.items()}
    return {
        "run": run,
        "era": era,
        "next": steps[-1]["step"] if len(steps) < len(numbers) else None,
        "steps": [_published(run, step, peer_ids) for step in steps],
        "devices": {
            peer_id: {name: device[name] for name in ("member", "keeper", "public_key")}
            for peer_id, device in devices.items()
        },
    }


def _steps(session: Session, after: int, limit: int) -> Sequence[int]:
    claimed = select(Report.step).where(Report.step > after, Report.superseded.is_(False), Report.samples > 0)
    return session.scalars(claimed.distinct().order_by(Report.step).limit(limit)).all()


def _whole_page(session: Session, numbers: Sequence[int]) -> list[dict[str, Any]]:
    """Read as many of these steps as fit on a page."""
    found: list[dict[str, Any]] = []
    room = MOST_NUMBERS
    for number in numbers:
        step = _step(session, number)
        room -= len(step["claims"]) + sum(len(receipt["samples"]) for receipt in step["receipts"])
        if room < 0 and found:
            break
        found.append(step)
    return found


def _step(session: Session, step: int) -> dict[str, Any]:
    """Read a step's claims and receipts as they are stored, with devices by their numbers."""
    claims = (
        select(Device.number, Report.samples, Report.counted)
        .join(Device, Device.id == Report.device_id)
        .where(Report.step == step, Report.superseded.is_(False), Report.samples > 0)
        .order_by(Report.id)
    )
    receipts = (
        select(Device.number, Receipt.era, Receipt.samples, Receipt.signature)
        .join(Device, Device.id == Receipt.device_id)
        .where(Receipt.step == step)
        .order_by(Receipt.id)
    )
    return {
        "step": step,
        "claims": [tuple(row) for row in session.execute(claims)],
        "receipts": [
            {"number": number, "era": era, "samples": samples_by_number(samples), "signature": signature}
            for number, era, samples, signature in session.execute(receipts)
        ],
    }


def _devices(session: Session, shown: Mapping[str, str], steps: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Map the libp2p identities that these steps name to their members, and to the keys of those that signed."""
    signers = {receipt["number"] for step in steps for receipt in step["receipts"]}
    named = {number for step in steps for receipt in step["receipts"] for number in receipt["samples"]}
    claimants = {number for step in steps for number, _, _ in step["claims"]}
    query = (
        select(Device.number, Device.peer_id, Device.public_key, Device.role, Member.name)
        .join(Member, Member.id == Device.member_id)
        .where(Device.number.in_(signers | named | claimants))
    )
    return {
        peer_id: {
            "number": number,
            "member": shown.get(name, name),
            "keeper": role == KEEPER_ROLE,
            "public_key": public_key.decode() if number in signers else None,
        }
        for number, peer_id, public_key, role, name in session.execute(query)
    }


def _published(run: str, step: Mapping[str, Any], peer_ids: Mapping[int, str]) -> dict[str, Any]:
    def body(receipt: Mapping[str, Any]) -> str:
        samples = {peer_ids[number]: brought for number, brought in receipt["samples"].items()}
        return ReceiptBody(run=run, era=receipt["era"], step=step["step"], samples=samples).body

    return {
        "step": step["step"],
        "claims": [
            {"device": peer_ids[number], "claimed": claimed, "counted": counted}
            for number, claimed, counted in step["claims"]
        ],
        "receipts": [
            {
                "device": peer_ids[receipt["number"]],
                "body": body(receipt),
                "signature": base64.b64encode(receipt["signature"]).decode(),
            }
            for receipt in step["receipts"]
        ],
    }
