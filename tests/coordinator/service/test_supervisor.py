"""The supervisor: its decisions, with stand-ins for the processes, its start, and its signals."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from auth.errors import ManyhandsError, PortTakenError, StorageError, WorkerError
from coordinator.run.logs import LogStyle
from coordinator.service import supervisor as module
from coordinator.service.parts import KEEPER, SERVICE, VALIDATOR, Part, PartProcess
from coordinator.service.supervisor import (
    LONGEST_AUXILIARY_PAUSE_S,
    LONGEST_PAUSE_S,
    MAX_FAILURES,
    STEADY_S,
    StopSignal,
    Supervisor,
    preparation,
    prepare_apart,
    restart_delay_s,
    serve_run,
)
from tests.support import part_mains
from tests.support.small_run import HOST, make_small_run


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_asks_and_the_second_ends_at_once(number: signal.Signals) -> None:
    """One Ctrl-C or SIGTERM is a request; another interrupts whatever the command is doing."""
    with StopSignal() as stop:
        assert not stop()
        os.kill(os.getpid(), number)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_handlers_are_given_back() -> None:
    """Afterwards signals mean what they meant before."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with StopSignal():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@dataclass
class FakeProcess:
    """A part whose fate the test decides."""

    part: Part = KEEPER
    becomes_ready: bool = True  # as soon as it is started
    ready: bool = False
    error: ManyhandsError | None = None
    pid: int = 1
    dead: bool = False
    starts: int = 0
    exit_code: int = -9
    calls: list[str] = field(default_factory=list)
    order: list[str] = field(default_factory=list)  # shared: who was asked to stop, one after the other

    def start(self) -> None:
        self.starts += 1
        self.dead, self.ready = False, self.becomes_ready

    def read(self) -> None:
        """Nothing to take in."""

    def has_ended(self) -> bool:
        return self.dead

    def ask_to_stop(self) -> None:
        self.calls.append("stop")
        self.order.append(self.part.name)
        self.dead = True

    def end(self) -> int | None:
        self.calls.append("end")
        return self.exit_code if self.dead else None


class Script:
    """Stands for `should_stop` and the clock: each look lets some time pass and something happen."""

    def __init__(self, *events: Callable[[], object], pass_s: float = 1.0) -> None:
        self.now = 0.0
        self._pass_s = pass_s
        self._events = list(events)

    def clock(self) -> float:
        return self.now

    def __call__(self) -> bool:
        self.now += self._pass_s
        if not self._events:
            return True
        self._events.pop(0)()
        return False


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.0)


def supervise(script: Script, *processes: FakeProcess) -> list[str]:
    """Run the script to its end; returns the names of the parts that became ready, in order."""
    announced: list[str] = []
    supervisor = Supervisor(
        [cast(PartProcess, process) for process in processes], lambda part: announced.append(part.name), script.clock
    )
    supervisor.run(script)
    return announced


def nothing() -> None:
    """Time passes."""


def killer(process: FakeProcess) -> Callable[[], None]:
    """An event: the process dies."""

    def kill() -> None:
        process.dead = True

    return kill


def test_both_parts_are_started_announced_once_and_stopped_in_order() -> None:
    """Each part starts, is announced when ready, is asked to stop, and only then its group is ended."""
    service, keeper = FakeProcess(SERVICE), FakeProcess(KEEPER)
    assert supervise(Script(nothing, nothing, nothing), service, keeper) == ["service", "keeper"]
    assert service.starts == keeper.starts == 1
    assert service.calls == keeper.calls == ["stop", "end"]


def test_dead_part_is_ended_and_started_again_after_a_pause() -> None:
    """A part that dies comes back a second later, while the other goes on untouched."""
    service, keeper = FakeProcess(SERVICE), FakeProcess(KEEPER)
    script = Script(nothing, killer(keeper), nothing, pass_s=0.6)
    assert supervise(script, service, keeper) == ["service", "keeper"]
    assert keeper.starts == 1  # 0.6 s after its death: not yet
    script = Script(nothing, killer(keeper), nothing, nothing, pass_s=0.6)
    keeper.starts, keeper.dead = 0, False
    assert supervise(script, service, keeper) == ["service", "keeper", "keeper"]
    assert keeper.starts == 2


def test_failure_at_the_first_start_is_the_parts_own_error() -> None:
    """What makes a first start impossible is raised as it is, and the other part's group is ended."""
    service, keeper = (
        FakeProcess(SERVICE),
        FakeProcess(KEEPER, becomes_ready=False, error=StorageError("No space left.")),
    )
    with pytest.raises(StorageError, match="No space left"):
        supervise(Script(nothing, killer(keeper), nothing), service, keeper)
    assert "end" in service.calls


