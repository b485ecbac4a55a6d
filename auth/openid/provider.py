"""One identity provider as the operator configures it, and the addresses that may be asked at all."""

from __future__ import annotations

import ipaddress
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
ProviderName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9]{0,15}$")]  # no dash: `hf-org:` must stay unambiguous


class Provider(BaseModel):
    """What the coordinator must know of a provider; anything else stands at its discovery address."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    discovery: SafeUrl
    client_id: str = Field(min_length=1, max_length=500)
    client_secret_file: str | None = None  # relative to the run's directory; mode 0600
    title: str = Field("", max_length=40)  # what people call it; empty: its name
    scopes: tuple[str, ...] = Field(("openid", "profile"), strict=False)
    username_claim: str = Field("preferred_username", pattern=r"^[\w.\[\]:/-]{1,200}$")
    organisation_claim: str = Field("", pattern=r"^[\w.\[\]:/-]{0,200}$")  # such as orgs[].preferred_username
    flow: Literal["auto", "device", "page"] = "auto"  # auto: the device flow, where the provider has it

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
