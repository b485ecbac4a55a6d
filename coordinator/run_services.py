"""What the service decides with: the run's facts and the rules over its store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from coordinator.answering import RefusalRecorder
from coordinator.database_owner import open_database
from coordinator.directory import RunDirectory
from coordinator.identity_providers import open_providers
from coordinator.ledger import Ledger
from coordinator.logins import Logins
from coordinator.membership import Membership
from coordinator.news import Bell
from coordinator.run_files import RunFile, list_run_files
from coordinator.software import Software, own_software
from coordinator.store.engine import Sessions
from coordinator.strikes import Policy
from coordinator.telemetry import Telemetry
from peer.run_config import RunConfig


@dataclass(frozen=True)
class RunServices:
    """One run, as its service sees it; all in here but `refusals`, `logins` and `bell` is safe to call from threads."""

    config: RunConfig
    files: Mapping[str, RunFile]
    membership: Membership
    ledger: Ledger
    sessions: Sessions
    refusals: RefusalRecorder
    logins: Logins
    quarantine: Policy
    clock: Callable[[], float]
    telemetry: Telemetry
    checkpoint_dir: Callable[[int], Path]  # where the checkpoint of a step lies on this machine
    web_address: str  # where the dashboard and the checkpoints are reached
    software: Software  # which the run brings its volunteers
    bell: Bell = field(default_factory=Bell)  # rings when another process has changed the store

    @property
    def software_address(self) -> str:
        """Where volunteers get the run's own software, with its digest."""
        return self.software.address(self.web_address)

    @property
    def authority_public(self) -> bytes:
        """The authority's key, Ed25519, 32 raw bytes, as it is now."""
        return self.membership.authority_public


@contextmanager
def open_run_services(directory: RunDirectory, clock: Callable[[], float]) -> Iterator[RunServices]:
    """Open a run's store, brought up to date, for the time of the block."""
    config = directory.config
    parties = open_providers(directory, clock, time.monotonic)
    with open_database(directory) as sessions:
        telemetry = Telemetry()
        telemetry.watch(sessions.engine)
        limits = config.membership
        membership = Membership(
            sessions,
            lambda: directory.authority,
            config.run.name,
            limits.token_lifetime_s,
            clock,
            limits.max_devices_per_member,
        )
        yield RunServices(
            config=config,
            files=list_run_files(directory.tokenizer_dir),
            membership=membership,
            ledger=Ledger(sessions, config, clock),
            sessions=sessions,
            refusals=RefusalRecorder(membership, clock, telemetry),
            logins=Logins(parties, directory.settings.web_address, time.monotonic),
            quarantine=directory.settings.quarantine_policy,
            clock=clock,
            telemetry=telemetry,
            checkpoint_dir=directory.checkpoint_dir,
            web_address=directory.settings.web_address,
            software=own_software(),
        )
