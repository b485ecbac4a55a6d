"""Receipts for each sender's samples in a global step, signed by a peer that reduced the gradients.

A peer's own report is only a claim; a receipt records the samples that another peer received. A
receipt is a statement (`auth.statements`) with the run, the era, the step, and each sender's
pseudonym and number of samples. Receipts are published, so a pseudonym is a public key used only
for receipts (`auth.keys.ReceiptKey`). A device signs its receipts with the private key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from auth.errors import RequestError
from auth.keys import ReceiptKey
from auth.statements import Statement, is_signed_by, sign_body

MAX_SENDERS = 512
MAX_RECEIPT_CHARS = 48 * 1024  # limit for body and signature; messages to the coordinator have at most 64 KiB
MAX_COUNT = 2**31 - 1

_Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
_Pseudonym = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ReceiptBody(Statement):
    """The number of samples that one peer received from each sender in a step."""

    noun: ClassVar[str] = "receipt"
    receipt: Literal["manyhands-receipt-v2"] = "manyhands-receipt-v2"  # version 1 used libp2p peer IDs
    run: Annotated[str, Field(min_length=1, max_length=1024)]
    era: _Count
    step: Annotated[int, Field(ge=1, le=MAX_COUNT)]  # number of the completed global step
    # Map from senders' pseudonyms to numbers of samples; senders without samples are omitted.
    samples: Annotated[dict[_Pseudonym, Annotated[int, Field(ge=1, le=MAX_COUNT)]], Field(max_length=MAX_SENDERS)]


@dataclass(frozen=True)
class SignedReceipt:
    """A receipt's text and its signature."""

    body: str
    signature: str  # base64

    def __str__(self) -> str:
        return f"{self.body}\n{self.signature}"


def whole_samples(weights: Mapping[str, float]) -> dict[str, int]:
    """Round senders' weights to whole samples; keep the `MAX_SENDERS` largest; drop zeros."""
    whole = {peer: min(MAX_COUNT, round(weight)) for peer, weight in weights.items() if math.isfinite(weight)}
    largest = sorted((peer for peer in whole if whole[peer] > 0), key=lambda peer: -whole[peer])
    return {peer: whole[peer] for peer in largest[:MAX_SENDERS]}


def sign_receipt(key: ReceiptKey, receipt: ReceiptBody) -> SignedReceipt:
    """Sign a receipt with a device's receipt key."""
    body = receipt.body
    return SignedReceipt(body, sign_body(key.private_key, body))


def read_receipt(text: str) -> SignedReceipt:
    """Parse the `str()` of a signed receipt. Use `open_receipt` to verify it."""
    body, _, signature = text.partition("\n")
    return SignedReceipt(body, signature)


def open_receipt(signed: SignedReceipt, signer: str) -> ReceiptBody:
    """Return a receipt's content. Raises `RequestError` unless the key `signer` signed the receipt."""
    if (length := len(signed.body) + len(signed.signature)) > MAX_RECEIPT_CHARS:
        raise RequestError(f"A receipt has at most {MAX_RECEIPT_CHARS} characters, not {length}.")
    return ReceiptBody.opened(signed.body, is_signed_by(signer, signed.signature))
