"""The agent against a real control plane, with stand-ins for the worker in really spawned processes."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path
from typing import get_args

import pytest
from sqlalchemy import select

from auth.errors import (
    ConfigError,
    ManyhandsError,
    MemoryLimitError,
    RevokedError,
    StorageError,
    SwarmError,
    UnreachableError,
    WorkerError,
)
from coordinator.ledger.sessions import online_sessions
from coordinator.store.models import LostSamples
from peer.agent import agent as agent_module, patience, workers
from peer.agent.agent import Agent
from peer.agent.options import AgentOptions
from peer.agent.stay_work import StayWork
from peer.agent.terminal import DisplayEvent, PanelState
from peer.agent.workers import FAILURE_WINDOW_S, MAX_FAILURES, restart_allowed
from peer.limits.policy import Readings
from peer.reporting.messages import KeeperAt, Notice, Ready, Stopped
from peer.reporting.outbox import Outbox
from peer.runtime.processes import FILE
from tests.support import worker_mains
from tests.support.agents import Recorder, make_agent
from tests.support.control_plane import KEEPER, TestCoordinator, serving, write_status
from tests.support.receipts import key_of
from tests.support.stays import AgentWith, staying
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.usefixtures("forked")


async def test_reports_are_delivered_once_and_the_agent_leaves(
    agent_with: AgentWith, coordinator: TestCoordinator
) -> None:
    """Joined by invite, the worker's reports reach the ledger; told to stop, worker and session end in order."""
    membership = coordinator.services.membership
    membership.join(key_of("first").public_key, membership.invite("first")[0])
    agent, shown = agent_with(worker_mains.trains_until_stopped)
    async with staying(agent):
        ledger = coordinator.services.ledger
        await eventually("the ledger has steps 1 and 2", lambda: [row.step for row in ledger.steps()] == [1, 2])
    assert [row.samples for row in ledger.steps()] == [10, 10]
    assert shown.state == PanelState(run="test", member="ada", device_number=1)
    assert any(isinstance(event, Stopped) for event in shown.events)
    assert shown.closed


