"""Signed statements: canonical JSON, signatures, and verification.

A statement is one line of JSON that contains a purpose and a version. It begins with a brace, but
other data signed with the same keys does not: challenges begin with a length, DHT records with a
MessagePack array, and tokens with base64. Signatures of such data are therefore not valid for
statements. Each content has exactly one canonical form; other forms are rejected.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import ClassVar, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import BaseModel, ConfigDict

from auth.errors import RequestError

_AnyStatement = TypeVar("_AnyStatement", bound="Statement")


class Statement(BaseModel):
    """A base class for signed content; subclasses add fields, including one for purpose and version."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    noun: ClassVar[str]  # name for this kind of statement in error messages

    @property
    def body(self) -> str:
        """The canonical form: JSON with sorted keys, no spaces, ASCII only; unique for each content."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def opened(cls: type[_AnyStatement], body: str, is_signed: Callable[[bytes], bool]) -> _AnyStatement:
        """Parse a statement. Raises `RequestError` unless it is signed and in canonical form."""
        if not (body.isascii() and is_signed(body.encode())):
            raise RequestError(f"The {cls.noun} was changed, or was not signed with the key that belongs to it.")
        try:
            statement = cls.model_validate_json(body)
            canonical = statement.body
        except ValueError as error:  # also raised for numbers that JSON cannot represent
            raise RequestError(f"The {cls.noun} is not of the form that this version knows.") from error
        if canonical != body:
            raise RequestError(f"The {cls.noun} is not in its canonical form.")
        return statement


def sign_body(key: Ed25519PrivateKey, body: str) -> str:
    """Return the Ed25519 signature of a statement's body, in base64."""
    return base64.b64encode(key.sign(body.encode())).decode()


def is_signed_by(key: str, signature: str) -> Callable[[bytes], bool]:
    """Return a function that checks data against `signature` (base64) and `key` (Ed25519, hex)."""

    def is_signed(content: bytes) -> bool:
        try:
            public_key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key))
            public_key.verify(base64.b64decode(signature, validate=True), content)
        except (InvalidSignature, ValueError):
            return False
        return True

    return is_signed
