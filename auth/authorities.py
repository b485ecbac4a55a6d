"""Whose signatures count in a run: the authority's, and for a time those of the key before it.

Kept in one small file, so that who reads it never sees half of a change.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache

from auth.errors import ExpiredTokenError, TokenError
from auth.tokens import AccessToken, Handover, RevocationList, handover_in, read_token, verify_revocations

CACHED_TOKENS = 4096
KEY_BYTES = 32
_BOTH = struct.Struct(f">{KEY_BYTES}s{KEY_BYTES}sd")

# Signatures never change, so each is checked once per process; expiry and revocation are checked every time.
_read_token = lru_cache(maxsize=CACHED_TOKENS)(read_token)


@dataclass(frozen=True)
class Authorities:
    """The keys of a run, Ed25519, 32 raw bytes each."""

    current: bytes
    previous: bytes | None = None
    until: float = 0.0  # Unix seconds: so long tokens of the previous key count

    @classmethod
    def from_bytes(cls, content: bytes) -> Authorities:
        """Read what `to_bytes` wrote; raises `TokenError`."""
        if len(content) == KEY_BYTES:
            return cls(content)
        if len(content) != _BOTH.size:
            raise TokenError("The file of the authority's key is damaged: join again.")
        return cls(*_BOTH.unpack(content))

    def to_bytes(self) -> bytes:
        """The current key alone where there is no other."""
        return self.current if self.previous is None else _BOTH.pack(self.current, self.previous, self.until)

    @classmethod
    def of(cls, current: bytes, handover: Handover | None) -> Authorities:
        """A key, and the one from which it has taken over, if it is that handover's."""
        if handover is None or handover.new_key != current:
            return cls(current)
        return cls(current, handover.old_key, handover.until)

    def after(self, signed: str, run: str) -> Authorities:
        """These, or those after the handover that a token or a list carries.

        It must have been checked by the current key: only then is what it carries the authority's, too.
        """
        handover = handover_in(signed, run)
        if handover is None or self.current not in (handover.old_key, handover.new_key):
            return self
        return self.of(handover.new_key, handover)

    def read_token(self, jwt: str, run: str, now: float) -> AccessToken:
        """Check a token's signature and contents but not its times; raises `TokenError`."""
        try:
            return _read_token(jwt, self.current, run)
        except TokenError:
            if self.previous is None:
                raise
        token = _read_token(jwt, self.previous, run)
        if now >= self.until:
            raise ExpiredTokenError(f"{token.member}'s access token is signed by a key that was replaced.")
        return token

    def read_revocations(self, jwt: str, run: str) -> RevocationList:
        """Check a list, which counts whichever of the two keys has signed it; raises `TokenError`."""
        try:
            return verify_revocations(jwt, self.current, run)
        except TokenError:
            if self.previous is None:
                raise
        return verify_revocations(jwt, self.previous, run)
