"""Tokens of any header and claims, made without a JOSE library, and devices that hold good ones."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from joserfc.util import urlsafe_b64decode, urlsafe_b64encode

from auth.credentials import Credentials
from auth.keys import AuthorityKey
from auth.tokens import AccessToken, RevocationList, Role, issue_revocations, issue_token


def admitted(
    directory: Path,
    authority: AuthorityKey,
    run: str,
    *,
    member: str = "",
    role: Role = "trainer",
    issued_at: float | None = None,
    lasts_s: float = 3600.0,
) -> Credentials:
    """A device that has joined the run, called as its directory, of this member or one of the same name."""
    credentials, device = Credentials(directory), directory.name
    key, now = credentials.device_key, time.time() if issued_at is None else issued_at
    keys = key.peer_id, key.public_key.decode()
    pseudonym = key.receipt_key(run).pseudonym
    token = AccessToken(member or device, device, *keys, role, run, now, now + lasts_s, pseudonym)
    revocations = issue_revocations(authority, RevocationList(run, 0, now, frozenset()))
    credentials.store_grant(run, authority.public_bytes, issue_token(authority, token), revocations)
    return credentials


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
