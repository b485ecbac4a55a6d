"""The demo: a complete run on this machine, with a coordinator and volunteers in separate processes.

The volunteers join with invite codes over TLS, as they would from other machines. Each process is a
`manyhands` command that leads its own process group. Ctrl-C therefore signals only the demo, which
then stops the processes in order.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from auth.errors import ManyhandsError, StorageError, UnreachableError, WorkerError
from auth.files import make_private_directory, new_directory, write_private
from coordinator.checkpoints.validations import validations
from coordinator.context.open_run import OpenRun, create_run, make_settings
from coordinator.ledger.keeper_status import read_swarm_status
from coordinator.ledger.recorded_checkpoints import checkpoints
from coordinator.run.directory import RunDirectory
from coordinator.run.ports import Listener, check_ports, free_ports, is_free
from coordinator.run.settings import Settings
from coordinator.service.demo_report import StepFollower, summarize
from coordinator.service.parts import interrupts_ignored
from coordinator.service.preparation import dashboard_url
from coordinator.service.supervisor import LONGEST_STOP_S
from peer.config.phases import phase_at
from peer.config.run import RunConfig
from peer.network.http import asking, reaching
from peer.runtime.processes import die_with_parent, end_group, lead_own_group, name_process

ANSWER_S = 2.0
END_POLL_S = 0.05
TAIL_BYTES = 4096
HOST = "127.0.0.1"  # loopback address, unreachable from other machines
WEB_PORT = 8080
NAMES = ("ada", "grace", "emmy", "alan", "kurt", "alonzo", "edsger", "barbara")
POLL_S = 0.25
START_TIMEOUT_S = 180.0  # a restarted keeper first searches for its old swarm for a minute
PEERS_GRACE_S = 60.0  # a peer leaves within 10 s, or somewhat later on a busy machine
COORDINATOR_GRACE_S = LONGEST_STOP_S + 5.0


@dataclass(frozen=True)
class DemoPlan:
    """The configuration, directory and web port of the demo's run."""

    directory: Path
    config: RunConfig  # used only if the run does not exist yet
    web_port: int | None  # None for 8080 or, if taken, any free port


class StoppedEarlyError(Exception):
    """The demo was interrupted before its run was created; no files remain."""


def prepare_run(plan: DemoPlan, should_stop: Callable[[], bool] = lambda: False) -> RunDirectory:
    """Create the demo's run, or reopen an existing one on its previous ports if they are free.

    Raises `StoppedEarlyError` if a signal arrives while a new run is being created.
    """
    if not (plan.directory / "run.yaml").is_file():
        with new_directory(plan.directory, 0o700) as aside:
            _make_apart(aside / "run", plan.config, choose_settings(plan.web_port), should_stop)
            for part in (aside / "run").iterdir():
                part.rename(aside / part.name)
            (aside / "run").rmdir()
        return RunDirectory.open(plan.directory)
    before = RunDirectory.open(plan.directory).settings
    settings = choose_settings(plan.web_port, before.control_port, before.swarm_port)
    write_private(plan.directory / "settings.yaml", settings.to_yaml().encode())
    return RunDirectory.open(plan.directory)


