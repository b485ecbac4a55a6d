"""An identity provider as the operator configures it, the addresses that may be asked, and the identity after a login.

An `Identity` is the little that is kept of an ID token's claims.
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
# What is known of providers that need only a client id; a run's own settings win.
_KNOWN: dict[str, dict[str, Any]] = {
    HUGGING_FACE: {
        "title": "Hugging Face",
        "discovery": f"https://huggingface.co{WELL_KNOWN}",
        "organisation_claim": "orgs[].preferred_username",
    },
}
ProviderName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9]{0,15}$")]  # no dash: `hf-org:` must stay unambiguous
MAX_NAME_CHARS = 64
MAX_ORGANISATIONS = 1000
_LOWER = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")


def require_safe_url(url: str) -> str:
    """The address, if it is HTTPS, or HTTP on this very machine; raises `ValueError`."""
    parts = urlsplit(url)
    if len(url) > MAX_URL_CHARS or not url.isascii() or not url.isprintable() or " " in url or not parts.hostname:
        raise ValueError(f"the address {url!r:.80} cannot be used")
    if parts.username is not None or parts.password is not None:
        raise ValueError("an address must not hold a user's name or password")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname)):
        raise ValueError(f"the address {url!r:.80} must begin with https:// (http:// is for this machine only)")
    return url


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, whatever its name server says."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


SafeUrl = Annotated[str, AfterValidator(require_safe_url)]


class Provider(BaseModel):
    """The settings of a provider; anything else stands at its discovery address."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    discovery: SafeUrl
    """Address that ends in `/.well-known/openid-configuration`: HTTPS, or HTTP on this machine; for `hf`, by default
    Hugging Face's."""
    client_id: str = Field(min_length=1, max_length=500)
    """Name of this coordinator at the provider; ID tokens for anybody else are refused."""
    client_secret_file: str | None = None
    """File of mode 0600 with the client's secret, where the provider demands one; relative to the run's directory."""
    title: str = Field("", max_length=40)
    """Name of the provider for volunteers; by default its name here."""
    scopes: tuple[str, ...] = Field(("openid", "profile"), strict=False)
    """Scopes to ask for; `openid` must be among them."""
    # Lengths apart from patterns: a bound on a class of Unicode's, compiled, takes 15 MB of memory in every process.
    username_claim: str = Field("preferred_username", max_length=200, pattern=r"^[\w.\[\]:/-]+$")
    """Claim that holds the user name; `email` counts only if the provider has verified it."""
    organisation_claim: str = Field("", max_length=200, pattern=r"^[\w.\[\]:/-]*$")
    """Claim that holds the organisations, needed for `NAME-org:` entries of the allowlist; for `hf`, by default
    `orgs[].preferred_username`."""
    flow: Literal["auto", "device", "page"] = "auto"
    """Flow of the login: the device flow, the page, or (`auto`) the device flow where the provider has it and else the
    page."""

    @model_validator(mode="after")
    def _is_openid(self) -> Provider:
        if "openid" not in self.scopes:
            raise ValueError("`scopes` must contain openid")
        if not self.discovery.endswith(WELL_KNOWN):
            raise ValueError(f"`discovery` ({self.discovery}) must end with {WELL_KNOWN}")
        return self


def with_known(providers: Any) -> Any:
    """A mapping of names to providers' settings, with what is known of some names filled in."""
    if not isinstance(providers, dict):
        return providers
    return {
        name: {**_KNOWN.get(name, {}), **values} if isinstance(values, dict) else values
        for name, values in providers.items()
    }


@dataclass(frozen=True)
class Identity:
    """An account at a provider. The subject never changes; the user name is the present one."""

    provider: str  # its name in the settings
    issuer: str
    subject: str
    username: str  # empty where the provider tells none
    organisations: frozenset[str]  # normalised; asked at this login, never kept

    @property
    def label(self) -> str:
        """The account as allowlists spell it: `hf:alice`, or `hf-sub:1234` without a user name."""
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
    """Return whether claims named in the provider's settings are missing: then its userinfo endpoint is asked."""
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
