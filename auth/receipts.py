"""Receipts: what each sender of a group brought to a global step, signed by a peer that reduced a part of it.

What a peer says of itself is a claim; what others received from it is not. A receipt is a statement (`auth.statements`)
that names run, era and step, and for each sender its libp2p identity and its samples; the device's key signs it.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from auth.errors import RequestError
from auth.keys import DeviceKey, verify_signature
from auth.statements import Statement

MAX_SENDERS = 512
MAX_RECEIPT_CHARS = 48 * 1024  # body and signature; a message to the coordinator has at most 64 KiB
MAX_COUNT = 2**31 - 1

_Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
_PeerId = Annotated[str, Field(pattern=r"^[1-9A-HJ-NP-Za-km-z]{1,64}$")]  # base58


class ReceiptBody(Statement):
    """A receipt for the samples that one peer received in a step."""

    noun: ClassVar[str] = "receipt"
    receipt: Literal["manyhands-receipt-v1"] = "manyhands-receipt-v1"
    run: Annotated[str, Field(min_length=1, max_length=1024)]
    era: _Count
    step: Annotated[int, Field(ge=1, le=MAX_COUNT)]  # the number of the completed global step
    # libp2p identity (base58) -> what this sender brought; who brought nothing is left out
    samples: Annotated[dict[_PeerId, Annotated[int, Field(ge=1, le=MAX_COUNT)]], Field(max_length=MAX_SENDERS)]


@dataclass(frozen=True)
class SignedReceipt:
    """A receipt's bytes and the signature over them."""

    body: str
    signature: bytes

    def __str__(self) -> str:
        return f"{self.body}\n{base64.b64encode(self.signature).decode()}"


def whole_samples(weights: Mapping[str, float]) -> dict[str, int]:
    """The weights of a round as a receipt names them: whole, positive, in range, and the largest if they are many."""
    whole = {peer: min(MAX_COUNT, round(weight)) for peer, weight in weights.items() if math.isfinite(weight)}
    largest = sorted((peer for peer in whole if whole[peer] > 0), key=lambda peer: -whole[peer])
    return {peer: whole[peer] for peer in largest[:MAX_SENDERS]}


def sign_receipt(key: DeviceKey, receipt: ReceiptBody) -> SignedReceipt:
    """The receipt under this device's key."""
    body = receipt.body
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
    if len(signed.body) > MAX_RECEIPT_CHARS:
        raise RequestError(f"A receipt has at most {MAX_RECEIPT_CHARS} characters, not {len(signed.body)}.")
    return ReceiptBody.opened(signed.body, lambda content: verify_signature(public_key, content, signed.signature))
