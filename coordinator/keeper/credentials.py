"""The keeper's token and revocation list, signed by the keeper with the authority's key."""

from __future__ import annotations

import logging
from collections.abc import Callable

from auth.credentials import Credentials
from auth.errors import StorageError
from coordinator.members.membership import Grant, Membership
from coordinator.store.engine import in_one_sentence

logger = logging.getLogger(__name__)
TOKEN_RENEWAL_SHARE = 2 / 3


def grant(membership: Membership, credentials: Credentials, run: str) -> Grant:
    """Admit the keeper's device to the run, and issue its token."""
    key = credentials.device_key
    return membership.grant_keeper(key.public_key, key.receipt_key(run).pseudonym)


def renew(membership: Membership, credentials: Credentials, clock: Callable[[], float]) -> None:
    """Renew the token after two thirds of its lifetime; always update the revocation list.

    A storage error is only logged: this disk may be full while the database still works.
    """
    try:
        with in_one_sentence():
            token = credentials.access_token(clock())
            if clock() > token.issued_at + TOKEN_RENEWAL_SHARE * (token.expires_at - token.issued_at):
                credentials.store_token(grant(membership, credentials, token.run).token_jwt)
            credentials.store_revocations(membership.revocations_jwt())
    except StorageError as error:
        logger.error("the keeper's token and revocations are not renewed: %s", error)