async def test_a_silent_worker_takes_the_agents_sign_of_life(
    coordinator: TestCoordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What looks at the file sees an old one while the worker is silent, and a new one as soon as it is not."""
    looks: list[Readings] = []

    def read() -> Readings:
        looks.append(Readings())
        return looks[-1]

    write_status(coordinator, KEEPER)
    options = AgentOptions(link=coordinator.link, state_dir=tmp_path / "ada", invite=coordinator.invite("ada"))
    shown, main = Recorder(), worker_mains.trains_until_stopped
    agent = Agent(options, shown.open, time.time, main, read_machine=read, poll_s=0.01)
    monkeypatch.setattr(workers, "SILENT_S", 0.0)
    async with staying(agent):
        await eventually("the worker is ready", lambda: bool(shown.devices))
        (tmp_path / "ada" / FILE).unlink(missing_ok=True)
        seen = len(looks)
        await eventually("the machine was looked at again", lambda: len(looks) > seen + 3)
        assert not (tmp_path / "ada" / FILE).exists()
        monkeypatch.setattr(workers, "SILENT_S", PATIENCE_S)
        await eventually("there is a sign of life", (tmp_path / "ada" / FILE).exists)


async def test_worker_learns_its_devices_number(coordinator: TestCoordinator, tmp_path: Path) -> None:
    """The second device to join begins elsewhere in the data than the first, now and when it comes back."""
    for directory, invite, device in (("one", None, 0), ("two", None, 1), ("one", "", 0)):
        agent, shown = make_agent(coordinator, tmp_path / directory, worker_mains.trains_until_stopped, invite)
        async with staying(agent):
            await eventually("the agent is ready", lambda shown=shown: shown.devices)
            assert [e.device for e in shown.events if isinstance(e, Ready)] == [f"device {device}"]


def count_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the kernel says that it has killed some process for memory whenever it is asked."""
    monkeypatch.setattr(workers, "RESTART_DELAY_S", 0.01)
    kills = itertools.count()
    monkeypatch.setattr(workers, "kills_for_memory", lambda: next(kills))


async def test_a_worker_killed_for_memory_gets_half_the_microbatch(
    agent_with: AgentWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of what it computed at once, again and again, and each time the person is told."""
    count_kills(monkeypatch)
    agent, shown = agent_with(worker_mains.is_killed)
    async with staying(agent):
        await eventually(
            "the worker of device 2 is ready",
            lambda: any(isinstance(e, Ready) and e.device == "device 2" for e in shown.events),
        )
    assert [e.device for e in shown.events if isinstance(e, Ready)] == ["device 8", "device 4", "device 2"]
    killed = "The system killed the training process because memory had run out."
    assert [e.text for e in shown.events if isinstance(e, Notice) and "Starting again" in e.text] == [
        f"{killed} Starting again with microbatches of {size}." for size in (4, 2)
    ]


async def test_a_worker_killed_by_somebody_keeps_its_microbatch(
    agent_with: AgentWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the kernel counts no kill for memory, another had its reasons: that is a failure like any other."""
    monkeypatch.setattr(workers, "RESTART_DELAY_S", 0.01)
    monkeypatch.setattr(workers, "kills_for_memory", lambda: 7)
    agent, shown = agent_with(worker_mains.is_killed)
    with pytest.raises(WorkerError, match=r"died \(Killed\)"):
        await asyncio.wait_for(agent.run(), PATIENCE_S)
    assert {e.device for e in shown.events if isinstance(e, Ready)} == {"device 8"}


async def test_a_worker_that_is_killed_with_one_sample_is_given_up(
    agent_with: AgentWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below that nothing is left to halve: after some failures the agent says that memory is too little."""
    count_kills(monkeypatch)
    agent, _ = agent_with(worker_mains.is_always_killed)
    with pytest.raises(MemoryLimitError, match=r"memory had run out\. Not even one sample at a time"):
        await asyncio.wait_for(agent.run(), PATIENCE_S)


async def test_a_worker_whose_device_has_no_memory_left_gets_half_the_microbatch(agent_with: AgentWith) -> None:
    """An error of memory that no backend could mend, such as JAX's, is no reason to fail in the same way again."""
    agent, shown = agent_with(worker_mains.runs_out_of_memory)
    async with staying(agent):
        await eventually("the agent is ready", lambda: shown.devices)
    notices = [e.text for e in shown.events if isinstance(e, Notice) and "Starting again" in e.text]
    assert [text.partition(". ")[2] for text in notices] == ["Starting again with microbatches of 2."]


async def test_what_workers_held_is_told(
    agent_with: AgentWith, coordinator: TestCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent tells for one that died, the other tells itself; the coordinator has both when the agent has left."""
    monkeypatch.setattr(workers, "RESTART_DELAY_S", 0.01)
    agent, shown = agent_with(worker_mains.dies_with_samples)
    async with staying(agent):
        await eventually(
            "the second worker is ready", lambda: sum(isinstance(event, Ready) for event in shown.events) == 2
        )
    with coordinator.services.database() as session:
        lost = {row.cause: row.samples for row in session.scalars(select(LostSamples))}
    assert lost == {"died": 7, "left": 5}
    assert len(shown.told("Starting again")) == 1
    last = [event for event in shown.events if isinstance(event, StayWork)][-1]
    assert (last.at_end, last.averaged, last.lost) == (True, 0, {"died": 7, "left": 5})


async def test_a_run_that_reads_this_machines_files_needs_its_owners_word(tmp_path: Path) -> None:
    """The join ends before any worker starts, and the sentence names the file and the option."""
    async with serving(tmp_path, data={"sources": [{"kind": "text", "path": "/etc/hosts"}]}) as coordinator:
        agent, shown = make_agent(coordinator, tmp_path / "ada", worker_mains.trains_until_stopped)
        with pytest.raises(ConfigError, match=r"/etc/hosts.*--data-folder"):
            await asyncio.wait_for(agent.run(), PATIENCE_S)
        assert shown.events == []


async def test_a_device_that_is_not_there_is_told_before_joining(agent_with: AgentWith, tmp_path: Path) -> None:
    """Who chose it reads so, and the device is none of the run's."""
    agent, shown = agent_with(worker_mains.trains_until_stopped, device="cuda:99")
    with pytest.raises(ConfigError, match="`--device cuda:99`"):
        await asyncio.wait_for(agent.run(), PATIENCE_S)
    assert not (tmp_path / "ada" / "token.jwt").exists()
    assert shown.events == []


async def test_a_device_that_does_not_work_is_passed_over(
    agent_with: AgentWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker trains on what works, and the person reads why in one sentence."""

    async def choose(name: str, _: Path) -> tuple[str, str]:
        assert name == "auto"
        return "cpu", "cuda:0 cannot be used here (no kernel)"

    monkeypatch.setattr(agent_module, "choose_device", choose)
    agent, shown = agent_with(worker_mains.tells_its_device)
    async with staying(agent):
        await eventually("a device is shown", lambda: shown.devices)
    assert shown.devices == ["cpu"]
    assert Notice("warning", "Training on cpu: cuda:0 cannot be used here (no kernel).") in shown.events


async def test_gives_up_on_a_worker_that_keeps_failing(agent_with: AgentWith, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some failures in a short time the agent ends with the error that the worker named."""
    monkeypatch.setattr(workers, "RESTART_DELAY_S", 0.01)
    agent, shown = agent_with(worker_mains.dies_at_once)
    with pytest.raises(WorkerError):
        await asyncio.wait_for(agent.run(), PATIENCE_S)
    assert sum(isinstance(event, Notice) and event.level == "warning" for event in shown.events) == MAX_FAILURES - 1


async def test_who_comes_before_the_keeper_waits_for_it_and_then_trains(
    coordinator: TestCoordinator, tmp_path: Path
) -> None:
    """No worker starts; the person is told why, the coordinator sees a device that starts."""
    recorder, main = Recorder(), worker_mains.tells_its_keeper
    options = AgentOptions(link=coordinator.link, state_dir=tmp_path / "ada", invite=coordinator.invite("ada"))
    agent = Agent(options, recorder.open, time.time, main)
    async with staying(agent):
        await eventually(
            "the agent waits for the keeper", lambda: recorder.told("Waiting for the run's keeper") or recorder.devices
        )
        database = coordinator.services.database
        await eventually(
            "the session says that the agent is starting",
            lambda: [stay.state for stay in online_sessions(database, time.time())] == ["starting"],
        )
        assert recorder.devices == []
        write_status(coordinator, KEEPER)
        await eventually("a device is shown", lambda: recorder.devices)
        assert recorder.devices == [repr((KEEPER,))]


async def test_who_waits_for_the_keeper_may_leave(coordinator: TestCoordinator, tmp_path: Path) -> None:
    """In order, and at once."""
    recorder, main = Recorder(), worker_mains.tells_its_keeper
    options = AgentOptions(link=coordinator.link, state_dir=tmp_path / "ada", invite=coordinator.invite("ada"))
    agent = Agent(options, recorder.open, time.time, main)
    async with staying(agent):
        await eventually("the agent waits for the keeper", lambda: recorder.told("Waiting for the run's keeper"))
    assert recorder.devices == []


async def test_a_worker_that_misses_the_keeper_hears_again_where_it_is(agent_with: AgentWith) -> None:
    """Although the session has nothing new to tell."""
    agent, shown = agent_with(worker_mains.seeks_the_keeper)
    async with staying(agent):
        await eventually("a device is shown", lambda: shown.devices)
        assert shown.devices == [repr(KeeperAt((KEEPER,)))]


async def test_a_keeper_that_cannot_be_reached_is_waited_for(
    coordinator: TestCoordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often: each pause is told once, and why there is one; the doctor is asked once in a row."""
    monkeypatch.setattr(patience, "FIRST_PAUSE_S", 0.01)

    async def look_into(error: SwarmError) -> ManyhandsError:
        return SwarmError(f"{error} The doctor says why.")

    write_status(coordinator, KEEPER)
    shown = Recorder()
    options = AgentOptions(link=coordinator.link, state_dir=tmp_path / "ada", invite=coordinator.invite("ada"))
    agent = Agent(options, shown.open, time.time, worker_mains.joins_at_last, explain=look_into)
    async with staying(agent) as running:
        await eventually("a device is shown or the agent has ended", lambda: shown.devices or running.done())
    assert len(shown.told("The swarm cannot be joined. ")) == 5
    assert all("Trying again in " in text for text in shown.told("The swarm cannot be joined."))
    assert len(shown.told("The doctor says why.")) == 1


async def test_a_node_that_dies_now_and_then_is_no_row_of_tries(
    agent_with: AgentWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a long stay in the swarm the next worker starts at once, and nobody asks the doctor why."""
    monkeypatch.setattr(workers, "FAILURE_WINDOW_S", 0.0)  # what counts as long
    monkeypatch.setattr(workers, "RESTART_DELAY_S", 0.01)
    monkeypatch.setattr(patience, "FIRST_PAUSE_S", 0.01)
    agent, shown = agent_with(worker_mains.loses_its_node)
    async with staying(agent) as running:
        await eventually(
            "the agent has started more workers than it may lose, or has ended",
            lambda: len(shown.devices) > MAX_FAILURES + 1 or running.done(),
        )
    assert shown.told("Trying again in ") == []
    assert len(shown.told("has died. Starting again.")) > MAX_FAILURES


async def test_a_pause_ends_when_somebody_leaves(agent_with: AgentWith, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long before it is over."""
    monkeypatch.setattr(patience, "FIRST_PAUSE_S", 10 * PATIENCE_S)
    monkeypatch.setattr(patience, "LONGEST_PAUSE_S", 10 * PATIENCE_S)
    agent, shown = agent_with(worker_mains.fails_with_swarm_error)
    async with staying(agent):
        await eventually("the agent says when it tries again", lambda: shown.told("Trying again in "))


async def test_a_known_device_waits_for_a_coordinator_that_is_away(
    agent_with: AgentWith, coordinator: TestCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a reboot: the person is told, and the device takes part when the coordinator is back."""
    monkeypatch.setattr(patience, "LONGEST_PAUSE_S", 0.05)
    agent, shown = agent_with(worker_mains.trains_until_stopped)
    async with staying(agent):
        await eventually("a device is shown", lambda: shown.devices)
    port = coordinator.server.port
    await coordinator.server.stop()
    agent, shown = agent_with(worker_mains.trains_until_stopped, "")
    async with staying(agent) as running:
        await eventually(
            "the agent has tried three times or has ended",
            lambda: len(shown.told("Trying again in ")) > 2 or running.done(),
        )
        assert all("Cannot reach the coordinator" in text for text in shown.told("Trying again in "))
        assert shown.state == PanelState(run="test", member="ada", connected=False)
        await coordinator.serve_again(port)
        await eventually("a device is shown or the agent has ended", lambda: shown.devices or running.done())
    assert shown.devices


async def test_who_waits_for_the_coordinator_may_leave(
    agent_with: AgentWith, coordinator: TestCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a pause, and without an error."""
    agent, shown = agent_with(worker_mains.trains_until_stopped)
    async with staying(agent):
        await eventually("a device is shown", lambda: shown.devices)
    await coordinator.server.stop()
    monkeypatch.setattr(patience, "FIRST_PAUSE_S", 10 * PATIENCE_S)
    monkeypatch.setattr(patience, "LONGEST_PAUSE_S", 10 * PATIENCE_S)
    agent, shown = agent_with(worker_mains.trains_until_stopped, "")
    async with staying(agent):
        await eventually("the agent says when it tries again", lambda: shown.told("Trying again in "))
    assert shown.closed


async def test_an_unknown_device_does_not_wait_for_the_coordinator(
    agent_with: AgentWith, coordinator: TestCoordinator
) -> None:
    """The link may be wrong: its person is told at once."""
    agent, shown = agent_with(worker_mains.trains_until_stopped)
    await coordinator.server.stop()
    with pytest.raises(UnreachableError, match="is it running"):
        await asyncio.wait_for(agent.run(), PATIENCE_S)
    assert shown.events == []


async def test_hanging_worker_does_not_hold_the_agent_up(
    agent_with: AgentWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that ignores `Stop` is killed, and the agent leaves all the same."""
    monkeypatch.setattr(workers, "STOP_GRACE_S", 0.5)
    agent, shown = agent_with(worker_mains.ignores_stop)
    async with staying(agent):
        await eventually("the agent is ready", lambda: shown.devices)


async def test_revoked_device_stops(agent_with: AgentWith, coordinator: TestCoordinator) -> None:
    """When the member is revoked the worker is stopped and the reason reaches the person."""
    agent, shown = agent_with(worker_mains.trains_until_stopped)
    running = asyncio.create_task(agent.run())
    await eventually("the ledger has a step", lambda: coordinator.services.ledger.steps())
    coordinator.services.membership.revoke("ada", "a test")
    with pytest.raises(RevokedError, match="removed from this run"):
        await asyncio.wait_for(running, PATIENCE_S)
    assert any(isinstance(event, Stopped) for event in shown.events)


async def test_each_event_has_one_handler_or_is_shown(agent_with: AgentWith) -> None:
    """A new event that nobody heeds is found here, not by the volunteer."""
    agent, _ = agent_with(worker_mains.trains_until_stopped)
    events = set(get_args(agent_module.AgentEvent)) - {agent_module.StayOver}
    assert agent.handlers.keys() <= events
    assert events - agent.handlers.keys() <= set(get_args(DisplayEvent))


async def test_an_agent_that_cannot_keep_a_report_ends(agent_with: AgentWith, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, say: its reason reaches the person, and no worker goes on behind the agent's back."""

    def is_full(*_: object) -> int:
        raise StorageError("The disk is full.")

    monkeypatch.setattr(Outbox, "put", is_full)
    agent, shown = agent_with(worker_mains.trains_until_stopped)
    with pytest.raises(StorageError, match="full"):
        await asyncio.wait_for(agent.run(), PATIENCE_S)
    assert shown.closed


def test_failures_count_only_while_recent() -> None:
    """Three failures in the window are too many, three in a week are not."""
    assert restart_allowed([0.0, 1.0], now=1.0)
    assert not restart_allowed([0.0, 1.0, 2.0], now=2.0)
    assert restart_allowed([0.0, FAILURE_WINDOW_S, 2 * FAILURE_WINDOW_S], now=2 * FAILURE_WINDOW_S)
