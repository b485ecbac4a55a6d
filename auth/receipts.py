"""Receipts: what each sender of a group brought to a global step, signed by a peer that reduced a part of it.

What a peer says of itself is a claim; what others received from it is not. A receipt is one line of canonical JSON that
names its purpose and version, run, era and step, and for each sender its libp2p identity and its samples. The device's
key signs these bytes as they are. They begin with a brace, as nothing else does that this key signs (challenges begin
with a length, DHT records with a MessagePack array): so neither can pass for the other.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from auth.errors import RequestError
from auth.keys import DeviceKey, verify_signature

LABEL = "manyhands-receipt-v1"
MAX_SENDERS = 512
MAX_RECEIPT_CHARS = 48 * 1024  # body and signature; a message to the coordinator has at most 64 KiB
MAX_COUNT = 2**31 - 1

_Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
_PeerId = Annotated[str, Field(pattern=r"^[1-9A-HJ-NP-Za-km-z]{1,64}$")]  # base58


@dataclass(frozen=True)
class ReceiptBody:
    """A receipt for the samples that one peer received in a step."""

    run: str
    era: int
    step: int  # the number of the completed global step, from 1
    samples: Mapping[str, int]  # libp2p identity (base58) -> what this sender brought; who brought nothing is left out


@dataclass(frozen=True)
class SignedReceipt:
    """A receipt's bytes and the signature over them."""

    body: str
    signature: bytes

    def __str__(self) -> str:
        return f"{self.body}\n{base64.b64encode(self.signature).decode()}"


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    era: _Count
    receipt: Literal["manyhands-receipt-v1"]
    run: Annotated[str, Field(min_length=1, max_length=1024)]
    samples: Annotated[dict[_PeerId, Annotated[int, Field(ge=1, le=MAX_COUNT)]], Field(max_length=MAX_SENDERS)]
    step: Annotated[int, Field(ge=1, le=MAX_COUNT)]


def whole_samples(weights: Mapping[str, float]) -> dict[str, int]:
    """The weights of a round as a receipt names them: whole, positive, in range, and the largest if they are many."""
    whole = {peer: min(MAX_COUNT, round(weight)) for peer, weight in weights.items() if math.isfinite(weight)}
    largest = sorted((peer for peer in whole if whole[peer] > 0), key=lambda peer: -whole[peer])
    return {peer: whole[peer] for peer in largest[:MAX_SENDERS]}


def receipt_body(receipt: ReceiptBody) -> str:
    """The canonical form: keys in order, no spaces, ASCII only; no two receipts have the same."""
    content = {
        "era": receipt.era,
        "receipt": LABEL,
        "run": receipt.run,
        "samples": dict(receipt.samples),
        "step": receipt.step,
    }
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def sign_receipt(key: DeviceKey, receipt: ReceiptBody) -> SignedReceipt:
    """The receipt under this device's key."""
    body = receipt_body(receipt)
    return SignedReceipt(body, key.sign(body.encode()))


def read_receipt(text: str) -> SignedReceipt:
    """Take apart what `str` of a signed receipt gave; raises `RequestError`. It is proved by `open_receipt` only."""
    body, _, signature = text.partition("\n")
    try:
        if len(text) > MAX_RECEIPT_CHARS:
            raise RequestError(f"A receipt has at most {MAX_RECEIPT_CHARS} characters, not {len(text)}.")
        return SignedReceipt(body, base64.b64decode(signature, validate=True))
    except (binascii.Error, ValueError) as error:
        raise RequestError("The receipt's signature is not in base64.") from error


def open_receipt(signed: SignedReceipt, public_key: bytes) -> ReceiptBody:
    """The receipt, if the holder of `public_key` (OpenSSH) signed it in its canonical form; raises `RequestError`."""
    if len(signed.body) > MAX_RECEIPT_CHARS or not signed.body.isascii():
        raise RequestError(f"A receipt is ASCII text of at most {MAX_RECEIPT_CHARS} characters.")
    if not verify_signature(public_key, signed.body.encode(), signed.signature):
        raise RequestError("The receipt was not signed with the key of the device that brought it.")
    try:
        body = _Body.model_validate(json.loads(signed.body))
    except (ValidationError, ValueError, RecursionError) as error:
        raise RequestError("The receipt is not of the form that this version knows.") from error
    receipt = ReceiptBody(body.run, body.era, body.step, body.samples)
    if receipt_body(receipt) != signed.body:
        raise RequestError("The receipt is not in its canonical form.")
    return receipt
