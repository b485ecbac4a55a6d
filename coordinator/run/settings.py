"""The operator's settings of a run: addresses, limits, publications and webhooks."""

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
from peer.config.base import Section, WrittenAs, first_mistake

MAX_SESSIONS = 6000  # default of the setting `max_sessions`
CALLS_PER_ADDRESS, CALLS_PER_ADDRESS_PER_MINUTE = 256, 600  # enough for a school class that shares an IP address
Port = Annotated[int, Field(ge=1, le=65535)]
Proxy = Annotated[str, AfterValidator(lambda address: str(ipaddress.ip_address(address)))]

# URLs of notebooks on GitHub, which Colab and Kaggle can open.
_NOTEBOOK = r"https://github\.com/[A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_.-]{1,100}/blob/[A-Za-z0-9_./-]{1,300}\.ipynb"


def _without_brackets(host: object) -> object:
    """Remove the brackets from an IPv6 address such as [2001:db8::1]."""
    if isinstance(host, str) and host.startswith("[") and host.endswith("]"):
        return host[1:-1]
    return host


def _fallback(text: str) -> str:
    if text.count(":") > 1 and not text.startswith("["):  # IPv6 address without brackets
        text = f"[{text}]"
    try:
        Address.parse(text, default_port=1)
    except ValueError as error:
        raise ValueError(f"not HOST or HOST:PORT, {error}") from error
    return text


