"""Settings of an identity provider, validation of its URLs, and the identity returned by a login.

An `Identity` contains the few claims of an ID token that the coordinator uses.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

WELL_KNOWN = "/.well-known/openid-configuration"
HUGGING_FACE = "hf"
MAX_URL_CHARS = 2000
# Defaults for well-known providers, which need only a client ID; a run's settings take precedence.
_KNOWN: dict[str, dict[str, Any]] = {
    HUGGING_FACE: {
        "title": "Hugging Face",
        "discovery": f"https://huggingface.co{WELL_KNOWN}",
        "organisation_claim": "orgs[].preferred_username",
    },
}
ProviderName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9]{0,15}$")]  # a dash would make `hf-org:` ambiguous
MAX_NAME_CHARS = 64
MAX_ORGANISATIONS = 1000
_LOWER = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")


def require_safe_url(url: str) -> str:
    """Return the URL. Raises `ValueError` unless the URL uses HTTPS, or HTTP on this machine."""
    parts = urlsplit(url)
    if len(url) > MAX_URL_CHARS or not url.isascii() or not url.isprintable() or " " in url or not parts.hostname:
        raise ValueError(f"the address {url!r:.80} cannot be used")
    if parts.username is not None or parts.password is not None:
        raise ValueError("an address must not hold a user's name or password")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname)):
        raise ValueError(f"the address {url!r:.80} must begin with https:// (http:// is for this machine only)")
    return url


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, without a DNS query."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


SafeUrl = Annotated[str, AfterValidator(require_safe_url)]


class Provider(BaseModel):
    """The settings of a provider; all other parameters come from its discovery document."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    discovery: SafeUrl
    """Address that ends in `/.well-known/openid-configuration`: HTTPS, or HTTP on this machine; for `hf`, by default
    Hugging Face's."""
    client_id: str = Field(min_length=1, max_length=500)
    """Client id of this coordinator at the provider; ID tokens for another audience are refused."""
    client_secret_file: str | None = None
    """File (mode 0600) with the client's secret, if the provider requires one; relative to the run's directory."""
    title: str = Field("", max_length=40)
    """Name of the provider shown to volunteers; by default its short name."""
    scopes: tuple[str, ...] = Field(("openid", "profile"), strict=False)
    """Scopes to request; `openid` must be among them."""
    # Lengths are not part of the patterns: a bounded Unicode class in a regex takes 15 MB in each
    # process.
    username_claim: str = Field("preferred_username", max_length=200, pattern=r"^[\w.\[\]:/-]+$")
    """Claim with the user name; `email` is accepted only if the provider has verified the address."""
    organisation_claim: str = Field("", max_length=200, pattern=r"^[\w.\[\]:/-]*$")
    """Claim with the organisations, required for `NAME-org:` entries of the allowlist; for `hf`, by default
    `orgs[].preferred_username`."""
    flow: Literal["auto", "device", "page"] = "auto"
    """Flow of the login: the device flow, the page, or (`auto`) the device flow if the provider supports it, else
    the page."""

    @model_validator(mode="after")
    def _is_openid(self) -> Provider:
        if "openid" not in self.scopes:
            raise ValueError("`scopes` must contain openid")
        if not self.discovery.endswith(WELL_KNOWN):
            raise ValueError(f"`discovery` ({self.discovery}) must end with {WELL_KNOWN}")
        return self


def with_known(providers: Any) -> Any:
    """Return the providers' settings, with defaults for well-known providers."""
    if not isinstance(providers, dict):
        return providers
    return {
        name: {**_KNOWN.get(name, {}), **values} if isinstance(values, dict) else values
        for name, values in providers.items()
    }


@dataclass(frozen=True)
class Identity:
    """An account at a provider. The subject never changes, but the username can."""

    provider: str  # name of the provider in the settings
    issuer: str
    subject: str
    username: str  # empty if the provider reports none
    organisations: frozenset[str]  # normalised names from this login, never stored

    @property
    def label(self) -> str:
        """The account in allowlist notation: `hf:alice`, or `hf-sub:1234` without a username."""
        return f"{self.provider}:{self.username}" if self.username else f"{self.provider}-sub:{self.subject}"


def normalise(name: str) -> str:
    """Normalize a name for comparisons: ASCII letters in lower case, then Unicode NFC.

    Folding other letters (full-width letters, the Kelvin sign) would let users impersonate others.
    """
    # NFC must be last, because it converts the Kelvin sign into K.
    return unicodedata.normalize("NFC", name.strip().translate(_LOWER))


def identity_of(name: str, provider: Provider, issuer: str, claims: dict[str, Any]) -> Identity:
    """Build an identity from verified claims; leave missing, overlong and unprintable values empty."""
    usernames = [text for text in _texts(claims, provider.username_claim) if _is_name(text)]
    if provider.username_claim == "email" and claims.get("email_verified") is not True:
        usernames = []  # an unverified address proves nothing
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
    """Return whether claims named in the settings are missing and must be read from userinfo."""
    paths = [provider.username_claim] + ([provider.organisation_claim] if provider.organisation_claim else [])
    return any(path not in claims and re.split(r"\.|\[\]", path)[0] not in claims for path in paths)


def _texts(claims: Any, path: str) -> Iterator[str]:
    """Yield the strings at `path`: a claim name, or a path into nested claims (`orgs[].login`)."""
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