@pytest.mark.parametrize("error", [None, WorkerError("The connection is lost.")])
def test_first_death_of_a_part_that_was_ready_ends_nothing(
    error: ManyhandsError | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The part is started again and the log says why, whether its error is a known one or not."""
    keeper = FakeProcess(KEEPER, error=error)
    supervise(Script(nothing, killer(keeper), nothing), keeper)
    assert keeper.starts == 2
    assert f"the keeper has died ({error or 'exit code -9'}); starting it again in 1 s" in caplog.text


@pytest.mark.parametrize("outage_s", [15, 3600])
def test_database_that_is_away_for_long_ends_nothing(outage_s: int) -> None:
    """Parts that were ready once are tried for as long as it is away, and soon after its return."""
    service, keeper = FakeProcess(SERVICE), FakeProcess(KEEPER)

    def away() -> None:
        for process in (service, keeper):
            process.dead, process.becomes_ready = True, False
            process.error = StorageError("The database cannot be opened.")

    def back() -> None:
        for process in (service, keeper):
            process.becomes_ready, process.error = True, None

    script = Script(nothing, *[away] * outage_s, back, *[nothing] * int(LONGEST_PAUSE_S))
    assert supervise(script, service, keeper) == ["service", "keeper", "service", "keeper"]
    assert keeper.starts <= MAX_FAILURES + outage_s / LONGEST_PAUSE_S + 1


def test_failing_again_and_again_before_it_was_ready_is_given_up() -> None:
    """A part that never becomes ready is given up after some attempts, with the last reason."""
    keeper = FakeProcess(KEEPER, becomes_ready=False)
    events = [event for _ in range(MAX_FAILURES) for event in (nothing, killer(keeper), *[nothing] * 40)]
    with pytest.raises(WorkerError, match=r"keeper failed 6 times in a row.*exit code -9"):
        supervise(Script(*events), keeper)
    assert keeper.starts == MAX_FAILURES


def test_part_that_ran_steadily_is_always_started_again() -> None:
    """Deaths far apart are not counted together."""
    keeper = FakeProcess(KEEPER)
    deaths = 3 * MAX_FAILURES
    events = [event for _ in range(deaths) for event in (nothing, killer(keeper), nothing)]
    supervise(Script(*events, pass_s=STEADY_S), keeper)
    assert keeper.starts == deaths + 1


def test_pauses_between_restarts_double() -> None:
    """1, 2, 4, ... seconds; then no more, or half a minute each for a part that was ready once."""
    assert [restart_delay_s(failures) for failures in range(1, MAX_FAILURES)] == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert restart_delay_s(MAX_FAILURES) is None
    assert {restart_delay_s(failures, was_ready=True) for failures in (MAX_FAILURES, 10_000)} == {LONGEST_PAUSE_S}


def test_the_validator_is_asked_to_stop_when_the_others_have_ended() -> None:
    """Whatever the order of the starts: the keeper's last checkpoint is there when the validator is told."""
    order: list[str] = []
    processes = [FakeProcess(part, order=order) for part in (VALIDATOR, KEEPER, SERVICE)]
    supervise(Script(nothing), *processes)
    assert order == ["keeper", "service", "validator"]


def test_the_run_goes_on_without_a_validator_that_cannot_run() -> None:
    """Its first error ends nothing, and after many failures it is tried now and then, the keeper untouched."""
    keeper, validator = (
        FakeProcess(KEEPER),
        FakeProcess(VALIDATOR, becomes_ready=False, error=StorageError("No space left.")),
    )
    pause = [nothing] * int(LONGEST_AUXILIARY_PAUSE_S + 1)
    events = [event for _ in range(MAX_FAILURES + 2) for event in (nothing, killer(validator), *pause)]
    supervise(Script(*events), keeper, validator)
    assert validator.starts == MAX_FAILURES + 3
    assert keeper.starts == 1
    assert restart_delay_s(MAX_FAILURES, auxiliary=True) == LONGEST_AUXILIARY_PAUSE_S


def test_a_validator_that_had_nothing_left_to_do_is_started_again_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It ends to give memory back, as often as it likes, and never waits longer for that; a keeper may not."""
    validator = FakeProcess(VALIDATOR, exit_code=0)
    ends = 3 * MAX_FAILURES
    supervise(Script(*[event for _ in range(ends) for event in (nothing, killer(validator), nothing)]), validator)
    assert validator.starts == ends + 1
    assert caplog.text == ""
    keeper = FakeProcess(KEEPER, exit_code=0)
    supervise(Script(nothing, killer(keeper), nothing), keeper)
    assert "the keeper has died (exit code 0)" in caplog.text


def test_a_validator_that_does_not_stop_is_killed_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was evaluating is evaluated after the next start."""
    monkeypatch.setattr(module, "AUXILIARY_GRACE_S", 0.0)
    keeper, stuck = FakeProcess(KEEPER), FakeProcess(VALIDATOR)
    monkeypatch.setattr(stuck, "ask_to_stop", nothing)
    supervise(Script(nothing), keeper, stuck)
    assert stuck.calls == ["end"]


def test_part_that_does_not_stop_is_killed_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the grace the group is ended all the same, and the command fails."""
    monkeypatch.setattr(module, "STOP_GRACE_S", 0.0)
    stuck = FakeProcess(KEEPER)
    monkeypatch.setattr(stuck, "ask_to_stop", nothing)
    with pytest.raises(WorkerError, match="keeper did not stop"):
        supervise(Script(nothing), stuck)
    assert stuck.calls == ["end"]


@pytest.mark.usefixtures("forked")
def test_the_run_is_prepared_in_a_process_that_ends(tmp_path: Path) -> None:
    """Its answer names the parts to start and the addresses to tell."""
    run = make_small_run(tmp_path)
    part = preparation(service_only=True, keeper_only=False)
    prepared = prepare_apart(run.path, part, LogStyle())
    assert prepared.run == run.config.run.name
    assert prepared.parts == (SERVICE,)
    assert prepared.join_link == str(run.join_link)


@pytest.mark.usefixtures("forked")
def test_nothing_is_served_of_a_run_that_cannot_be_prepared(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The error of the preparation is raised as it is, and no part is started."""
    run = make_small_run(tmp_path)
    with (
        socket.create_server((HOST, run.settings.web_port)),
        pytest.raises(PortTakenError, match=rf"{run.settings.web_port}.*`web_port`"),
    ):
        serve_run(run.path)
    assert capfd.readouterr().out == ""


def test_a_preparation_that_dies_is_told(tmp_path: Path) -> None:
    """The exit code is all that is known of it."""
    with pytest.raises(WorkerError, match=r"could not be prepared \(exit code 1\)"):
        prepare_apart(tmp_path, Part("preparation", part_mains.crashes), LogStyle())
