"""An operator's settings of a run: addresses, limits, places to publish to, webhooks."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from auth.errors import ConfigError
from auth.join_link import Address
from auth.openid.provider import Provider, ProviderName, SafeUrl, with_known
from coordinator.run.publish_settings import PlaceSettings
from coordinator.run.sink_settings import Sinks
from coordinator.run.webhook_settings import Webhooks
from peer.config.base import Section, first_mistake, written_as

MAX_SESSIONS = 6000  # at once, of one service
CALLS_PER_ADDRESS, CALLS_PER_ADDRESS_PER_MINUTE = 256, 600  # a laboratory whose devices all come back at once
Port = Annotated[int, Field(ge=1, le=65535)]
Proxy = Annotated[str, AfterValidator(lambda address: str(ipaddress.ip_address(address)))]

# What Colab and Kaggle open notebooks from.
_NOTEBOOK = r"https://github\.com/[A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_.-]{1,100}/blob/[A-Za-z0-9_./-]{1,300}\.ipynb"


def _without_brackets(host: object) -> object:
    """An IPv6 address as it stands in a link, [2001:db8::1], without its brackets."""
    if isinstance(host, str) and host.startswith("[") and host.endswith("]"):
        return host[1:-1]
    return host


def _fallback(text: str) -> str:
    if text.count(":") > 1 and not text.startswith("["):  # an IPv6 address alone
        text = f"[{text}]"
    try:
        Address.parse(text, default_port=1)
    except ValueError as error:
        raise ValueError(f"not HOST or HOST:PORT, {error}") from error
    return text


NotebookUrl = Annotated[
    str, written_as(_NOTEBOOK, "a notebook's page on GitHub, as in https://github.com/OWNER/NAME/blob/main/join.ipynb")
]
License = Annotated[str, written_as(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,63}", "an SPDX name, such as Apache-2.0")]
BindHost = Annotated[str, BeforeValidator(_without_brackets)]
Host = Annotated[
    str, BeforeValidator(_without_brackets), written_as(r"[A-Za-z0-9._:%-]{1,253}", "a host's name or address")
]
Fallbacks = Annotated[tuple[Annotated[str, AfterValidator(_fallback)], ...], Field(max_length=7, strict=False)]


class Settings(Section):
    """The coordinator's settings.yaml: addresses, ports and limits of the service."""

    public_host: Host = "127.0.0.1"  # what peers connect to
    announce_hosts: tuple[Host, ...] = Field((), max_length=4, strict=False)  # where else peers reach the keeper
    fallback_addresses: Fallbacks = ()  # HOST or HOST:PORT, where else the coordinator may answer; in the join link
    bind_host: BindHost = "0.0.0.0"  # noqa: S104  # volunteers come from everywhere
    control_port: Port = 7443
    web_port: Port = 8080
    swarm_port: Port = 31337
    line_mbit: float | None = Field(None, ge=1, le=1_000_000, allow_inf_nan=False, strict=False)  # the keeper's
    max_sessions: int = Field(MAX_SESSIONS, ge=1, le=100_000)  # of one service
    calls_per_address: int = Field(CALLS_PER_ADDRESS, ge=1, le=100_000)  # open at once; a session is one
    calls_per_address_per_minute: int = Field(CALLS_PER_ADDRESS_PER_MINUTE, ge=1, le=1_000_000)
    quarantine_strikes: int = Field(3, ge=0, le=1000)  # 0: nobody is cut off by itself
    quarantine_window_s: float = Field(3600.0, ge=60, le=30 * 86_400, allow_inf_nan=False, strict=False)
    trusted_proxies: list[Proxy] = Field(default_factory=list, max_length=64)  # in front of the web port
    web_hosts: Annotated[tuple[Host, ...], Field(max_length=32, strict=False)] = ()  # by what other names it is asked
    database_url: str | None = None  # None: SQLite in the run's directory
    public_url: SafeUrl | None = None  # where browsers reach the web port; None: http, by public_host and web_port
    providers: Annotated[dict[ProviderName, Provider], BeforeValidator(with_known)] = Field(default_factory=dict)
    sinks: Sinks = Sinks()  # where the run's curves are written, too
    publications: Annotated[tuple[PlaceSettings, ...], Field(max_length=16, strict=False)] = ()  # where checkpoints go
    webhooks: Webhooks = Field(default_factory=dict)  # which chats hear of milestones
    notebook_url: NotebookUrl | None = None  # join.ipynb as GitHub shows it
    model_license: License | None = None

    def publication(self, address: str) -> PlaceSettings:
        """The place of this address; raises `ConfigError` where `publications` does not name it."""
        places = {place.to: place for place in self.publications}
        if address not in places:
            known = ", ".join(places) or "none"
            raise ConfigError(f"`publications` in settings.yaml names no {address!r}; it names: {known}.")
        return places[address]

    @classmethod
    def from_yaml(cls, path: Path) -> Settings:
        """Read settings.yaml; raises `ConfigError`."""
        try:
            return cls.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
        except OSError as error:
            raise ConfigError(f"Cannot read {path}: {error.strerror}.") from error
        except (UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from error
        except ValidationError as error:
            raise ConfigError(f"{path}: {first_mistake(error, secret=True)}.") from error  # a value may be a password

    @property
    def web_address(self) -> str:
        """The address at which browsers reach the web port, without a slash at the end."""
        host = f"[{self.public_host}]" if ":" in self.public_host else self.public_host
        return (self.public_url or f"http://{host}:{self.web_port}").rstrip("/")

    @property
    def web_names(self) -> frozenset[str]:
        """The names by which browsers may ask for the web port, in small letters."""
        fallbacks = (Address.parse(text, default_port=1).host for text in self.fallback_addresses)
        asked = urlsplit(self.web_address).hostname or ""
        return frozenset(
            name.lower() for name in (self.public_host, *self.announce_hosts, *fallbacks, asked, *self.web_hosts)
        )

    @property
    def quarantine_policy(self) -> Policy:
        """The number of strikes, and their window, that put a device in quarantine."""
        return Policy(self.quarantine_strikes, self.quarantine_window_s)

    def to_yaml(self) -> str:
        """The complete file, defaults included."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


@dataclass(frozen=True)
class Policy:
    """The rule for quarantine, from settings.yaml: so many strikes within so many seconds."""

    strikes: int = 3  # 0: nobody is cut off by itself
    window_s: float = 3600.0
