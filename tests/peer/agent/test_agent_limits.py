"""The agent within a volunteer's limits: a real control plane, stand-ins for the worker in really spawned processes."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from coordinator.control import session as server_side
from coordinator.ledger.sessions import online_sessions
from peer.agent.agent import Agent
from peer.agent.options import AgentOptions
from peer.agent.worker_process import WorkerMain
from peer.agent.workers import halved
from peer.config.run import RunConfig
from peer.control.events import Connected
from peer.limits.energy_meter import Energy
from peer.limits.events import Leaving, Paused, Resumed, Used
from peer.limits.limits import Limits, parse_windows
from peer.limits.policy import Readings
from peer.reporting.messages import Notice, Ready, Stopped, WorkerPlan
from tests.support import worker_mains
from tests.support.agents import Recorder
from tests.support.control_plane import KEEPER, TestCoordinator, write_status
from tests.support.stays import staying
from tests.support.waiting import PATIENCE_S, eventually


@dataclass
class Guest:
    """An agent with limits, on a machine whose readings the test sets."""

    agent: Agent
    shown: Recorder
    readings: list[Readings]  # the last one holds

    def read(self, **changes: object) -> None:
        """From now on the machine says this."""
        self.readings.append(replace(self.readings[-1], **changes))  # type: ignore[arg-type]

    def count(self, kind: type) -> int:
        """How many events of this kind were shown."""
        return sum(isinstance(event, kind) for event in self.shown.events)


def make_guest(
    coordinator: TestCoordinator,
    directory: Path,
    limits: Limits,
    readings: Readings | None = None,
    main: WorkerMain = worker_mains.trains_until_stopped,
) -> Guest:
    """Not yet running, in a run that has a keeper."""
    write_status(coordinator, KEEPER)
    options = AgentOptions(coordinator.link, directory, invite=coordinator.invite("ada"), limits=limits)
    shown, said = Recorder(), [readings or Readings()]
    return Guest(Agent(options, shown.open, time.time, main, lambda: said[-1], poll_s=0.05), shown, said)


async def test_a_pause_ends_the_worker_in_order_and_keeps_the_session(
    coordinator: TestCoordinator, tmp_path: Path
) -> None:
    """On battery the worker leaves; back on mains another starts; the coordinator sees one stay, paused meanwhile."""
    guest = make_guest(coordinator, tmp_path / "ada", Limits(polite=True), Readings(on_battery=False))
    async with staying(guest.agent):
        await eventually("the agent is ready", lambda: guest.count(Ready) == 1)
        guest.read(on_battery=True)
        await eventually("the worker has stopped", lambda: guest.count(Stopped) == 1)

        def states() -> list[str]:
            return [stay.state for stay in online_sessions(coordinator.services.database, time.time())]

        await eventually("the session says that the agent has paused", lambda: states() == ["paused"])
        guest.read(on_battery=False)
        await eventually("the agent is ready again", lambda: guest.count(Ready) == 2)
        await eventually("the session says that the agent trains", lambda: states() == ["training"])
    assert [e for e in guest.shown.events if isinstance(e, Paused)] == [Paused("this machine runs on its battery")]
    assert (guest.count(Resumed), guest.count(Stopped)) == (1, 2)


async def test_outside_its_hours_it_joins_and_waits(coordinator: TestCoordinator, tmp_path: Path) -> None:
    """No worker starts; told to stop, it leaves as ever."""
    now = time.localtime()
    soon, later = (now.tm_hour + 2) % 24, (now.tm_hour + 4) % 24
    limits = Limits(hours=parse_windows([f"{soon}:00-{later}:00"]))
    guest = make_guest(coordinator, tmp_path / "ada", limits)
    async with staying(guest.agent):
        await eventually("the agent has paused", lambda: guest.count(Paused) == 1)
    assert guest.count(Ready) == guest.count(Stopped) == 0


async def test_it_leaves_in_order_when_its_hours_are_over(coordinator: TestCoordinator, tmp_path: Path) -> None:
    """As if told to stop: the worker says goodbye and the agent ends without an error."""
    guest = make_guest(coordinator, tmp_path / "ada", Limits(max_hours=1.0))
    running = asyncio.create_task(guest.agent.run())
    await eventually("the agent is ready", lambda: guest.count(Ready) == 1)
    guest.read(elapsed_s=3600.0)
    await asyncio.wait_for(running, PATIENCE_S)
    assert guest.count(Stopped) == 1
    assert Leaving("the hours are over") in guest.shown.events


async def test_what_polite_does_not_know_is_said_once(coordinator: TestCoordinator, tmp_path: Path) -> None:
    """However often the machine is looked at."""
    guest = make_guest(coordinator, tmp_path / "ada", Limits(polite=True), Readings(on_battery=False, metered=False))
    async with staying(guest.agent):
        await eventually("the agent is ready", lambda: guest.count(Ready) == 1)
    notices = [event.text for event in guest.shown.events if isinstance(event, Notice)]
    assert [text for text in notices if "polite" in text] == [
        "`--polite`: this system does not report whether somebody is at the keyboard."
    ]


async def test_a_worker_that_needs_too_much_memory_gets_half_the_microbatch(
    coordinator: TestCoordinator, tmp_path: Path
) -> None:
    """Until it keeps to the limit: four samples of 200 megabytes, then two, then one."""
    limits = Limits(memory_bytes=390_000_000)
    guest = make_guest(coordinator, tmp_path / "ada", limits, main=worker_mains.needs_memory)
    async with staying(guest.agent):
        await eventually(
            "the worker of device 1 is ready",
            lambda: any(isinstance(e, Ready) and e.device == "device 1" for e in guest.shown.events),
        )
    sizes = [event.device for event in guest.shown.events if isinstance(event, Ready)]
    assert sizes == ["device 4", "device 2", "device 1"]


def test_below_one_sample_there_is_nothing_to_halve() -> None:
    """Half of what the worker computes at once, as the plan says or the worker has found."""
    plan = WorkerPlan(RunConfig().to_json(), "", "", "", ())
    assert [halved(replace(plan, microbatch_size=size), None) for size in (3, 1)] == [1, None]
    assert halved(plan, None) == RunConfig().data.microbatch_size // 2
    assert halved(plan, 64) == 32  # which the worker has found to fit
    assert halved(plan, 0) is None  # one that only assists


async def test_what_was_used_is_told_at_the_end(coordinator: TestCoordinator, tmp_path: Path) -> None:
    """Energy and traffic of the stay, once; in between only the panel is told."""
    readings = Readings(energy=Energy(gpu_wh=2.0))
    guest = make_guest(coordinator, tmp_path / "ada", Limits(), readings)
    async with staying(guest.agent):
        await eventually("the agent is ready", lambda: guest.count(Ready) == 1)
        guest.read(energy=Energy(gpu_wh=5.0))
        await eventually(
            "the agent has read the worker's energy", lambda: guest.agent._readings.energy == Energy(gpu_wh=3.0)
        )
    lines = [event.line for event in guest.shown.events if isinstance(event, Used) and event.line]
    assert len(lines) == 1
    assert lines[0].endswith("MB received, 3.0 Wh by GPU.")


async def test_a_newer_version_is_told_once_and_training_goes_on(
    coordinator: TestCoordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the coordinator was updated during the stay; however often the session begins anew."""
    guest = make_guest(coordinator, tmp_path / "ada", Limits())
    async with staying(guest.agent):
        await eventually(
            "the agent is ready and connected", lambda: guest.count(Ready) == 1 and guest.count(Connected) == 1
        )
        monkeypatch.setattr(server_side, "software_version", lambda: "99.0")
        for connections in (3, 5):  # up, then lost and up again
            port = coordinator.server.port
            await coordinator.server.stop()
            await coordinator.serve_again(port)
            await eventually(
                "the agent is connected again", lambda connections=connections: guest.count(Connected) >= connections
            )
    told = [e.text for e in guest.shown.events if isinstance(e, Notice) and "manyhands 99.0" in e.text]
    assert len(told) == 1
