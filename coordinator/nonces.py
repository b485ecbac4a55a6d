"""Nonces for the control plane's challenges: random, short-lived, redeemed once, and never too many of them."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from auth.errors import RequestError
from peer.protocol import NONCE_BYTES, NONCE_LIFETIME_S

CAPACITY = 16_384  # outstanding; a flood of challenges pushes the oldest out instead of filling the memory


class NonceStore:
    """Issues nonces and takes each back once; used from one event loop."""

    def __init__(self, clock: Callable[[], float], capacity: int = CAPACITY) -> None:
        self._clock, self._capacity = clock, capacity
        self._expiry: dict[bytes, float] = {}  # in order of issue, so the first expires first

    def issue(self) -> bytes:
        """A new nonce, valid for `NONCE_LIFETIME_S`."""
        now = self._clock()
        while self._expiry:
            oldest = next(iter(self._expiry))
            if self._expiry[oldest] > now and len(self._expiry) < self._capacity:
                break
            del self._expiry[oldest]
        nonce = secrets.token_bytes(NONCE_BYTES)
        self._expiry[nonce] = now + NONCE_LIFETIME_S
        return nonce

    def redeem(self, nonce: bytes) -> None:
        """Accept a nonce once; raises `RequestError` if it is unknown, used or too old."""
        expires_at = self._expiry.pop(nonce, None)
        if expires_at is None or expires_at <= self._clock():
            raise RequestError("The challenge was answered already or is too old; ask for a new one.")

    def __len__(self) -> int:
        return len(self._expiry)
