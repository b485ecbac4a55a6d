"""Nonces for the control plane's challenges: short-lived, redeemed once, whichever replica issued them.

    nonce = random (12 bytes) | expiry, Unix seconds (4) | HMAC-SHA256 of these (16)

Who asks for a challenge costs nothing to keep: the coordinator knows its own nonces again by the code, whose key
follows from the TLS key, which all replicas share. Only those that were redeemed are stored, until they expire.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import delete
from sqlalchemy.orm import Session

from auth.errors import RequestError, StorageError
from coordinator.store.engine import Database
from coordinator.store.service_models import SpentNonce
from peer.protocol import NONCE_BYTES, NONCE_LIFETIME_S

_EXPIRY_BYTES, _CODE_BYTES = 4, 16
_RANDOM_BYTES = NONCE_BYTES - _EXPIRY_BYTES - _CODE_BYTES


def nonce_key(tls_key: Path) -> bytes:
    """The key of all replicas that serve with this TLS key; raises `StorageError`."""
    try:
        return hmac.digest(tls_key.read_bytes(), b"manyhands-nonces-v1", "sha256")
    except OSError as error:
        raise StorageError(f"Cannot read the TLS key {tls_key} ({error.strerror}).") from error


class NonceStore:
    """Issues nonces and takes each back once; safe to call from threads."""

    def __init__(self, key: bytes, database: Database, clock: Callable[[], float]) -> None:
        self._key, self._database, self._clock = key, database, clock

    def issue(self) -> bytes:
        """A new nonce, valid for `NONCE_LIFETIME_S`, in whole seconds."""
        expires_at = int(self._clock() + NONCE_LIFETIME_S)
        body = secrets.token_bytes(_RANDOM_BYTES) + expires_at.to_bytes(_EXPIRY_BYTES, "big")
        return body + self._code(body)

    def check(self, nonce: bytes) -> None:
        """Raise `RequestError` if the nonce is none of ours or too old; costs no look at the database."""
        body, code = nonce[:-_CODE_BYTES], nonce[-_CODE_BYTES:]
        ours = len(nonce) == NONCE_BYTES and hmac.compare_digest(code, self._code(body))
        if not ours or self._clock() >= _expiry(nonce):
            raise _stale()

    def redeem(self, nonce: bytes) -> None:
        """Accept a nonce once; raises `RequestError` if it is not ours, used or too old."""
        self.check(nonce)

        def spend(session: Session) -> None:
            if session.get(SpentNonce, nonce) is not None:
                raise _stale()
            session.execute(delete(SpentNonce).where(SpentNonce.expires_at <= self._clock()))
            session.add(SpentNonce(nonce=nonce, expires_at=float(_expiry(nonce))))

        self._database.transact(spend)  # of two at once one finds it spent when it tries again

    def _code(self, body: bytes) -> bytes:
        return hmac.new(self._key, body, hashlib.sha256).digest()[:_CODE_BYTES]


def _expiry(nonce: bytes) -> int:
    return int.from_bytes(nonce[_RANDOM_BYTES : _RANDOM_BYTES + _EXPIRY_BYTES], "big")


def _stale() -> RequestError:
    return RequestError("The challenge was answered already or is too old; ask for a new one.")
