"""The keeper's token and revocation list, which the keeper issues to itself: it has the authority's key."""

from __future__ import annotations

from collections.abc import Callable

from auth.credentials import Credentials
from coordinator.members.membership import Grant, Membership
from coordinator.store.engine import log_trouble

TOKEN_RENEWAL_SHARE = 2 / 3


def grant(membership: Membership, credentials: Credentials, run: str) -> Grant:
    """Admit the keeper's device to the run, and issue its token."""
    key = credentials.device_key
    return membership.grant_keeper(key.public_key, key.receipt_key(run).pseudonym)


def renew(membership: Membership, credentials: Credentials, clock: Callable[[], float]) -> None:
    """Replace the token when most of its time is over, and the revocation list always."""
    with log_trouble("the keeper's token and revocations are not renewed"):
        token = credentials.access_token(clock())
        if clock() > token.issued_at + TOKEN_RENEWAL_SHARE * (token.expires_at - token.issued_at):
            credentials.store_token(grant(membership, credentials, token.run).token_jwt)
        credentials.store_revocations(membership.revocations_jwt())
