"""Objects shared by the control plane and web server: configuration, database, members, logins."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from auth.errors import StorageError
from auth.files import sha256_of
from coordinator.context.changes import Bell
from coordinator.context.refusal_log import RefusalRecorder
from coordinator.context.telemetry import Telemetry
from coordinator.ledger.ledger import Ledger
from coordinator.members.logins import Logins, open_providers
from coordinator.members.membership import Membership
from coordinator.run.database_owner import open_database
from coordinator.run.directory import RunDirectory
from coordinator.run.settings import Policy
from coordinator.run.software import Software, own_software
from coordinator.store.engine import Database
from peer.config.run import RunConfig
from peer.network.downloads import is_served_name


@dataclass(frozen=True)
class RunServices:
    """The shared objects of one run; all but `refusals`, `logins` and `bell` are thread-safe."""

    config: RunConfig
    files: Mapping[str, RunFile]
    membership: Membership
    ledger: Ledger
    database: Database
    refusals: RefusalRecorder
    logins: Logins
    quarantine: Policy
    clock: Callable[[], float]
    telemetry: Telemetry
    checkpoint_dir: Callable[[int], Path]  # step -> checkpoint folder
    web_address: str  # URL of the dashboard and the checkpoints
    software: Software  # the volunteers' software, which this service offers for download
    bell: Bell = field(default_factory=Bell)  # notifies tasks of database changes by other processes

    @property
    def software_address(self) -> str:
        """The URL, including a digest, from which volunteers install the run's software."""
        return self.software.address(self.web_address)

    @property
    def authority_public(self) -> bytes:
        """The authority's current public key (Ed25519, 32 bytes)."""
        return self.membership.authority_public


@contextmanager
def open_run_services(directory: RunDirectory, clock: Callable[[], float]) -> Iterator[RunServices]:
    """Migrate a run's database, and open the run's objects for the duration of the block."""
    config = directory.config
    parties = open_providers(directory, clock, time.monotonic)
    with open_database(directory) as database:
        telemetry = Telemetry()
        telemetry.watch(database.engine)
        membership = Membership.of_run(directory, database, clock)
        yield RunServices(
            config=config,
            files=list_run_files(directory.tokenizer_dir),
            membership=membership,
            ledger=Ledger(database, config, clock),
            database=database,
            refusals=RefusalRecorder(membership, clock, telemetry),
            logins=Logins(parties, directory.settings.web_address, time.monotonic),
            quarantine=directory.settings.quarantine_policy,
            clock=clock,
            telemetry=telemetry,
            checkpoint_dir=directory.checkpoint_dir,
            web_address=directory.settings.web_address,
            software=own_software(),
        )


@dataclass(frozen=True)
class RunFile:
    """A file that peers download, with its size and digest when the service started."""

    path: Path
    size_bytes: int
    sha256: bytes


def list_run_files(directory: Path) -> Mapping[str, RunFile]:
    """Return a directory's files by name, except links and files whose names peers reject."""
    try:
        paths = sorted(path for path in directory.iterdir() if path.is_file() and not path.is_symlink())
        return {
            path.name: RunFile(path, path.stat().st_size, sha256_of(path))
            for path in paths
            if is_served_name(path.name)
        }
    except OSError as error:
        raise StorageError(f"Cannot read the run's files in {directory}: {error.strerror}.") from error
