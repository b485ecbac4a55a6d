"""Who logged in: the little that is kept of an ID token's claims."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from auth.openid.provider import Provider

MAX_NAME_CHARS = 64
MAX_ORGANISATIONS = 1000
_LOWER = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")


@dataclass(frozen=True)
class Identity:
    """An account at a provider. The subject is what it stays, the user name what it is called at present."""

    provider: str  # its name in the settings
    issuer: str
    subject: str
    username: str  # empty where the provider tells none
    organisations: frozenset[str]  # normalised; asked at this login, never kept

    @property
    def label(self) -> str:
        """As allowlists spell it: `hf:alice`, or `hf-sub:1234` without a user name."""
        return f"{self.provider}:{self.username}" if self.username else f"{self.provider}-sub:{self.subject}"


def normalise(name: str) -> str:
    """A name as names are compared.

    ASCII letters lose their case, and nothing else changes but its Unicode form: whatever merges more letters than
    that (full-width ones, the Kelvin sign) would let somebody register another's name.
    """
    return unicodedata.normalize("NFC", name.strip().translate(_LOWER))  # in this order: NFC makes the Kelvin sign a K


def identity_of(name: str, provider: Provider, issuer: str, claims: dict[str, Any]) -> Identity:
    """The identity in verified claims; what is missing, too long or not printable is left out."""
    usernames = [text for text in _texts(claims, provider.username_claim) if _is_name(text)]
    if provider.username_claim == "email" and claims.get("email_verified") is not True:
        usernames = []  # anybody can claim an address
    organisations = _texts(claims, provider.organisation_claim) if provider.organisation_claim else iter(())
    return Identity(
        provider=name,
        issuer=issuer,
        subject=str(claims["sub"]),
        username=usernames[0] if len(usernames) == 1 else "",
        organisations=frozenset(
            normalise(text) for text, _ in zip(organisations, range(MAX_ORGANISATIONS), strict=False) if _is_name(text)
        ),
    )


def names_missing(provider: Provider, claims: dict[str, Any]) -> bool:
    """Whether the claims lack what the provider's settings name, so that its userinfo endpoint has to be asked."""
    paths = [provider.username_claim] + ([provider.organisation_claim] if provider.organisation_claim else [])
    return any(path not in claims and re.split(r"\.|\[\]", path)[0] not in claims for path in paths)


def _texts(claims: Any, path: str) -> Iterator[str]:
    """The texts at a path such as `orgs[].preferred_username`; a claim whose whole name is the path comes first."""
    if isinstance(claims, dict) and path in claims:
        found = claims[path]
        yield from (text for text in (found if isinstance(found, list) else [found]) if isinstance(text, str))
        return
    found = [claims]
    for key in path.split("."):
        found = [value for parent in found for value in _step(parent, key)]
    yield from (text for text in found if isinstance(text, str))


def _step(parent: Any, key: str) -> list[Any]:
    value = parent.get(key.removesuffix("[]")) if isinstance(parent, dict) else None
    return value if key.endswith("[]") and isinstance(value, list) else [value]


def _is_name(text: str) -> bool:
    return 1 <= len(text) <= MAX_NAME_CHARS and text.isprintable() and text == text.strip()
