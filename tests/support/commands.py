"""A served run and its volunteers as tests start them: real `manyhands` commands on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
from sqlalchemy import func, select

from coordinator.ledger.keeper_status import read_swarm_status
from coordinator.ledger.ledger import Ledger
from coordinator.members.membership import Membership
from coordinator.run.directory import RunDirectory
from coordinator.store.engine import Database, open_engine
from coordinator.store.ledger_models import LostSamples
from coordinator.store.models import Report, Step
from peer.averaging.requirements import LEAST_FILLED
from tests.support.small_run import HOST, make_small_run
from tests.support.waiting import PATIENCE_S, wait_until

NAMES = ("ada", "grace")


class Command:
    """A running `manyhands` command and everything that it has started."""

    def __init__(
        self,
        log_path: Path,
        *arguments: str,
        invite: str = "",
        begin: Callable[[], None] | None = None,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.log_path = log_path
        with log_path.open("a") as log:
            self.process = psutil.Popen(
                [sys.executable, "-m", "manyhands", *arguments],
                env=os.environ | {"MANYHANDS_INVITE": invite} | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=begin,
            )

    def family(self) -> list[psutil.Process]:
        """The command and its descendants."""
        with suppress(psutil.NoSuchProcess):
            return [self.process, *self.process.children(recursive=True)]
        return []

    def daemons(self) -> list[psutil.Process]:
        """The p2p daemons among them."""
        found = []
        for process in self.family():
            with suppress(psutil.NoSuchProcess):
                found += [process] if process.name() == "p2pd" else []
        return found

    def kill(self) -> None:
        """SIGKILL to all of them, as a power cut would."""
        family = self.family()
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=PATIENCE_S)

    def terminate(self) -> tuple[int, list[psutil.Process]]:
        """SIGTERM; returns the exit code and which of its processes are left afterwards."""
        family = self.family()
        self.process.send_signal(signal.SIGTERM)
        exit_code = self.process.wait(timeout=PATIENCE_S)
        _, left = psutil.wait_procs(family, timeout=PATIENCE_S)
        return exit_code, left


class Site:
    """The run's directory, its coordinator and its volunteers on this machine."""

    def __init__(
        self, base: Path, phases: Sequence[dict[str, Any]] = (), host: str = HOST, database_url: str | None = None
    ) -> None:
        self.base = base
        self.run: RunDirectory = make_small_run(base, phases, host=host, database_url=database_url)
        database = Database(open_engine(self.run.database_url))
        self.database = database
        self.ledger = Ledger(database, self.run.config)
        self.membership = Membership(database, self.run.authority, self.run.config.run.name, 3600, time.time)
        self.commands: list[Command] = []

    def start(self, name: str, *arguments: str, invite: str = "", begin: Callable[[], None] | None = None) -> Command:
        """Start a command that is ended with the test; `begin` is called in its process first."""
        command = Command(self.base / f"{name}.log", *arguments, invite=invite, begin=begin)
        self.commands.append(command)
        return command

    def serve(self, begin: Callable[[], None] | None = None) -> Command:
        """The coordinator; returns once the keeper has said where the swarm stands."""
        began = time.time()
        command = self.start("serve", "coordinator", "serve", str(self.run.path), begin=begin)

        def up() -> bool:
            assert command.process.poll() is None, command.log_path.read_text()
            status = read_swarm_status(self.database)
            return status is not None and status.updated_at > began

        self.wait_until("the keeper has said where the swarm stands", up)
        return command

    def serve_without_keeper(self) -> Command:
        """The coordinator's service alone; returns once it has said its link."""
        command = self.start("serve", "coordinator", "serve", str(self.run.path), "--service-only")

        def up() -> bool:
            said = command.log_path.read_text()
            assert command.process.poll() is None, said
            return "Join link:" in said

        self.wait_until("the service is up", up)
        return command

    def join(self, name: str, first: bool, *more: str) -> Command:
        """A volunteer, by invite the first time."""
        options = [*more, "--threads", "1", "--listen", f"/ip4/{HOST}/tcp/0", "--no-panel"]
        invite = self.membership.invite(name)[0] if first else ""
        state_dir = str(self.base / name)
        return self.start(name, "join", str(self.run.join_link), "--state-dir", state_dir, *options, invite=invite)

    def wait_until(self, sentence: str, true: Callable[[], object]) -> None:
        """Wait for an event; a failure shows what each command has said last."""
        wait_until(sentence, true, *sorted(self.base.glob("*.log")), poll_s=0.2)

    def wait_for_step(self, step: int) -> None:
        """Wait until both volunteers' reports of a step have arrived."""
        self.wait_until(
            f"both volunteers have reported step {step}",
            lambda: any(row.step >= step and row.devices == len(NAMES) for row in self.ledger.steps()),
        )

    def assert_ledger_is_right(self) -> None:
        """Each step once, none missing, with just the samples of its reports, up to the last of which all have told.

        What is missing from nine tenths of a batch was told as lost, by a volunteer whose round failed alone. By
        how much a batch exceeds its target depends on how late volunteers see that it is full: that is not judged.
        A device tells of its steps in their order: of later ones some report may be on its way.
        """
        rows = self.ledger.steps()
        last = max(row.step for row in rows if row.devices == len(NAMES))
        settled = [row for row in rows if row.step <= last]
        assert [row.step for row in settled] == list(range(1, last + 1))
        self.assert_steps_are_their_reports()
        with self.database() as session:
            lost = session.scalar(select(func.sum(LostSamples.samples))) or 0
        missing = [max(0.0, LEAST_FILLED * row.target_batch_size - row.samples) for row in settled]
        assert sum(missing) <= lost, settled

    def assert_steps_are_their_reports(self) -> None:
        """Each step has just the samples of its reports."""
        believed = func.sum(func.coalesce(Report.counted, Report.samples))
        query = select(Step.step, Step.samples, believed).join(Report, Report.step == Step.step)
        with self.database() as session:
            sums = session.execute(query.where(Report.superseded.is_(False)).group_by(Step.step)).all()
        assert [step for step, samples, of_reports in sums if samples != of_reports] == []

    def close(self) -> None:
        """Kill whatever is left."""
        for command in self.commands:
            command.kill()


def expect_no_survivors() -> None:
    """Begin a forked coordinator whose keeper waits seconds, not a minute, for peers that have steps it would undo."""
    from coordinator.keeper import recovery

    recovery.SURVIVORS_TOLD_S = 5.0


def service_of(serve: Command, port: int) -> psutil.Process:
    """The coordinator's process that listens on this port."""
    for process in serve.family():
        with suppress(psutil.AccessDenied, psutil.NoSuchProcess):
            if any(item.status == "LISTEN" and item.laddr.port == port for item in process.net_connections("tcp")):
                return process
    raise AssertionError(f"no process of the coordinator listens on {port}")
