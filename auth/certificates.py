"""Certificates of contribution: a member's share in a run, signed by the run's authority.

A certificate is a statement (`auth.statements`). Anybody with the file and the authority's key can
check it offline. It names the pseudonyms of the member's devices (`auth.keys.ReceiptKey`), so a
member can prove with a device's key that the certificate is theirs.
"""

from __future__ import annotations

import json
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from auth.errors import RequestError, UnverifiedError
from auth.keys import AuthorityKey
from auth.statements import Statement, is_signed_by, sign_body

MAX_DEVICES = 256
MAX_CERTIFICATE_CHARS = 64 * 1024

_Count = Annotated[int, Field(ge=0, le=2**53)]
_Day = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
_Name = Annotated[str, Field(min_length=1, max_length=1024)]
_Device = Annotated[str, Field(pattern=r"^([0-9a-f]{64}|[1-9A-HJ-NP-Za-km-z]{1,64})$")]


class Certificate(Statement):
    """A certificate of a member's contribution up to the moment of issue."""

    noun: ClassVar[str] = "certificate"
    certificate: Literal["manyhands-certificate-v1", "manyhands-certificate-v2"] = "manyhands-certificate-v2"
    run: _Name
    member: _Name  # public name of the member
    number: _Count  # the member's number in this run
    samples: _Count  # confirmed by receipts
    steps: _Count  # global steps that contain these samples
    active_days: _Count  # UTC days with contributions
    first_day: _Day  # such as 2026-11-22
    last_day: _Day
    training_s: _Count  # seconds of computation, summed over devices
    averaged_bytes: _Count  # others' values that the devices averaged, by their own reports
    # pseudonyms in receipts of the newest devices; version 1 has libp2p identities (base58) instead
    devices: Annotated[tuple[_Device, ...], Field(max_length=MAX_DEVICES)]
    issued_at: _Count  # Unix seconds


class SignedCertificate(BaseModel):
    """A certificate's text, its signature and the signing key, as they are written to a file."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    body: Annotated[str, Field(max_length=MAX_CERTIFICATE_CHARS)]
    signature: Annotated[str, Field(max_length=128)]  # base64
    authority_key: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # Ed25519


def sign_certificate(authority: AuthorityKey, certificate: Certificate) -> SignedCertificate:
    """Sign a certificate with the run's authority key."""
    body = certificate.body
    signature = sign_body(authority.private_key, body)
    return SignedCertificate(body=body, signature=signature, authority_key=authority.public_bytes.hex())


def write_certificate(signed: SignedCertificate) -> str:
    """Return the file's text: JSON that holds the signed body as one string, so it stays intact."""
    return json.dumps(signed.model_dump(), indent=1) + "\n"


def read_certificate(text: str) -> SignedCertificate:
    """Parse a certificate file without verifying it. Raises `RequestError` for any other text."""
    if len(text) > MAX_CERTIFICATE_CHARS:
        raise RequestError(f"A certificate has at most {MAX_CERTIFICATE_CHARS} characters, not {len(text)}.")
    try:
        return SignedCertificate.model_validate_json(text)
    except ValidationError as error:
        raise RequestError("The file is no certificate of contribution that this version knows.") from error


def open_certificate(signed: SignedCertificate) -> Certificate:
    """Return the certificate.

    Raises `UnverifiedError` unless the key that it names signed its canonical form. The caller has
    to check that this key is the run's own.
    """
    try:
        return Certificate.opened(signed.body, is_signed_by(signed.authority_key, signed.signature))
    except RequestError as error:
        raise UnverifiedError(str(error)) from error
