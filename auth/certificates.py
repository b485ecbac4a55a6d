"""Certificates of contribution: what a member has given to a run, signed by the run's authority.

A certificate is one line of canonical JSON that names its purpose and version, with an Ed25519 signature over these
bytes as they are. They begin with a brace, as nothing else does that this key signs (tokens are JWTs, which begin with
base64), so neither can pass for the other. Whoever holds the file and knows the authority's key can check it, for ever
and without asking anybody. It names the libp2p identities of the member's devices: who holds one of their keys can
prove to be the one it is about.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from auth.errors import RequestError, UnverifiedError
from auth.keys import AuthorityKey

LABEL = "manyhands-certificate-v1"
MAX_DEVICES = 256
MAX_CERTIFICATE_CHARS = 64 * 1024

_Count = Annotated[int, Field(ge=0, le=2**53)]
_Day = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
_Name = Annotated[str, Field(min_length=1, max_length=1024)]


@dataclass(frozen=True)
class Certificate:
    """A certificate of a member's contribution up to the moment of issue."""

    run: str
    member: str  # as the public sees the member
    number: int  # of the member in this run
    samples: int  # that receipts confirm
    steps: int  # global steps that these samples are in
    active_days: int  # UTC days with contributions
    first_day: str  # of them, such as 2026-11-22
    last_day: str
    training_s: int  # seconds that the devices computed, each counted
    averaged_bytes: int  # of others' numbers, as the devices say themselves
    devices: tuple[str, ...]  # libp2p identities (base58), the newest `MAX_DEVICES`
    issued_at: int  # Unix seconds


@dataclass(frozen=True)
class SignedCertificate:
    """A certificate's bytes, the signature over them, and by which key."""

    body: str
    signature: bytes
    authority_key: bytes  # Ed25519, 32 raw bytes


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    certificate: Literal["manyhands-certificate-v1"]
    run: _Name
    member: _Name
    number: _Count
    samples: _Count
    steps: _Count
    active_days: _Count
    first_day: _Day
    last_day: _Day
    training_s: _Count
    averaged_bytes: _Count
    devices: Annotated[list[Annotated[str, Field(pattern=r"^[1-9A-HJ-NP-Za-km-z]{1,64}$")]], Field(max_length=256)]
    issued_at: _Count


class _File(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    body: Annotated[str, Field(max_length=MAX_CERTIFICATE_CHARS)]
    signature: Annotated[str, Field(max_length=128)]
    authority_key: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def certificate_body(certificate: Certificate) -> str:
    """The canonical form: keys in order, no spaces, ASCII only; no two certificates have the same."""
    content = {"certificate": LABEL, **asdict(certificate)}
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def sign_certificate(authority: AuthorityKey, certificate: Certificate) -> SignedCertificate:
    """The certificate under the run's own key."""
    body = certificate_body(certificate)
    return SignedCertificate(body, authority.private_key.sign(body.encode()), authority.public_bytes)


def write_certificate(signed: SignedCertificate) -> str:
    """The file's text: JSON with the signed bytes as a text of their own, so that nothing on the way changes them."""
    content = {
        "body": signed.body,
        "signature": base64.b64encode(signed.signature).decode(),
        "authority_key": signed.authority_key.hex(),
    }
    return json.dumps(content, indent=1) + "\n"


def read_certificate(text: str) -> SignedCertificate:
    """Take a file apart; raises `RequestError`. It is proved by `open_certificate` only."""
    try:
        if len(text) > MAX_CERTIFICATE_CHARS:
            raise RequestError(f"A certificate has at most {MAX_CERTIFICATE_CHARS} characters, not {len(text)}.")
        file = _File.model_validate_json(text)
        signature = base64.b64decode(file.signature, validate=True)
    except (ValidationError, binascii.Error) as error:
        raise RequestError("The file is no certificate of contribution that this version knows.") from error
    return SignedCertificate(file.body, signature, bytes.fromhex(file.authority_key))


def open_certificate(signed: SignedCertificate) -> Certificate:
    """The certificate, if the key that it names has signed it in its canonical form; raises `UnverifiedError`.

    That this key is the run's own is the caller's to compare.
    """
    try:
        Ed25519PublicKey.from_public_bytes(signed.authority_key).verify(signed.signature, signed.body.encode())
        body = _Body.model_validate_json(signed.body)
    except (InvalidSignature, ValidationError, ValueError) as error:
        raise UnverifiedError("The certificate was changed, or is not signed with the key that it names.") from error
    fields = body.model_dump(exclude={"certificate"})
    certificate = Certificate(**{**fields, "devices": tuple(body.devices)})
    if certificate_body(certificate) != signed.body:
        raise UnverifiedError("The certificate is not in its canonical form.")
    return certificate
