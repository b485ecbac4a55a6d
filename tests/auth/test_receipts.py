"""Receipts: what a device signs of what others brought, and what nobody can make of it."""

from __future__ import annotations

import hashlib
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
from auth.statements import sign_body
from peer.protocol import MAX_PEER_MESSAGE_BYTES
from tests.support.receipts import key_of

RUN = "sahaj-বাংলা"
ADA, BOB = key_of("ada").receipt_key(RUN), key_of("bob").receipt_key(RUN)
RECEIPT = ReceiptBody(run=RUN, era=2, step=7, samples={ADA.pseudonym: 12, BOB.pseudonym: 20})


def test_a_receipt_comes_back_as_it_was_signed() -> None:
    """Through its text and with the signer's pseudonym alone."""
    signed = read_receipt(str(sign_receipt(ADA, RECEIPT)))
    assert open_receipt(signed, ADA.pseudonym) == RECEIPT
    assert json.loads(signed.body)["receipt"] == "manyhands-receipt-v2"


def test_a_receipt_tells_no_libp2p_identity() -> None:
    """Neither in its text nor by the key that signed: who knows identity and public key learns no pseudonym of them."""
    text = str(sign_receipt(ADA, RECEIPT))
    for device in (key_of("ada"), key_of("bob")):
        assert device.peer_id not in text
        assert not open_receipt_with(device.public_key.hex()[:64], text)
        assert not open_receipt_with(hashlib.sha256(device.public_key).hexdigest(), text)


def open_receipt_with(signer: str, text: str) -> bool:
    """Whether this pseudonym is the signer's."""
    try:
        open_receipt(read_receipt(text), signer)
    except RequestError:
        return False
    return True


def test_the_order_of_the_senders_changes_nothing() -> None:
    """Equal receipts have equal bytes."""
    reordered = RECEIPT.model_copy(update={"samples": dict(reversed(RECEIPT.samples.items()))})
    assert RECEIPT.body == reordered.body


@pytest.mark.parametrize(
    "changed", [{"run": "other"}, {"era": 3}, {"step": 8}, {"samples": {ADA.pseudonym: 13, BOB.pseudonym: 20}}]
)
def test_a_changed_receipt_is_refused(changed: dict[str, object]) -> None:
    """Not a digit of it can be changed, nor can it be signed by another."""
    signed = sign_receipt(ADA, RECEIPT)
    forged = SignedReceipt(RECEIPT.model_copy(update=changed).body, signed.signature)
    for claimed, key in ((forged, ADA), (signed, BOB)):
        with pytest.raises(RequestError, match="not signed with the key"):
            open_receipt(claimed, key.pseudonym)


@pytest.mark.parametrize(
    "body",
    [
        RECEIPT.body.replace("receipt-v2", "receipt-v1"),
        RECEIPT.body.replace('"step":7', '"step":0'),
        RECEIPT.body.replace(":12", ":0"),
        RECEIPT.body.replace(":12", f":{MAX_COUNT + 1}"),
        RECEIPT.body.replace(BOB.pseudonym, key_of("bob").peer_id),
        RECEIPT.body.replace(BOB.pseudonym, BOB.pseudonym.upper()),
    ],
)
def test_what_is_signed_in_another_form_is_refused(body: str) -> None:
    """One receipt has one spelling; a valid signature does not make another one of it."""
    with pytest.raises(RequestError):
        open_receipt(SignedReceipt(body, sign_body(ADA.private_key, body)), ADA.pseudonym)


@pytest.mark.parametrize("body", ["বাংলা", "\ud800", "[" * (MAX_RECEIPT_CHARS + 1)])
def test_a_body_that_is_too_long_or_not_ascii_is_refused_unread(body: str) -> None:
    """Before anybody spends time on its signature; a lone surrogate could not even be encoded for that."""
    with pytest.raises(RequestError, match=r"was changed|has at most"):
        open_receipt(SignedReceipt(body, ""), ADA.pseudonym)


@pytest.mark.parametrize("text", ["", "{}", "{}\nnot base64!", "{}\n\xff", "x" * (MAX_RECEIPT_CHARS + 1)])
def test_what_is_no_receipt_is_refused(text: str) -> None:
    """Whatever arrives in its place: one sentence, and nothing is believed."""
    with pytest.raises(RequestError):
        open_receipt(read_receipt(text), ADA.pseudonym)


def test_no_other_signature_passes_for_one() -> None:
    """A challenge that a device answers never begins like a receipt."""
    assert not challenge_bytes("session", "{", b"{" * 32, key_of("ada").public_key).startswith(b"{")
    assert RECEIPT.body.startswith("{")


def test_weights_become_whole_samples() -> None:
    """Who brought nothing, or no number, is left out; the rest is rounded and bounded."""
    weights = {"a": 3.0, "b": 0.0, "c": math.nan, "d": math.inf, "e": -4.0, "f": 1e30, "g": 2.6}
    assert whole_samples(weights) == {"f": MAX_COUNT, "a": 3, "g": 3}


def test_the_largest_group_fits_a_message() -> None:
    """Of more senders than a receipt names the largest stay, and it can travel with its report."""
    weights = {f"{number:064}": float(number) for number in range(1, 2000)}
    samples = whole_samples(weights | {"f" * 64: 1e9})
    assert len(samples) == MAX_SENDERS
    assert max(samples.values()) == 10**9
    largest = ReceiptBody(run="r" * 64, era=MAX_COUNT, step=MAX_COUNT, samples=dict.fromkeys(samples, MAX_COUNT))
    text = str(sign_receipt(ADA, largest))
    assert len(text) <= MAX_RECEIPT_CHARS < MAX_PEER_MESSAGE_BYTES
