"""Receipts: what a device signs of what others brought, and what nobody can make of it."""

from __future__ import annotations

import base64
import json
import math

import pytest

from auth.errors import RequestError
from auth.keys import challenge_bytes
from auth.receipts import (
    MAX_COUNT,
    MAX_RECEIPT_CHARS,
    MAX_SENDERS,
    ReceiptBody,
    SignedReceipt,
    open_receipt,
    read_receipt,
    sign_receipt,
    whole_samples,
)
from peer.protocol import MAX_PEER_MESSAGE_BYTES
from tests.support.receipts import key_of

ADA, BOB = key_of("ada"), key_of("bob")
RECEIPT = ReceiptBody(run="sahaj-বাংলা", era=2, step=7, samples={ADA.peer_id: 12, BOB.peer_id: 20})


def test_a_receipt_comes_back_as_it_was_signed() -> None:
    """Through its text and with the signer's public key alone."""
    signed = read_receipt(str(sign_receipt(ADA, RECEIPT)))
    assert open_receipt(signed, ADA.public_key) == RECEIPT
    assert json.loads(signed.body)["receipt"] == "manyhands-receipt-v1"


def test_the_order_of_the_senders_changes_nothing() -> None:
    """Equal receipts have equal bytes."""
    reordered = RECEIPT.model_copy(update={"samples": dict(reversed(RECEIPT.samples.items()))})
    assert RECEIPT.body == reordered.body


@pytest.mark.parametrize(
    "changed", [{"run": "other"}, {"era": 3}, {"step": 8}, {"samples": {ADA.peer_id: 13, BOB.peer_id: 20}}]
)
def test_a_changed_receipt_is_refused(changed: dict[str, object]) -> None:
    """Not a digit of it can be changed, nor can it be signed by another."""
    signed = sign_receipt(ADA, RECEIPT)
    forged = SignedReceipt(RECEIPT.model_copy(update=changed).body, signed.signature)
    for claimed, key in ((forged, ADA), (signed, BOB)):
        with pytest.raises(RequestError, match="not signed with the key"):
            open_receipt(claimed, key.public_key)


@pytest.mark.parametrize(
    "body",
    [
        RECEIPT.body.replace(",", ", "),
        RECEIPT.body.replace('"era":2', '"era":2,"era":2'),
        RECEIPT.body.replace("receipt-v1", "receipt-v2"),
        RECEIPT.body.replace('"step":7', '"step":7.0'),
        RECEIPT.body.replace('"step":7', '"step":0'),
        RECEIPT.body.replace(":12", ":0"),
        RECEIPT.body.replace(":12", f":{MAX_COUNT + 1}"),
        RECEIPT.body.replace(":12", ":" + "9" * 5000),
        RECEIPT.body.replace(BOB.peer_id, "../" + BOB.peer_id),
        RECEIPT.body.replace("}}", "}").replace('"samples"', '"more"'),
        "[" * 20_000,
        "বাংলা",
        "",
    ],
)
def test_what_is_signed_in_another_form_is_refused(body: str) -> None:
    """One receipt has one spelling; a valid signature does not make another one of it."""
    with pytest.raises(RequestError):
        open_receipt(SignedReceipt(body, ADA.sign(body.encode())), ADA.public_key)


@pytest.mark.parametrize("body", ["বাংলা", "\ud800", "[" * (MAX_RECEIPT_CHARS + 1)])
def test_a_body_that_is_too_long_or_not_ascii_is_refused_unread(body: str) -> None:
    """Before anybody spends time on its signature; a lone surrogate could not even be encoded for that."""
    with pytest.raises(RequestError, match=r"was changed|has at most"):
        open_receipt(SignedReceipt(body, b""), ADA.public_key)


@pytest.mark.parametrize("text", ["", "{}", "{}\nnot base64!", "{}\n\xff", "x" * (MAX_RECEIPT_CHARS + 1)])
def test_what_is_no_receipt_is_refused(text: str) -> None:
    """Whatever arrives in its place: one sentence, and nothing is believed."""
    with pytest.raises(RequestError):
        open_receipt(read_receipt(text), ADA.public_key)


def test_no_other_signature_passes_for_one() -> None:
    """A challenge that a device answers never begins like a receipt."""
    assert not challenge_bytes("session", "{", b"{" * 32, ADA.public_key).startswith(b"{")
    assert RECEIPT.body.startswith("{")


def test_weights_become_whole_samples() -> None:
    """Who brought nothing, or no number, is left out; the rest is rounded and bounded."""
    weights = {"a": 3.0, "b": 0.0, "c": math.nan, "d": math.inf, "e": -4.0, "f": 1e30, "g": 2.6}
    assert whole_samples(weights) == {"f": MAX_COUNT, "a": 3, "g": 3}


def test_the_largest_group_fits_a_message() -> None:
    """Of more senders than a receipt names the largest stay, and it can travel with its report."""
    identity = "Qm" + "Z" * 44
    weights = {f"{number:06}"[:6].replace("0", "z") + identity[6:]: float(number) for number in range(1, 2000)}
    samples = whole_samples(weights | {identity: 1e9})
    assert len(samples) == MAX_SENDERS
    assert max(samples.values()) == 10**9
    largest = ReceiptBody(run="r" * 64, era=MAX_COUNT, step=MAX_COUNT, samples=dict.fromkeys(samples, MAX_COUNT))
    text = str(sign_receipt(ADA, largest))
    assert len(text) <= MAX_RECEIPT_CHARS < MAX_PEER_MESSAGE_BYTES
    assert len(base64.b64decode(text.partition("\n")[2])) == 256
