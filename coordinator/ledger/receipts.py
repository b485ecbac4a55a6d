"""Verification of receipts, and selection of the receipts to keep for each step.

For each step, the keeper's receipt and those of four randomly drawn members are kept, so the table
grows with the number of steps, not with the size of the swarm. Early arrival and more devices do
not improve a member's chances. These functions run inside the ledger's transactions.
"""

from __future__ import annotations

import base64
import json

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from auth.errors import ManyhandsError, RequestError
from auth.receipts import ReceiptBody, open_receipt, read_receipt
from coordinator.ledger.judgement import KeptReceipt, chosen
from coordinator.store.eras import current_era, last_counting_step
from coordinator.store.models import KEEPER_ROLE, Device, Receipt, Report
from coordinator.store.refusals import add_refusal
from coordinator.store.standing import require_active

WAIT_S = 7 * 86_400.0  # receipts are accepted for this many seconds after a step's first report
WITNESSES = frozenset({"trainer", "auxiliary", "keeper", "admin"})  # roles that average gradients; observers do not


def take_receipt(session: Session, run: str, device_id: str, step: int, text: str, now: float) -> bool:
    """Store a device's receipt for a step. Return whether it is kept; record errors as refusals."""
    try:
        return _take(session, run, device_id, step, text, now)
    except ManyhandsError as error:
        add_refusal(session, "receipt", error.code, str(error), device_id, now)
        return False


def kept_receipts(session: Session, step: int) -> list[KeptReceipt]:
    """Return the stored receipts for a step, in order of arrival."""
    query = (
        select(Receipt.id, Receipt.device_id, Device.member_id, Device.role, Receipt.samples)
        .join(Device, Device.id == Receipt.device_id)
        .where(Receipt.step == step)
        .order_by(Receipt.id)
    )
    return [
        KeptReceipt(row_id, device_id, member_id, role == KEEPER_ROLE, samples_by_number(samples))
        for row_id, device_id, member_id, role, samples in session.execute(query)
    ]


def samples_by_number(stored: str) -> dict[int, int]:
    """Parse the `samples` column, a map from device numbers to samples."""
    return {int(number): samples for number, samples in json.loads(stored).items()}


def _take(session: Session, run: str, device_id: str, step: int, text: str, now: float) -> bool:
    device = session.get_one(Device, device_id)
    require_active(session, device.member, device)
    if device.role not in WITNESSES:
        raise RequestError(f"A receipt came from a device in the role {device.role}, which averages nothing.")
    if device.receipt_key is None:
        raise RequestError(
            "A receipt came from a device that has told no key for receipts: it does when it joins again."
        )
    signed = read_receipt(text)
    receipt = open_receipt(signed, device.receipt_key)
    if receipt.run != run or receipt.step != step or receipt.era > current_era(session):
        raise RequestError("A receipt is of another run, step or era than the report that brings it.")
    undone_after = last_counting_step(session, receipt.era)
    if undone_after is not None and step > undone_after:
        return False
    _require_in_time(session, step, now)
    if _has_signed(session, device, receipt):  # the first receipt is kept; a killed device may repeat a step
        return False
    samples = json.dumps(_by_number(session, receipt), sort_keys=True, separators=(",", ":"))
    row = Receipt(
        device_id=device_id,
        era=receipt.era,
        step=step,
        samples=samples,
        signature=base64.b64decode(signed.signature),
        received_at=now,
    )
    session.add(row)
    session.flush()
    kept = kept_receipts(session, step)
    staying = chosen(step, kept)
    surplus = {receipt.receipt_id for receipt in kept} - staying
    session.execute(delete(Receipt).where(Receipt.id.in_(surplus)).execution_options(synchronize_session=False))
    return row.id in staying


def _has_signed(session: Session, device: Device, receipt: ReceiptBody) -> bool:
    same = select(Receipt.id).where(
        Receipt.device_id == device.id, Receipt.era == receipt.era, Receipt.step == receipt.step
    )
    return session.scalar(same) is not None


def _require_in_time(session: Session, step: int, now: float) -> None:
    first = session.scalar(
        select(func.min(Report.received_at)).where(Report.step == step, Report.superseded.is_(False))
    )
    if first is not None and now > first + WAIT_S:
        raise RequestError(f"A receipt of step {step} came {(now - first) / 86_400:.0f} days after its first report.")


def _by_number(session: Session, receipt: ReceiptBody) -> dict[int, int]:
    """Return a receipt's samples by device number. Raises `RequestError` for an unknown device."""
    query = select(Device.receipt_key, Device.number).where(Device.receipt_key.in_(receipt.samples))
    numbers: dict[str | None, int] = dict(session.execute(query).all())
    unknown = receipt.samples.keys() - numbers.keys()
    if unknown:
        raise RequestError(f"A receipt names {min(unknown)}, which is no device of this run.")
    return {numbers[pseudonym]: samples for pseudonym, samples in receipt.samples.items()}
