"""A run's directory on the operator's machine: its configuration, secrets, database, tokenizer and checkpoints.

    run.yaml         what the run trains (RunConfig)
    settings.yaml    where it is served (Settings)
    keys/            authority.key, handover-*.jwt, tls.key, tls.crt; mode 0700
    keeper/          the keeper's own credentials, like any device's
    tokenizer/       the run's tokenizer
    checkpoints/     step-00000012/, ...
    sinks/           what is written for TensorBoard and others, and how far
    validation/      the samples that checkpoints are evaluated on
    publishing/      exported folders on their way to where they are published
    .evaluating/     the checkpoint that an evaluator on this machine is at
    examples/        what tasks' web addresses gave it
    manyhands.db     the database, where `database_url` names no other

`create` makes it whole or not at all; everything else opens it and reads.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from sqlalchemy import URL

from auth.errors import ConfigError, StorageError
from auth.files import WatchedFile, make_private_directory, new_directory, write_private
from auth.identity import AuthorityKey, certificate_fingerprint, create_tls_certificate
from auth.join_link import Address, JoinLink
from auth.openid.provider import Provider, ProviderName, SafeUrl, with_known
from coordinator.authority_key import load_authority
from coordinator.database_owner import create_database
from coordinator.manifests import checkpoint_name
from coordinator.place_settings import PlaceSettings
from coordinator.sinks.settings import Sinks
from coordinator.strikes import Policy
from coordinator.webhook_settings import Webhooks
from peer.run_config import RunConfig

MAX_SESSIONS = 6000  # at once, of one service
CALLS_PER_ADDRESS, CALLS_PER_ADDRESS_PER_MINUTE = 256, 600  # a laboratory whose devices all come back at once

Port = Annotated[int, Field(ge=1, le=65535)]
Proxy = Annotated[str, AfterValidator(lambda address: str(ipaddress.ip_address(address)))]


# What Colab and Kaggle open notebooks from.
_NOTEBOOK = r"^https://github\.com/[A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_.-]{1,100}/blob/[A-Za-z0-9_./-]{1,300}\.ipynb$"


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


BindHost = Annotated[str, BeforeValidator(_without_brackets)]
Host = Annotated[str, BeforeValidator(_without_brackets), Field(pattern=r"^[A-Za-z0-9._:%-]{1,253}$")]
# As in a Content-Security-Policy: everybody, or origins such as https://example.org and https://*.example.org.
Ancestor = Annotated[str, Field(pattern=r"^(\*|https?://(\*\.)?[A-Za-z0-9.-]{1,200}(:[0-9]{1,5})?)$")]
Fallbacks = Annotated[tuple[Annotated[str, AfterValidator(_fallback)], ...], Field(max_length=7, strict=False)]
EmbedOn = Annotated[tuple[Ancestor, ...], Field(max_length=32, strict=False)]


class Settings(BaseModel):
    """Where the run is served; settings.yaml."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    public_host: Host = "127.0.0.1"  # what peers connect to
    announce_hosts: tuple[Host, ...] = Field((), max_length=4, strict=False)  # where else peers reach the keeper
    fallback_addresses: Fallbacks = ()  # HOST or HOST:PORT, where else the coordinator may answer; in the join link
    bind_host: BindHost = "0.0.0.0"  # noqa: S104  # volunteers come from everywhere
    control_port: Port = 7443
    web_port: Port = 8080
    swarm_port: Port = 31337
    max_sessions: int = Field(MAX_SESSIONS, ge=1, le=100_000)  # of one service
    calls_per_address: int = Field(CALLS_PER_ADDRESS, ge=1, le=100_000)  # open at once; a session is one
    calls_per_address_per_minute: int = Field(CALLS_PER_ADDRESS_PER_MINUTE, ge=1, le=1_000_000)
    quarantine_strikes: int = Field(3, ge=0, le=1000)  # 0: nobody is cut off by itself
    quarantine_window_s: float = Field(3600.0, ge=60, le=30 * 86_400, allow_inf_nan=False, strict=False)
    trusted_proxies: Annotated[list[Proxy], Field(max_length=64)] = ["127.0.0.1", "::1"]  # in front of the web port
    database_url: str | None = None  # None: SQLite in the run's directory
    public_url: SafeUrl | None = None  # where browsers reach the web port; None: http, by public_host and web_port
    providers: Annotated[dict[ProviderName, Provider], BeforeValidator(with_known)] = {}
    sinks: Sinks = Sinks()  # where the run's curves are written, too
    publications: Annotated[tuple[PlaceSettings, ...], Field(max_length=16, strict=False)] = ()  # where checkpoints go
    webhooks: Webhooks = {}  # which chats hear of milestones
    embed_on: EmbedOn = ("*",)  # which sites may show our charts in their pages
    notebook_url: Annotated[str, Field(pattern=_NOTEBOOK)] | None = None  # join.ipynb as GitHub shows it
    model_license: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+-]{0,63}$")] | None = None

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
            first = error.errors(include_input=False)[0]  # the value may be a password
            key = ".".join(str(part) for part in first["loc"]) or "the file"
            raise ConfigError(f"{path}: `{key}`: {first['msg'].removeprefix('Value error, ')}.") from error

    @property
    def web_address(self) -> str:
        """Where browsers reach the web port, without a slash at the end."""
        host = f"[{self.public_host}]" if ":" in self.public_host else self.public_host
        return (self.public_url or f"http://{host}:{self.web_port}").rstrip("/")

    @property
    def quarantine_policy(self) -> Policy:
        """How many strikes, in what time, put a device in quarantine."""
        return Policy(self.quarantine_strikes, self.quarantine_window_s)

    def to_yaml(self) -> str:
        """The complete file, defaults included."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def _nothing_more(_directory: RunDirectory) -> None:
    """The default of `create`'s `prepare`."""


