"""Certificates of contribution: a member's share in a run, signed by the run's authority.

A certificate is a statement (`auth.statements`) that anyone with the file and the authority's key
can verify offline. The certificate lists the pseudonyms of the member's devices
(`auth.keys.ReceiptKey`), so a member can prove ownership of the certificate with a device's key.
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
    """A member's contribution up to the time of issue."""

    noun: ClassVar[str] = "certificate"
    certificate: Literal["manyhands-certificate-v1", "manyhands-certificate-v2"] = "manyhands-certificate-v2"
    run: _Name
    member: _Name  # the member's public name
    number: _Count  # the member's number in this run
    samples: _Count  # number of samples confirmed by receipts
    steps: _Count  # number of global steps to which these samples contributed
    active_days: _Count  # number of UTC days with at least one contribution
    first_day: _Day  # ISO 8601 date, UTC
    last_day: _Day
    training_s: _Count  # computation time in seconds, summed over the member's devices
    averaged_bytes: _Count  # bytes received from other peers and averaged, as reported by the devices
    # Receipt pseudonyms of the member's newest devices; version 1 had libp2p peer IDs (base58).
    devices: Annotated[tuple[_Device, ...], Field(max_length=MAX_DEVICES)]
    issued_at: _Count  # Unix time in seconds


class SignedCertificate(BaseModel):
    """The content of a certificate file: the certificate's text, its signature and the signing key."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    body: Annotated[str, Field(max_length=MAX_CERTIFICATE_CHARS)]
    signature: Annotated[str, Field(max_length=128)]  # base64
    authority_key: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # Ed25519 public key, hexadecimal


def sign_certificate(authority: AuthorityKey, certificate: Certificate) -> SignedCertificate:
    """Sign a certificate with the run's authority key."""
    body = certificate.body
    signature = sign_body(authority.private_key, body)
    return SignedCertificate(body=body, signature=signature, authority_key=authority.public_bytes.hex())


def write_certificate(signed: SignedCertificate) -> str:
    """Serialize a certificate as JSON. The signed body is a string, so reformatting is safe."""
    return json.dumps(signed.model_dump(), indent=1) + "\n"


def read_certificate(text: str) -> SignedCertificate:
    """Parse a certificate file without verification. Raises `RequestError` if malformed."""
    if len(text) > MAX_CERTIFICATE_CHARS:
        raise RequestError(f"A certificate has at most {MAX_CERTIFICATE_CHARS} characters, not {len(text)}.")
    try:
        return SignedCertificate.model_validate_json(text)
    except ValidationError as error:
        raise RequestError("The file is no certificate of contribution that this version knows.") from error


def open_certificate(signed: SignedCertificate) -> Certificate:
    """Return a certificate's contents after verifying its signature.

    Raises `UnverifiedError` unless the body is canonical and signed with the key in the file.
    The caller must check that this key belongs to the run.
    """
    try:
        return Certificate.opened(signed.body, is_signed_by(signed.authority_key, signed.signature))
    except RequestError as error:
        raise UnverifiedError(str(error)) from error
