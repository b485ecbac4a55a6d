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


def receipt_by(name: str, step: int, samples: Mapping[str, int], *, era: int = 0, run: str = "manyhands") -> str:
    """What this device received from those (device -> samples), as it travels."""
    received = {key_of(sender).peer_id: brought for sender, brought in samples.items()}
    return str(sign_receipt(key_of(name), ReceiptBody(run=run, era=era, step=step, samples=received)))


def keeper_confirms(database: Database, membership: Membership, ledger: Ledger, run: str, step: int) -> None:
    """The keeper of this run has received all that was reported of a step so far."""
    device_id = membership.grant_keeper(key_of("keeper").public_key).device_id
    query = select(Device.peer_id, Report.samples).join(Device).where(Report.step == step, Report.samples > 0)
    with database() as session:
        received: dict[str, int] = dict(session.execute(query).all())
    ledger.take_receipt(
        device_id, step, str(sign_receipt(key_of("keeper"), ReceiptBody(run=run, era=0, step=step, samples=received)))
    )