NotebookUrl = Annotated[
    str, WrittenAs(_NOTEBOOK, "a notebook's page on GitHub, as in https://github.com/OWNER/NAME/blob/main/join.ipynb")
]
License = Annotated[str, WrittenAs(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,63}", "an SPDX name, such as Apache-2.0")]
BindHost = Annotated[str, BeforeValidator(_without_brackets)]
Host = Annotated[
    str, BeforeValidator(_without_brackets), WrittenAs(r"[A-Za-z0-9._:%-]{1,253}", "a host's name or address")
]
Fallbacks = Annotated[tuple[Annotated[str, AfterValidator(_fallback)], ...], Field(max_length=7, strict=False)]


class Settings(Section):
    """The contents of settings.yaml: addresses, ports and limits of the coordinator."""

    public_host: Host = "127.0.0.1"
    """Name or address that volunteers connect to; part of the join link."""
    announce_hosts: tuple[Host, ...] = Field((), max_length=4, strict=False)
    """Further names or addresses at which peers reach the keeper."""
    fallback_addresses: Fallbacks = ()
    """Further addresses in the join link, to which the coordinator may move in the future: `HOST` (with
    `control_port`) or `HOST:PORT`."""
    bind_host: BindHost = "0.0.0.0"  # noqa: S104  # volunteers connect from anywhere
    """Address to listen on; `0.0.0.0` and `::` mean all addresses, IPv4 and IPv6."""
    control_port: Port = 7443
    """Port of the control plane, for volunteers."""
    web_port: Port = 8080
    """Port of the dashboard and the API, for browsers."""
    swarm_port: Port = 31337
    """Port of the keeper in the swarm: TCP, and also UDP if `quic` is on."""
    quic: bool = False
    """Let the keeper also listen on QUIC (over UDP). The QUIC of the p2p daemon has known weaknesses; see the
    guide's page on security."""
    line_mbit: float | None = Field(None, ge=1, le=1_000_000, allow_inf_nan=False, strict=False)
    """Bandwidth of the keeper's connection in its slower direction, in Mbit/s. State downloads take at most half of
    it, and averaging gives the keeper a suitable share of the work. By default the connection is assumed to be fast."""
    max_sessions: int = Field(MAX_SESSIONS, ge=1, le=100_000)
    """Maximum number of devices connected to one service at once; three times as many open files must be allowed
    (`ulimit -Hn`)."""
    calls_per_address: int = Field(CALLS_PER_ADDRESS, ge=1, le=100_000)
    """Maximum number of calls and connections that one address (for IPv6, one /64 network) may have open; a session
    is one connection. Raise it if many volunteers share an address, as at a university."""
    calls_per_address_per_minute: int = Field(CALLS_PER_ADDRESS_PER_MINUTE, ge=1, le=1_000_000)
    """Maximum number of calls that one address may start in a minute."""
    quarantine_strikes: int = Field(3, ge=0, le=1000)
    """Number of failed checks that put a device in quarantine; 0: checks never quarantine a device."""
    quarantine_window_s: float = Field(3600.0, ge=60, le=30 * 86_400, allow_inf_nan=False, strict=False)
    """Time, in seconds, within which that many checks must fail."""
    trusted_proxies: list[Proxy] = Field(default_factory=list, max_length=64)
    """Addresses of proxies in front of the web port whose `X-Forwarded-For` and `X-Forwarded-Proto` headers are
    trusted, so that limits apply to the clients. For a proxy on the same machine, use `[127.0.0.1, "::1"]`. Every
    user of that machine can then claim any address, so add no address without such a proxy."""
    web_hosts: Annotated[tuple[Host, ...], Field(max_length=32, strict=False)] = ()
    """Further host names, such as a proxy's, that browsers may use for the web port. Names without a dot, IP
    addresses, and the hosts of the other keys are always accepted; other names are answered with 421."""
    database_url: str | None = None
    """PostgreSQL URL (`postgresql+psycopg://...`) of a database used by this run only; by default the run uses
    SQLite in its directory."""
    public_url: SafeUrl | None = None
    """Address at which browsers reach the web port, such as `https://training.example.org`; required for logins on
    the page. By default it consists of `http://`, `public_host` and `web_port`."""
    providers: Annotated[dict[ProviderName, Provider], BeforeValidator(with_known)] = Field(default_factory=dict)
    """Identity providers with which volunteers may log in, each under a short name of lower-case letters and digits,
    such as `hf`."""
    sinks: Sinks = Sinks()  # further destinations of the run's curves
    publications: Annotated[tuple[PlaceSettings, ...], Field(max_length=16, strict=False)] = ()
    """Places to publish checkpoints to."""
    webhooks: Webhooks = Field(default_factory=dict)
    """Chat webhooks to notify of milestones, each under a name of your choice; do not rename them later."""
    notebook_url: NotebookUrl | None = None
    """Address of `notebooks/join.ipynb` on GitHub
    (`https://github.com/OWNER/REPOSITORY/blob/main/notebooks/join.ipynb`). It adds buttons for Colab and Kaggle to
    the join page, which always offers the run's own notebook."""
    model_license: License | None = None
    """Licence of the model for its model card, as the hub names it."""

    def publication(self, address: str) -> PlaceSettings:
        """Return the publication with this address. Raises `ConfigError` if there is none."""
        places = {place.to: place for place in self.publications}
        if address not in places:
            known = ", ".join(places) or "none"
            raise ConfigError(f"`publications` in settings.yaml names no {address!r}; it names: {known}.")
        return places[address]

    @classmethod
    def from_yaml(cls, path: Path) -> Settings:
        """Read settings.yaml. Raises `ConfigError` if the file is unreadable or invalid."""
        try:
            return cls.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
        except OSError as error:
            raise ConfigError(f"Cannot read {path}: {error.strerror}.") from error
        except (UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from error
        except ValidationError as error:
            raise ConfigError(f"{path}: {first_mistake(error, secret=True)}.") from error  # the value may be a password

    @property
    def web_address(self) -> str:
        """The URL of the web port for browsers, without a trailing slash."""
        host = f"[{self.public_host}]" if ":" in self.public_host else self.public_host
        return (self.public_url or f"http://{host}:{self.web_port}").rstrip("/")

    @property
    def web_names(self) -> frozenset[str]:
        """The host names, in lower case, that browsers may use for the web port."""
        fallbacks = (Address.parse(text, default_port=1).host for text in self.fallback_addresses)
        asked = urlsplit(self.web_address).hostname or ""
        return frozenset(
            name.lower() for name in (self.public_host, *self.announce_hosts, *fallbacks, asked, *self.web_hosts)
        )

    @property
    def quarantine_policy(self) -> Policy:
        """The number of strikes that put a device in quarantine, and their time window."""
        return Policy(self.quarantine_strikes, self.quarantine_window_s)

    def to_yaml(self) -> str:
        """Return all settings as YAML, including defaults."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


@dataclass(frozen=True)
class Policy:
    """The rule for automatic quarantine: a number of failed checks (strikes) within a time window."""

    strikes: int = 3  # 0 turns automatic quarantine off
    window_s: float = 3600.0
