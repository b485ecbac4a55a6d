"""The supervisor: its decisions, with stand-ins for the processes, its checks before a start, and its signals."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pytest

from auth.errors import ConfigError, ManyhandsError, PortTakenError, StorageError, WorkerError
from coordinator.run.settings import Settings
from coordinator.service import supervisor as module
from coordinator.service.parts import ANSWERER, HERALD, KEEPER, PUBLISHER, SERVICE, SINKS, VALIDATOR, Part, PartProcess
from coordinator.service.supervisor import (
    LONGEST_PAUSE_S,
    MAX_FAILURES,
    STEADY_S,
    StopSignal,
    Supervisor,
    chosen_parts,
    dashboard_url,
    listeners,
    restart_delay_s,
    serve_run,
)
from peer.config.run import RunConfig
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
    ready: bool = True
    error: ManyhandsError | None = None
    pid: int = 1
    dead: bool = False
    starts: int = 0
    calls: list[str] = field(default_factory=list)
    order: list[str] = field(default_factory=list)  # shared: who was asked to stop, one after the other

    def start(self) -> None:
        self.starts += 1
        self.dead = False

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
        return -9 if self.dead else None


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
    service, keeper = FakeProcess(SERVICE), FakeProcess(KEEPER, error=StorageError("No space left."))
    with pytest.raises(StorageError, match="No space left"):
        supervise(Script(nothing, killer(keeper), nothing), service, keeper)
    assert "end" in service.calls


def test_failing_again_and_again_is_given_up() -> None:
    """A part that never lives long is given up after some attempts, with the last reason."""
    keeper = FakeProcess(KEEPER)
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
    """1, 2, 4, ... seconds, then no more."""
    assert [restart_delay_s(failures) for failures in range(1, MAX_FAILURES)] == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert restart_delay_s(MAX_FAILURES) is None


def test_the_validator_is_asked_to_stop_when_the_others_have_ended() -> None:
    """Whatever the order of the starts: the keeper's last checkpoint is there when the validator is told."""
    order: list[str] = []
    processes = [FakeProcess(part, order=order) for part in (VALIDATOR, KEEPER, SERVICE)]
    supervise(Script(nothing), *processes)
    assert order == ["keeper", "service", "validator"]


def test_the_run_goes_on_without_a_validator_that_cannot_run() -> None:
    """Its first error ends nothing, and after many failures it is tried now and then, the keeper untouched."""
    keeper, validator = FakeProcess(KEEPER), FakeProcess(VALIDATOR, error=StorageError("No space left."))
    pause = [nothing] * int(LONGEST_PAUSE_S + 1)
    events = [event for _ in range(MAX_FAILURES + 2) for event in (nothing, killer(validator), *pause)]
    supervise(Script(*events), keeper, validator)
    assert validator.starts == MAX_FAILURES + 3
    assert keeper.starts == 1
    assert restart_delay_s(MAX_FAILURES, auxiliary=True) == LONGEST_PAUSE_S


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


@pytest.mark.parametrize("key", ["control_port", "web_port", "swarm_port"])
def test_taken_port_is_named_before_anything_starts(tmp_path: Path, key: str) -> None:
    """Each of the three ports is checked; the sentence names the port and the setting to change."""
    run = make_small_run(tmp_path)
    port = getattr(run.settings, key)
    with (
        socket.create_server((HOST, port)),
        pytest.raises(PortTakenError, match=rf"{port}.*`{key}` in .*settings.yaml"),
    ):
        serve_run(run.path)


def silent(content: Mapping[str, Any] = MappingProxyType({})) -> RunConfig:
    """A run file by which the model answers no visitors."""
    return RunConfig.from_mapping({"dashboard": {"try_it": False}, **content})


def test_the_validator_stands_beside_the_keeper() -> None:
    """It is where the checkpoints are, and nowhere if nothing is held out."""
    config, without = silent(), silent({"data": {"validation": {"share": 0.0}}})
    assert chosen_parts(config, service_only=False, keeper_only=False) == (SERVICE, KEEPER, VALIDATOR)
    assert chosen_parts(config, service_only=True, keeper_only=False) == (SERVICE,)
    assert chosen_parts(config, service_only=False, keeper_only=True) == (KEEPER, VALIDATOR)
    assert chosen_parts(without, service_only=False, keeper_only=True) == (KEEPER,)


def test_the_answerer_stands_where_the_checkpoints_are() -> None:
    """Once, beside the keeper, unless the run file says that visitors may not try the model."""
    assert chosen_parts(RunConfig(), service_only=False, keeper_only=True) == (KEEPER, VALIDATOR, ANSWERER)
    assert chosen_parts(RunConfig(), service_only=True, keeper_only=False) == (SERVICE,)
    assert ANSWERER not in chosen_parts(silent(), service_only=False, keeper_only=False)


def test_one_herald_tells_of_milestones() -> None:
    """Where there is a webhook; a service alone tells nothing, or replicas would tell it several times."""
    config = silent()
    assert chosen_parts(config, service_only=False, keeper_only=True, has_webhooks=True) == (KEEPER, VALIDATOR, HERALD)
    assert chosen_parts(config, service_only=True, keeper_only=False, has_webhooks=True) == (SERVICE,)


def test_sinks_are_written_beside_the_keeper() -> None:
    """Where there are any; a service alone writes none, or two machines would write the same."""
    config = silent()
    assert chosen_parts(config, service_only=False, keeper_only=True, has_sinks=True) == (KEEPER, VALIDATOR, SINKS)
    assert chosen_parts(config, service_only=True, keeper_only=False, has_sinks=True) == (SERVICE,)


def test_the_publisher_stands_where_the_checkpoints_are() -> None:
    """If the settings name a place to publish to."""
    config = silent()
    both = chosen_parts(config, service_only=False, keeper_only=False, publishes=True)
    assert both == (SERVICE, KEEPER, VALIDATOR, PUBLISHER)
    assert chosen_parts(config, service_only=True, keeper_only=False, publishes=True) == (SERVICE,)


def test_one_part_alone_needs_only_its_own_ports(tmp_path: Path) -> None:
    """The service does not need the swarm's port, nor the keeper the service's."""
    run = make_small_run(tmp_path)
    settings = run.settings
    assert [item.port for item in listeners(run, (SERVICE,))] == [settings.control_port, settings.web_port]
    assert [item.port for item in listeners(run, (KEEPER,))] == [settings.swarm_port]


def test_impossible_address_is_a_configuration_error(tmp_path: Path) -> None:
    """An address that is not this machine's is told as such, not as a taken port."""
    run = make_small_run(tmp_path)
    settings = run.settings.model_copy(update={"bind_host": "192.0.2.1"})
    (run.path / "settings.yaml").write_text(settings.to_yaml())
    with pytest.raises(ConfigError, match="bind_host"):
        serve_run(run.path)


def test_dashboard_address_has_brackets_around_ipv6() -> None:
    """The printed address can be clicked, whatever the host."""
    assert dashboard_url(Settings(public_host="example.org", web_port=80)) == "http://example.org:80/"
    assert dashboard_url(Settings(public_host="::1")) == "http://[::1]:8080/"