def _make_apart(path: Path, config: RunConfig, settings: Settings, should_stop: Callable[[], bool]) -> None:
    """Create a run in a separate process, because only a kill can stop tokenizer training."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_make, args=(path, config, settings, os.getpid(), theirs), name="demo's run")
    with interrupts_ignored():
        process.start()
    assert process.pid is not None
    theirs.close()
    try:
        while not ours.poll(POLL_S):
            if should_stop():
                raise StoppedEarlyError
        error = ours.recv()
    except EOFError:
        process.join()
        error = WorkerError(f"The run was not made (exit code {process.exitcode}): was there enough memory?")
    finally:
        ours.close()
        if process.is_alive():
            end_group(process.pid)  # the next line kills a child that is not a group leader yet
            process.kill()
        process.join()
        process.close()
    if error is not None:
        raise error


def _make(path: Path, config: RunConfig, settings: Settings, parent_pid: int, answer: Connection) -> None:
    name_process("demo's run")
    lead_own_group()
    die_with_parent(parent_pid)
    try:
        create_run(path, config, settings)
        answer.send(None)
    except ManyhandsError as error:
        answer.send(error)


def choose_settings(web_port: int | None, *wished: int) -> Settings:
    """Return settings that listen on loopback only; `web_port`, if given, must be free.

    `wished` contains preferred ports for control plane and swarm, used only if both are free.
    """
    control_port, swarm_port, any_port = [port for port in free_ports(HOST, 4) if port != web_port][:3]
    if web_port is not None:
        check_ports([Listener(HOST, web_port, "the dashboard", "--port")])
    else:
        web_port = WEB_PORT if is_free(HOST, WEB_PORT) else any_port
    if wished and all(port != web_port and is_free(HOST, port) for port in wished):
        control_port, swarm_port = wished
    return make_settings(
        public_host=HOST, bind_host=HOST, control_port=control_port, web_port=web_port, swarm_port=swarm_port
    )


class CommandProcess:
    """A running `manyhands` command that writes its output to a file."""

    def __init__(
        self, name: str, arguments: Sequence[str], log_path: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log_path = log_path
        try:
            with log_path.open("ab") as log:
                self._process = subprocess.Popen(  # noqa: S603  # our own program and arguments
                    [sys.executable, "-m", "manyhands", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=log_path.parent,  # a folder without modules that could shadow our modules
                    env={**os.environ, **(environment or {})},
                    start_new_session=True,
                    preexec_fn=partial(die_with_parent, os.getpid()),  # safe: the demo has a single thread
                )
        except OSError as error:
            raise StorageError(f"Cannot start {name} ({error.strerror}).") from error

    def exit_code(self) -> int | None:
        """Return the exit code, or None if the command is still running."""
        return self._process.poll()

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the command, which then stops its child processes in order."""
        if self._process.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        """Kill the command and its process group."""
        if self._process.poll() is None:  # otherwise the pid may have been reused
            end_group(self._process.pid)
            self._process.wait()

    def last_words(self) -> str:
        """Return the last line of the command's output."""
        try:
            tail = self.log_path.read_bytes()[-TAIL_BYTES:].decode(errors="replace")
        except OSError:
            return ""
        lines = [line.strip() for line in tail.splitlines() if line.strip()]
        return lines[-1] if lines else ""