class RunDirectory:
    """One run's files; values are read once, at first use."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(
        cls,
        path: Path,
        config: RunConfig,
        settings: Settings,
        prepare: Callable[[RunDirectory], None] = _nothing_more,
    ) -> RunDirectory:
        """Make a new run with new keys and a database of its own; refuses a path where something is already.

        `prepare` adds what takes long or may fail, such as training the tokenizer. Everything is made in a directory
        aside, which takes the run's name only when it is complete. The database comes last: a server's stays if the
        run is not made after all.
        """
        with new_directory(path, 0o700, "choose another directory, or serve the run in it") as aside:
            unfinished = cls(aside)
            unfinished._fill(config, settings)
            prepare(unfinished)
            create_database(unfinished)
        return cls(path.absolute())

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing run; raises `ConfigError` where there is none."""
        path = Path(path).absolute()
        if not (path / "run.yaml").is_file():
            raise ConfigError(f"{path} holds no run: make one with `manyhands coordinator init {path}`.")
        return cls(path)

    def _fill(self, config: RunConfig, settings: Settings) -> None:
        for directory in (self.keys_dir, self.keeper_dir, self.tokenizer_dir, self.checkpoints_dir):
            make_private_directory(directory)
        write_private(self.path / "run.yaml", config.to_yaml().encode())
        write_private(self.path / "settings.yaml", settings.to_yaml().encode())
        AuthorityKey.generate().save(self.keys_dir / "authority.key")
        create_tls_certificate(self.tls_key_path, self.tls_cert_path)

    @property
    def keys_dir(self) -> Path:
        """The secrets."""
        return self.path / "keys"

    @property
    def tls_key_path(self) -> Path:
        """The TLS certificate's private key, PEM."""
        return self.keys_dir / "tls.key"

    @property
    def tls_cert_path(self) -> Path:
        """The TLS certificate, PEM."""
        return self.keys_dir / "tls.crt"

    @property
    def tokenizer_dir(self) -> Path:
        """The run's tokenizer, loadable with `AutoTokenizer`."""
        return self.path / "tokenizer"

    @property
    def checkpoints_dir(self) -> Path:
        """One directory per checkpoint."""
        return self.path / "checkpoints"

    def checkpoint_dir(self, step: int) -> Path:
        """Where the checkpoint of this step lies, if it is kept."""
        return self.checkpoints_dir / checkpoint_name(step)

    @property
    def validation_dir(self) -> Path:
        """The samples that checkpoints are evaluated on; the validator makes it."""
        return self.path / "validation"

    @property
    def sinks_dir(self) -> Path:
        """How far each sink is written, and what sinks keep on disk; the sinks' process makes it."""
        return self.path / "sinks"

    @property
    def publishing_dir(self) -> Path:
        """Exported checkpoints on their way to where they are published; the publisher makes it."""
        return self.path / "publishing"

    @property
    def keeper_dir(self) -> Path:
        """The keeper's credentials."""
        return self.path / "keeper"

    @cached_property
    def config(self) -> RunConfig:
        """What the run trains."""
        return RunConfig.from_yaml(self.path / "run.yaml")

    @cached_property
    def settings(self) -> Settings:
        """Where the run is served."""
        return Settings.from_yaml(self.path / "settings.yaml")

    @property
    def authority(self) -> AuthorityKey:
        """The key that signs tokens and revocations, as it is now."""
        key = self._authority_file.read()
        if key is None:
            raise StorageError(f"Cannot read the key {self._authority_file.path} (No such file or directory).")
        return key

    @cached_property
    def _authority_file(self) -> WatchedFile[AuthorityKey]:
        path = self.keys_dir / "authority.key"
        return WatchedFile(path, lambda _: load_authority(path))

    @property
    def database_url(self) -> str:
        """Where the ledger is."""
        in_directory = URL.create("sqlite", database=str(self.path / "manyhands.db"))
        return self.settings.database_url or in_directory.render_as_string()

    @property
    def join_link(self) -> JoinLink:
        """What the operator hands to volunteers."""
        try:
            certificate = self.tls_cert_path.read_bytes()
        except OSError as error:
            raise StorageError(f"Cannot read {self.tls_cert_path} ({error.strerror}).") from error
        settings = self.settings
        port, fallbacks = settings.control_port, settings.fallback_addresses
        first, *others = dict.fromkeys(
            (Address(settings.public_host, port), *(Address.parse(text, default_port=port) for text in fallbacks))
        )
        return JoinLink(*first, self.config.run.name, certificate_fingerprint(certificate), tuple(others))
