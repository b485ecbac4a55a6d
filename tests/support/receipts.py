"""Devices' keys, and receipts under them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from cryptography.hazmat.primitives.asymmetric import rsa
from sqlalchemy import select

from auth.keys import RSA_BITS, RSA_EXPONENT, DeviceKey
from auth.receipts import ReceiptBody, sign_receipt
from coordinator.ledger.ledger import Ledger
from coordinator.members.membership import Membership
from coordinator.store.engine import Database
from coordinator.store.models import Device, Report


@cache
def key_of(name: str) -> DeviceKey:
    """This device's key, the same in all tests of a process: making one takes a moment."""
    return DeviceKey(rsa.generate_private_key(public_exponent=RSA_EXPONENT, key_size=RSA_BITS))


def pseudonym_of(name: str, run: str = "manyhands") -> str:
    """This device's name in receipts of the run."""
    return key_of(name).receipt_key(run).pseudonym


def receipt_by(name: str, step: int, samples: Mapping[str, int], *, era: int = 0, run: str = "manyhands") -> str:
    """What this device received from those (device -> samples), as it travels."""
    received = {pseudonym_of(sender, run): brought for sender, brought in samples.items()}
    body = ReceiptBody(run=run, era=era, step=step, samples=received)
    return str(sign_receipt(key_of(name).receipt_key(run), body))


def keeper_confirms(database: Database, membership: Membership, ledger: Ledger, run: str, *steps: int) -> None:
    """The keeper of this run has received all that was reported of these steps so far."""
    key = key_of("keeper")
    device_id = membership.grant_keeper(key.public_key, pseudonym_of("keeper", run)).device_id
    query = select(Report.step, Device.receipt_key, Report.samples).join(Device)
    received: dict[int, dict[str, int]] = {step: {} for step in steps}
    with database() as session:
        for step, sender, samples in session.execute(query.where(Report.step.in_(steps), Report.samples > 0)):
            received[step][sender] = samples
    for step in steps:
        body = ReceiptBody(run=run, era=0, step=step, samples=received[step])
        ledger.take_receipt(device_id, step, str(sign_receipt(key.receipt_key(run), body)))
