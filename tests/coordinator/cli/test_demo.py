"""The demo: what it starts, tells and stops, with stand-ins for its processes over a real run; and its report."""

from __future__ import annotations

import multiprocessing
import os
import re
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from sqlalchemy import update

from auth.errors import ConfigError, PortTakenError, UnreachableError, WorkerError
from coordinator.checkpoints.validations import record_validation
from coordinator.context.open_run import OpenRun
from coordinator.ledger.reading import Contribution, StepRow
from coordinator.ledger.recorded_checkpoints import record_checkpoint
from coordinator.service import demo as demo_run
from coordinator.service.demo import (
    CommandProcess,
    Demo,
    DemoPlan,
    StoppedEarlyError,
    choose_settings,
    prepare_run,
    stop_in_order,
)
from coordinator.service.demo_report import SETTLE_S, StepFollower, summarize, summary_lines
from coordinator.store.models import Device
from peer.config.data import Source
from peer.reporting.messages import StepReport
from tests.support.ledgers import deliver, keeper_at
from tests.support.ports import free_ports
from tests.support.receipts import keeper_confirms, key_of, pseudonym_of
from tests.support.served_page import validation_row
from tests.support.small_run import HOST, TARGET_BATCH_SIZE, make_small_run, small_config
from tests.support.waiting import wait_until

FAR_AHEAD = 4e9  # Unix seconds: after any start


def row(step: int, samples: int = 32, loss: float | None = 5.0, devices: int = 2, at: float = 0.0) -> StepRow:
    """One step of the ledger."""
    return StepRow(step, samples, loss, devices, at, target_batch_size=32)


@dataclass
class FakeProcess:
    """A command that only remembers; volunteers join with their invite and report what the test wants."""

    name: str
    arguments: list[str]
    log_path: Path
    environment: Mapping[str, str]
    code: int | None = None
    killed: bool = False
    obedient: bool = True
    order: list[str] = field(default_factory=list)

    def exit_code(self) -> int | None:
        return self.code

    def ask_to_stop(self) -> None:
        self.order.append(self.name)
        self.code = 0 if self.obedient else None

    def kill(self) -> None:
        self.killed = self.code is None
        self.code = -9 if self.code is None else self.code

    def last_words(self) -> str:
        return "its last words"


@dataclass
class Machine:
    """Everything that the demo started, in order."""

    run: OpenRun
    keeper_writes: bool = True
    keeper_step: int = 0  # that the swarm is at, as a keeper that starts says
    processes: list[FakeProcess] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    devices: dict[str, str] = field(default_factory=dict)  # volunteer -> id of the device that has joined

    def start(
        self, name: str, arguments: Sequence[str], log_path: Path, environment: Mapping[str, str] | None = None
    ) -> CommandProcess:
        process = FakeProcess(name, list(arguments), log_path, environment or {}, order=self.order)
        self.processes.append(process)
        if arguments[0] == "coordinator" and self.keeper_writes:
            keeper_at(self.run.database, self.keeper_step, FAR_AHEAD)
        return cast(CommandProcess, process)

    def volunteer(self, name: str) -> FakeProcess:
        return next(process for process in self.processes if process.name == name)

    def join(self, name: str) -> None:
        """A volunteer joins with the invite that it was given."""
        invite = self.volunteer(name).environment["MANYHANDS_INVITE"]
        key = key_of(name)
        pseudonym = pseudonym_of(name, self.run.directory.config.run.name)
        grant = self.run.membership.join(key.public_key, invite, receipt_key=pseudonym)
        assert grant.member == name
        with self.run.database.begin() as session:
            session.execute(update(Device).values(created_at=0.0))  # it reports of long ago
        self.devices[name] = grant.device_id

    def report(self, name: str, steps: int, samples: int, first: int = 1) -> None:
        """A volunteer, who joins if that is still to do, reports so many steps from the first on."""
        if name not in self.devices:
            self.join(name)
        for step in range(first, first + steps):
            report = StepReport(
                step, samples, 9.0 - step, None, None, 3, None, 0.1, 50.0, data_wait_s=1.0, elapsed_s=4.0
            )
            assert deliver(self.run.ledger, self.devices[name], None, step, report, 1e9 + step).accepted


