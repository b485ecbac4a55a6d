"""Certificates of contribution: what a changed one is worth."""

from __future__ import annotations

import base64

import pytest

from auth.certificates import open_certificate, read_certificate, sign_certificate, write_certificate
from auth.errors import RequestError, UnverifiedError
from auth.keys import AuthorityKey
from auth.statements import sign_body
from tests.support.certificates import CERTIFICATE


def test_a_certificate_survives_a_file() -> None:
    """What was signed, written, read and opened is the same, whatever the member is called."""
    signed = sign_certificate(AuthorityKey.generate(), CERTIFICATE)
    again = read_certificate(write_certificate(signed))
    assert again == signed
    assert open_certificate(again) == CERTIFICATE


def test_a_changed_certificate_proves_nothing() -> None:
    """Neither more samples, nor another name, nor another's key."""
    signed = sign_certificate(AuthorityKey.generate(), CERTIFICATE)
    for changed in (
        {"body": CERTIFICATE.model_copy(update={"samples": 10**9}).body},
        {"body": signed.body.replace("sahajbert", "another")},
        {"authority_key": AuthorityKey.generate().public_bytes.hex()},
        {"signature": base64.b64encode(bytes(64)).decode()},
        {"signature": "!"},
    ):
        with pytest.raises(UnverifiedError, match="changed"):
            open_certificate(signed.model_copy(update=changed))


def test_what_the_authority_signs_elsewhere_is_no_certificate() -> None:
    """A signature over other bytes of the same key opens nothing."""
    authority = AuthorityKey.generate()
    other = '{"receipt":"manyhands-receipt-v1"}'
    signed = sign_certificate(authority, CERTIFICATE)
    with pytest.raises(UnverifiedError):
        open_certificate(
            signed.model_copy(update={"body": other, "signature": sign_body(authority.private_key, other)})
        )


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"body":"","signature":"!","authority_key":""}', "x" * 70_000])
def test_what_is_no_certificate_is_refused(text: str) -> None:
    """Files of strangers are read by their form."""
    with pytest.raises(RequestError):
        read_certificate(text)
