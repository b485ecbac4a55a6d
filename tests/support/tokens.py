"""Tokens of any header and claims, made without a JOSE library."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from joserfc.util import urlsafe_b64decode, urlsafe_b64encode

from auth.keys import AuthorityKey


def encoded(content: object) -> str:
    """One part of a token."""
    return urlsafe_b64encode(json.dumps(content).encode()).decode()


def claims_of(text: str) -> dict[str, Any]:
    """The claims of a token, which nobody has checked."""
    claims: dict[str, Any] = json.loads(urlsafe_b64decode(text.split(".")[1].encode()))
    return claims


def token_of(header: object, claims: object, sign: AuthorityKey | Callable[[bytes], bytes]) -> str:
    """A token of this content under a signature."""
    signed = f"{encoded(header)}.{encoded(claims)}"
    signature = (sign.private_key.sign if isinstance(sign, AuthorityKey) else sign)(signed.encode())
    return f"{signed}.{urlsafe_b64encode(signature).decode()}"