@pytest.fixture
def machine(opened_run: OpenRun, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine on which the processes of a demo are only noted."""
    monkeypatch.setattr(demo_run, "POLL_S", 0.0)
    return Machine(opened_run)


def demo_on(
    machine: Machine, told: list[str], should_stop: Callable[[], bool] = lambda: False, up: bool = True
) -> Demo:
    """A demo whose processes are the machine's stand-ins."""
    return Demo(machine.run, told.append, should_stop, machine.start, dashboard_answers=lambda url: up)


def test_volunteers_join_as_strangers_do(machine: Machine) -> None:
    """Coordinator first, then volunteers by link and invite; the code is in no argument and not the same for two."""
    told: list[str] = []
    demo_on(machine, told).start(2)
    assert [process.name for process in machine.processes] == ["the coordinator", "ada", "grace"]
    assert any(line.startswith("Dashboard: http://127.0.0.1:") for line in told)
    ada, grace = machine.processes[1:]
    codes = [process.environment["MANYHANDS_INVITE"] for process in (ada, grace)]
    assert codes[0] != codes[1]
    for process in (ada, grace):
        assert process.arguments[:2] == ["join", str(machine.run.directory.join_link)]
        assert not set(codes) & set(process.arguments)
        assert not any(code in line for code in codes for line in told)
    directories = [process.arguments[process.arguments.index("--state-dir") + 1] for process in (ada, grace)]
    assert len(set(directories)) == 2


def test_volunteer_that_joined_before_needs_no_invite(machine: Machine) -> None:
    """A continued demo takes its volunteers' devices up again."""
    (machine.run.directory.path / "peers" / "ada").mkdir(parents=True)
    demo_on(machine, []).start(2)
    assert "MANYHANDS_INVITE" not in machine.volunteer("ada").environment
    assert "MANYHANDS_INVITE" in machine.volunteer("grace").environment


def test_steps_are_told_and_summed_up(machine: Machine) -> None:
    """After the steps that were asked for it ends, volunteers first, and the summary is the ledger's."""
    told: list[str] = []
    demo = demo_on(machine, told)
    demo.start(2)
    machine.report("ada", steps=2, samples=20)
    machine.report("grace", steps=2, samples=16)
    for step in (1, 2):
        run = machine.run
        keeper_confirms(run.database, run.membership, run.ledger, run.directory.config.run.name, step)
    demo.follow(steps=2)
    demo.stop()
    record_checkpoint(machine.run.database, step=2, size_bytes=1, manifest_sha256="0" * 64, now=0.0)
    for step, mlm_loss in ((2, 7.0), (1, 8.0)):  # the newest first
        record_validation(machine.run.database, validation_row(step, mlm_loss))
    assert [line for line in told if line.startswith("step")] == [
        "step    1  loss 8.0000  36 samples  2 peers",
        "step    2  loss 7.0000  36 samples  36.0 samples/s  2 peers",
    ]
    assert machine.order == ["ada", "grace", "the coordinator"]
    summary = demo.summary()
    assert summary.pop("wall_seconds") >= 0
    assert summary == {
        "steps": 2,
        "first_loss": 8.0,
        "last_loss": 7.0,
        "target_batch_size": TARGET_BATCH_SIZE,
        "samples_by_step": {"1": 36, "2": 36},
        "samples_by_member": {"ada": 40, "grace": 32},
        "data_wait_share": 0.25,
        "validation": {"first": validation_row(1, 8.0).facts, "last": validation_row(2, 7.0).facts},
        "checkpoint": str(machine.run.directory.checkpoint_dir(2)),
    }


def test_a_continued_demo_sums_up_only_its_own_part(machine: Machine) -> None:
    """Steps, samples and seconds are of the same span; those of earlier demos in the directory are left out."""
    run = machine.run
    demo_on(machine, []).start(2)
    machine.report("ada", steps=2, samples=20)
    machine.report("grace", steps=2, samples=16)
    machine.keeper_step = 2
    continued = demo_on(machine, [])
    continued.start(1)
    machine.report("ada", steps=1, samples=24, first=3)
    for step in (1, 2, 3):
        keeper_confirms(run.database, run.membership, run.ledger, run.directory.config.run.name, step)
    summary = continued.summary()
    assert summary["steps"] == 1
    assert summary["samples_by_member"] == {"ada": 24, "grace": 0}


def test_lost_volunteer_is_told_and_the_run_goes_on(machine: Machine) -> None:
    """With one of two gone, steps of the other alone are complete."""
    told: list[str] = []
    demo = demo_on(machine, told)
    demo.start(2)
    machine.volunteer("grace").code = -9
    machine.report("ada", steps=1, samples=40)
    demo.follow(steps=1)
    assert "grace is gone (exit code -9): its last words" in told
    assert told[-1].endswith("1 peer")


@pytest.mark.parametrize(
    ("process", "code", "said"), [("ada", 18, "All volunteers are gone"), ("the coordinator", 13, "its last words")]
)
def test_a_demo_that_lost_all_of_a_kind_fails(machine: Machine, process: str, code: int, said: str) -> None:
    """Instead of waiting for ever, when the last volunteer or the coordinator is gone."""
    demo = demo_on(machine, [])
    demo.start(1)
    machine.volunteer(process).code = code
    with pytest.raises(WorkerError, match=said):
        demo.follow(steps=1)


def test_coordinator_that_never_answers_is_given_up(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """No volunteer is started for a coordinator that does not come up."""
    monkeypatch.setattr(demo_run, "START_TIMEOUT_S", 0.0)
    with pytest.raises(UnreachableError, match="the dashboard did not come up"):
        demo_on(machine, [], up=False).start(2)
    assert len(machine.processes) == 1


def test_stop_before_anything_is_up_starts_no_volunteer(machine: Machine) -> None:
    """Ctrl-C while the coordinator starts ends it without inviting anybody."""
    machine.keeper_writes = False
    demo = demo_on(machine, [], should_stop=lambda: True)
    demo.start(2)
    demo.follow(steps=None)
    demo.stop()
    assert machine.order == ["the coordinator"]
    assert machine.run.membership.members() == []


def test_who_does_not_stop_is_killed_and_told(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A volunteer that ignores the request does not keep the coordinator from ending in order."""
    monkeypatch.setattr(demo_run, "PEERS_GRACE_S", 0.0)
    demo = demo_on(machine, [])
    demo.start(2)
    machine.volunteer("ada").obedient = False
    with pytest.raises(WorkerError, match=r"^ada did not stop"):
        demo.stop()
    assert machine.volunteer("ada").killed
    assert machine.volunteer("the coordinator").code == 0


def test_kill_ends_whatever_still_runs(machine: Machine) -> None:
    """After a failure nothing is left."""
    demo = demo_on(machine, [])
    demo.start(2)
    demo.kill()
    assert all(process.killed for process in machine.processes)


def test_new_run_serves_this_machine_only(tmp_path: Path) -> None:
    """A demo's run is complete and listens on the loopback address."""
    directory = prepare_run(DemoPlan(tmp_path / "new", small_config(tmp_path), web_port=None))
    assert directory.settings.public_host == directory.settings.bind_host == HOST
    assert (directory.tokenizer_dir / "tokenizer.json").is_file()


def test_a_demo_that_is_stopped_while_it_makes_its_run_leaves_nothing(tmp_path: Path) -> None:
    """Neither a process nor a folder, though the training of its tokenizer would never end."""
    config, place = small_config(tmp_path), tmp_path / "runs" / "new"
    os.mkfifo(tmp_path / "endless.txt.gz")
    data = config.data.model_copy(update={"sources": (Source(kind="text", path=(str(tmp_path / "endless.txt.gz"),)),)})
    config = config.model_copy(update={"data": data})

    def has_begun() -> bool:
        return any(place.parent.rglob("authority.key"))

    with pytest.raises(StoppedEarlyError):
        prepare_run(DemoPlan(place, config, web_port=None), has_begun)
    assert list(place.parent.iterdir()) == []
    assert multiprocessing.active_children() == []


def test_what_is_wrong_with_a_new_run_is_said(tmp_path: Path) -> None:
    """By the process that makes it, as the error that it is; nothing is left of the run."""
    config = small_config(tmp_path)
    tokenizer = config.tokenizer.model_copy(update={"path": str(tmp_path / "missing")})
    with pytest.raises(ConfigError, match="missing"):
        prepare_run(
            DemoPlan(tmp_path / "runs" / "new", config.model_copy(update={"tokenizer": tokenizer}), web_port=None)
        )
    assert list((tmp_path / "runs").iterdir()) == []


def test_existing_run_is_continued_on_free_ports(tmp_path: Path) -> None:
    """A directory with a run keeps its keys and configuration; its ports may be others."""
    before = make_small_run(tmp_path)
    other = small_config(tmp_path).model_copy(update={"run": before.config.run.model_copy(update={"name": "other"})})
    with socket.create_server((HOST, before.settings.control_port)):
        after = prepare_run(DemoPlan(before.path, other, web_port=None))
        assert after.settings.control_port != before.settings.control_port
    again = prepare_run(DemoPlan(before.path, other, web_port=after.settings.swarm_port))
    chosen = {again.settings.swarm_port, again.settings.control_port, again.settings.web_port}
    assert again.settings.web_port == after.settings.swarm_port
    assert len(chosen) == 3
    assert after.config.run.name == "small"
    assert after.join_link.fingerprint == before.join_link.fingerprint


def test_existing_run_keeps_ports_that_are_free(tmp_path: Path) -> None:
    """Its join link stays good, and nobody has to look for the keeper."""
    before = make_small_run(tmp_path)
    after = prepare_run(DemoPlan(before.path, before.config, web_port=None))
    assert str(after.join_link) == str(before.join_link)
    assert after.settings.swarm_port == before.settings.swarm_port


def test_port_that_was_asked_for_must_be_free() -> None:
    """--port is a wish that is met or refused; without it a taken 8080 is avoided."""
    with socket.create_server((HOST, 0)) as server, pytest.raises(PortTakenError, match="--port"):
        choose_settings(server.getsockname()[1])
    settings = choose_settings(None)
    assert len({settings.control_port, settings.web_port, settings.swarm_port}) == 3


def test_port_that_was_asked_for_is_given_to_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is free, so the operating system may offer it for the swarm, too."""
    wished, *others = free_ports(HOST, 4)
    monkeypatch.setattr(
        "coordinator.service.demo.free_ports", lambda _host, count: [others[0], wished, *others[1:]][:count]
    )
    settings = choose_settings(wished)
    assert (settings.web_port, settings.control_port, settings.swarm_port) == (wished, *others[:2])


def test_step_is_told_when_all_have_reported() -> None:
    """A step with a report missing waits, and those after it wait too, so that the order is right."""
    follower = StepFollower()
    assert follower.take([row(1, devices=1), row(2)], peers=2, now=0.0) == []
    assert len(follower.take([row(1), row(2)], peers=2, now=0.1)) == 2
    assert [told.step for told in follower.told] == [1, 2]


def test_step_is_told_at_last_although_a_report_is_missing() -> None:
    """A peer that left without reporting does not hold the line up for long."""
    follower = StepFollower()
    assert follower.take([row(1, devices=1)], peers=2, now=10.0) == []
    assert len(follower.take([row(1, devices=1)], peers=2, now=10.0 + SETTLE_S)) == 1


def test_summary_of_nothing_is_still_a_summary() -> None:
    """A demo stopped before its first step has no losses and says that nothing was completed."""
    summary = summarize([], [], [], 32, 1.0, None)
    assert (summary["steps"], summary["first_loss"], summary["checkpoint"]) == (0, None, None)
    assert summary["data_wait_share"] is None
    assert summary_lines(summary) == ["No global step was completed."]


def test_summary_for_people_names_what_matters() -> None:
    """Losses with their change, members with their samples, the time without data, and the checkpoint."""
    steps = [row(1, loss=8.0), row(2, loss=6.0)]
    given = [
        Contribution(name, samples, 1, 1, None, 1.0, 8.0, 0.02, 0) for name, samples in (("ada", 40), ("grace", 24))
    ]
    text = "\n".join(summary_lines(summarize(steps, given, [], 32, 9.0, Path("/c/2"))))
    assert "Waited for data: 0.25% of the time." in text
    assert "8.0000 -> 6.0000 (-25.0%)" in text
    assert "ada 40, grace 24" in text
    assert "/c/2" in text
    assert "held-out" not in text


@pytest.mark.usefixtures("forked")
def test_command_is_a_process_with_a_log(tmp_path: Path) -> None:
    """A command's words go to its log, its end is seen, and killing what has ended is fine."""
    log = tmp_path / "logs" / "it.log"
    log.parent.mkdir()
    process = CommandProcess("it", ["coordinator", "status", str(tmp_path / "none")], log)
    assert stop_until_ended(process) == 3
    assert re.search(r"none holds no run", process.last_words())
    process.kill()


def test_command_is_killed_with_its_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that does not stop is reported as such, and kill ends it."""
    monkeypatch.setattr(sys, "executable", "/bin/sh")  # sh -m manyhands: no such script, so the fake below is run
    script = tmp_path / "manyhands"
    script.write_text("trap '' TERM\necho started\nwhile :; do sleep 1; done\n")
    process = CommandProcess("it", [], tmp_path / "it.log")
    wait_until("the command has started", lambda: process.last_words() == "started")
    assert stop_in_order([process], grace_s=0.2) == [process]
    process.kill()
    assert process.exit_code() == -9


def stop_until_ended(process: CommandProcess) -> int | None:
    """Wait for a command that ends by itself."""
    wait_until("the command has ended", lambda: process.exit_code() is not None)
    return process.exit_code()