def stop_in_order(processes: Sequence[CommandProcess], grace_s: float) -> list[CommandProcess]:
    """Ask all processes to stop, and return those still running after `grace_s` seconds."""
    deadline = time.monotonic() + grace_s
    for process in processes:
        process.ask_to_stop()
    while any(process.exit_code() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(END_POLL_S)
    return [process for process in processes if process.exit_code() is None]


def answers(url: str) -> bool:
    """Return whether the web server at `url` answers with status 200."""
    try:
        with reaching(url), asking("GET", url, timeout_s=ANSWER_S) as answer:
            return answer.status_code == 200
    except UnreachableError:
        return False


def member_names(count: int) -> list[str]:
    """Return member names for `count` volunteers."""
    return [NAMES[number] if number < len(NAMES) else f"volunteer-{number + 1}" for number in range(count)]


class Demo:
    """A demo of an open run; call `start`, `follow` and `stop`, and finally `kill`."""

    def __init__(
        self,
        run: OpenRun,
        tell: Callable[[str], None],
        should_stop: Callable[[], bool],
        start_command: Callable[..., CommandProcess] = CommandProcess,
        dashboard_answers: Callable[[str], bool] = answers,
    ) -> None:
        self._run = run
        self._tell = tell
        self._should_stop = should_stop
        self._start_command = start_command
        self._dashboard_answers = dashboard_answers
        self._logs = run.directory.path / "logs"
        self._began = time.monotonic()
        self._first_step = 0
        self._follower = StepFollower()
        self._coordinator: CommandProcess | None = None
        self._peers: list[CommandProcess] = []

    def start(self, peers: int) -> None:
        """Start the coordinator and, once dashboard and keeper are ready, the volunteers."""
        make_private_directory(self._logs)
        directory = self._run.directory
        started_at = time.time()
        serve = ["coordinator", "serve", str(directory.path)]
        self._coordinator = self._start_command("the coordinator", serve, self._logs / "coordinator.log")
        self._wait_for("the dashboard", lambda: self._dashboard_answers(dashboard_url(directory.settings) + "healthz"))
        self._tell(f"Dashboard: {dashboard_url(directory.settings)}")
        self._tell("The keeper, the swarm's first node, is starting.")
        self._wait_for("the keeper", lambda: self._keeper_wrote_since(started_at))
        self._first_step = self._run.ledger.last_step()  # read after the keeper's start, which may rewind the run
        if not self._should_stop():
            self._peers = [self._start_peer(name) for name in member_names(peers)]
            self._tell(f"{', '.join(peer.name for peer in self._peers)} join; their logs are in {self._logs}.")
            target = phase_at(directory.config, self._first_step).target_batch_size
            self._tell(f"A global step follows as soon as they have computed {target} samples together.")

    def follow(self, steps: int | None) -> None:
        """Print global steps and peers' exits, until `steps` steps are done or a signal arrives."""
        while not self._should_stop() and (steps is None or len(self._follower.told) < steps):
            self._require_coordinator()
            self._bury_dead_peers()
            last = self._follower.last.step if self._follower.last is not None else self._first_step
            rows = self._run.ledger.steps(after=last)
            for line in self._follower.take(rows, len(self._peers), time.monotonic()):
                self._tell(line)
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Stop the volunteers, then the coordinator. Raises `WorkerError` if a process must be killed."""
        self._tell("Stopping: the volunteers leave, the keeper writes the last checkpoint, and it is evaluated.")
        stuck = stop_in_order(self._peers, PEERS_GRACE_S)
        for peer in stuck:
            peer.kill()
        if self._coordinator is not None:
            stuck += stop_in_order([self._coordinator], COORDINATOR_GRACE_S)
        if stuck:
            names = ", ".join(process.name for process in stuck)
            raise WorkerError(f"{names} did not stop in time and had to be killed; see {self._logs}.")

    def kill(self) -> None:
        """Kill all processes that are still running."""
        for process in [*self._peers, *([self._coordinator] if self._coordinator is not None else [])]:
            process.kill()

    def summary(self) -> dict[str, Any]:
        """Return this demo's results (see `summarize`), excluding earlier demos of the same run."""
        newest = checkpoints(self._run.database)[:1]
        return summarize(
            self._run.ledger.steps(after=self._first_step),  # including a step that ended during `stop`
            self._run.ledger.contributions_after(self._first_step),
            [row for row in validations(self._run.database) if row.step > self._first_step],
            phase_at(self._run.directory.config, self._run.ledger.last_step()).target_batch_size,
            time.monotonic() - self._began,
            self._run.directory.checkpoint_dir(newest[0].step) if newest else None,
        )

    def _start_peer(self, name: str) -> CommandProcess:
        state_dir = self._run.directory.path / "peers" / name
        known = state_dir.exists()  # a known device needs no invite
        code = "" if known else self._run.membership.invite(name)[0]
        arguments = ["join", str(self._run.directory.join_link), "--state-dir", str(state_dir)]
        arguments += ["--data-folder", "/", "--private-network"]  # safe, because the user wrote the run file
        arguments += ["--device", "cpu", "--threads", "1", "--listen", f"/ip4/{HOST}/tcp/0", "--no-panel"]
        # Command-line arguments are visible to all users of the machine; the invite code is secret.
        return self._start_command(
            name, arguments, self._logs / f"{name}.log", {"MANYHANDS_INVITE": code} if code else {}
        )

    def _wait_for(self, what: str, there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._should_stop() and not there():
            self._require_coordinator()
            if time.monotonic() > deadline:
                raise UnreachableError(f"{what} did not come up within {START_TIMEOUT_S:g} s; see {self._logs}.")
            time.sleep(POLL_S)

    def _require_coordinator(self) -> None:
        assert self._coordinator is not None
        if self._coordinator.exit_code() is not None:
            raise WorkerError(f"The coordinator ended by itself: {self._coordinator.last_words()}")

    def _bury_dead_peers(self) -> None:
        for peer in [peer for peer in self._peers if peer.exit_code() is not None]:
            self._peers.remove(peer)
            self._tell(f"{peer.name} is gone (exit code {peer.exit_code()}): {peer.last_words()}")
            if not self._peers:
                raise WorkerError(f"All volunteers are gone; see {self._logs}.")

    def _keeper_wrote_since(self, then: float) -> bool:
        status = read_swarm_status(self._run.database)
        return status is not None and status.updated_at >= then
