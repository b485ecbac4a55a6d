"""The members of a rehearsed swarm, with stand-ins for their tokens, declarations and signatures."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Collection

from auth.tokens import AccessToken, Role
from peer.averaging.declarations import Declaration

REMEMBERED = 4  # newest declarations of a device; older ones are for steps that others have taken


class RehearsedMembers:
    """The devices that have joined, and their declarations (`auth.swarm.directory`)."""

    def __init__(self) -> None:
        self._tokens: dict[str, AccessToken] = {}  # by device
        self._declared: dict[bytes, Declaration] = {}
        self._newest: dict[str, list[bytes]] = {}  # device -> its newest declarations
        self._numbers = itertools.count()

    def joins(self, name: str, member: str, role: Role) -> None:
        """Admit a device."""
        self._tokens[name] = AccessToken(member, name, name, name, role, "", 0, math.inf, name)

    def token_of(self, peer: str) -> AccessToken | None:
        """Return a device's token."""
        return self._tokens.get(peer)

    async def admitted(self, peers: Collection[str], roles: Collection[str]) -> set[str]:
        """Return those devices that have joined in one of the roles."""
        return {peer for peer in peers if (token := self.token_of(peer)) is not None and token.role in roles}

    def declare(self, name: str, said: Declaration) -> bytes:
        """Return a stand-in for a device's signed declaration."""
        declared = b"%d" % next(self._numbers)
        self._declared[declared] = said
        newest = self._newest.setdefault(name, [])
        newest.append(declared)
        if len(newest) > REMEMBERED:
            del self._declared[newest.pop(0)]
        return declared

    def opened(self, declared: bytes, _token: AccessToken) -> Declaration:
        """Return a declaration. Raises `ValueError` if its device has made many others since."""
        if declared not in self._declared:
            raise ValueError("The declaration is too old.")
        return self._declared[declared]


def signature(name: str, content: bytes) -> bytes:
    """Return a stand-in for a device's signature."""
    return hashlib.blake2b(content, key=name.encode(), digest_size=8).digest()


def verify(key: bytes, content: bytes, signed: bytes) -> bool:
    """Return whether a signature is of the device with this key, which is its name."""
    return signature(key.decode(), content) == signed
