"""The directory of a run: configuration, settings, keys, database and checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from sqlalchemy import URL

from auth.errors import ConfigError, StorageError
from auth.files import WatchedFile, make_private_directory, new_directory, write_private
from auth.join_link import Address, JoinLink
from auth.keys import AuthorityKey, certificate_fingerprint, create_tls_certificate
from coordinator.run.authority_key import load_authority
from coordinator.run.checkpoint_names import checkpoint_name
from coordinator.run.database_owner import create_database
from coordinator.run.settings import Settings
from peer.config.run import RunConfig


def _nothing_more(_directory: RunDirectory) -> None:
    """Do nothing; the default value of `create`'s argument `prepare`."""


class RunDirectory:
    """The files of a run; configuration and settings are read once, on first use."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(
        cls, path: Path, config: RunConfig, settings: Settings, prepare: Callable[[RunDirectory], None] = _nothing_more
    ) -> RunDirectory:
        """Create a run with new keys and its own database. Raises `ConfigError` if `path` exists.

        `prepare` does slow or unreliable work, such as tokenizer training. All files are created in
        a temporary directory, which is renamed when complete. The database is created last, because
        a database on a server would remain after a failure.
        """
        with new_directory(path, 0o700, "choose another directory, or serve the run in it") as aside:
            unfinished = cls(aside)
            unfinished._fill(config, settings)
            prepare(unfinished)
            create_database(unfinished)
        return cls(path.absolute())

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Open an existing run. Raises `ConfigError` if there is none at `path`."""
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
        """The folder of secret keys."""
        return self.path / "keys"

    @property
    def tls_key_path(self) -> Path:
        """The private key of the TLS certificate (PEM)."""
        return self.keys_dir / "tls.key"

    @property
    def tls_cert_path(self) -> Path:
        """The TLS certificate (PEM)."""
        return self.keys_dir / "tls.crt"

    @property
    def tokenizer_dir(self) -> Path:
        """The run's tokenizer, loadable with `AutoTokenizer`."""
        return self.path / "tokenizer"

    @property
    def checkpoints_dir(self) -> Path:
        """The folder of checkpoints, with a subfolder for each."""
        return self.path / "checkpoints"

    def checkpoint_dir(self, step: int) -> Path:
        """Return the folder of a step's checkpoint, which may not exist."""
        return self.checkpoints_dir / checkpoint_name(step)

    @property
    def validation_dir(self) -> Path:
        """The folder of held-out samples for evaluating checkpoints; created by the validator."""
        return self.path / "validation"

    @property
    def sinks_dir(self) -> Path:
        """The folder for the sinks' progress and files; created by their process."""
        return self.path / "sinks"

    @property
    def publishing_dir(self) -> Path:
        """The folder of exported checkpoints to publish; created by the publisher."""
        return self.path / "publishing"

    @property
    def keeper_dir(self) -> Path:
        """The folder of the keeper's credentials."""
        return self.path / "keeper"

    @cached_property
    def config(self) -> RunConfig:
        """The run's configuration, from run.yaml."""
        return RunConfig.from_yaml(self.path / "run.yaml")

    @cached_property
    def settings(self) -> Settings:
        """The coordinator's settings, from settings.yaml."""
        return Settings.from_yaml(self.path / "settings.yaml")

    @property
    def authority(self) -> AuthorityKey:
        """The authority's current key, which signs tokens and revocations."""
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
        """The database URL from the settings, or by default a SQLite file in the directory."""
        in_directory = URL.create("sqlite", database=str(self.path / "manyhands.db"))
        return self.settings.database_url or in_directory.render_as_string()

    @property
    def join_link(self) -> JoinLink:
        """The join link for volunteers."""
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
