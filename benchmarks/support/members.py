"""Admitted devices, for benchmarks that start peers without a coordinator."""

from __future__ import annotations

import time
from pathlib import Path

from auth.credentials import Credentials
from auth.keys import AuthorityKey
from auth.tokens import AccessToken, RevocationList, Role, issue_revocations, issue_token

LIFETIME_S = 24 * 3600.0


def admit(directory: Path, authority: AuthorityKey, role: Role, run: str) -> str:
    """Create credentials for a new device of a new member; return the directory of the credentials."""
    credentials = Credentials(directory)
    key, now, name = credentials.device_key, time.time(), directory.name
    pseudonym = key.receipt_key(run).pseudonym
    token = AccessToken(name, name, key.peer_id, key.public_key.decode(), role, run, now, now + LIFETIME_S, pseudonym)
    revocations = issue_revocations(authority, RevocationList(run, 0, now, frozenset()))
    credentials.store_grant(run, authority.public_bytes, issue_token(authority, token), revocations)
    return str(directory)
