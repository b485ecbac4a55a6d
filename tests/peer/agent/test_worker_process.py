"""The agent's handle on its worker, with really spawned processes."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest

from peer.agent import worker_process
from peer.agent.worker_process import Watchdog, WorkerMain, WorkerProcess
from peer.reporting.messages import (
    LineInDoubt,
    Notice,
    Ready,
    StepReport,
    Stopped,
    Transferred,
    WorkerMessage,
    WorkerPlan,
)
from tests.support import worker_mains
from tests.support.waiting import PATIENCE_S


def plan_in(directory: Path) -> WorkerPlan:
    """A plan of which the stand-ins use only the data directory."""
    return WorkerPlan("{}", str(directory), str(directory), str(directory / "data"), ())


async def events_of(worker: WorkerProcess) -> list[WorkerMessage]:
    """Everything until the end."""
    events = []
    while (event := await worker.next_event()) is not None:
        events.append(event)
    return events


async def test_events_arrive_in_order_and_then_the_end(tmp_path: Path) -> None:
    """What the worker says comes as it was said; asked to stop, it ends."""
    worker = WorkerProcess(plan_in(tmp_path), worker_mains.trains_until_stopped)
    worker.start()
    worker.ask_to_stop("enough")
    events = await asyncio.wait_for(events_of(worker), PATIENCE_S)
    assert [type(event) for event in events] == [Ready, StepReport, StepReport, Stopped]
    await asyncio.wait_for(worker.ended(), PATIENCE_S)
    worker.end()


@pytest.mark.parametrize("main", [worker_mains.dies_at_once])
async def test_dead_worker_is_an_end_without_words(tmp_path: Path, main: WorkerMain) -> None:
    """A worker that is killed says nothing, and the agent learns that at once."""
    worker = WorkerProcess(plan_in(tmp_path), main)
    worker.start()
    assert await asyncio.wait_for(events_of(worker), PATIENCE_S) == []
    worker.end()


async def test_whole_group_is_ended(tmp_path: Path) -> None:
    """A worker that hangs is killed together with the processes that it has started."""
    worker = WorkerProcess(plan_in(tmp_path), worker_mains.ignores_stop)
    worker.start()
    assert isinstance(await asyncio.wait_for(worker.next_event(), PATIENCE_S), Ready)
    grandchild = psutil.Process(int((tmp_path / "data" / worker_mains.GRANDCHILD_FILE).read_text()))
    worker.end()
    grandchild.wait(timeout=PATIENCE_S)
    assert not grandchild.is_running()


async def test_who_hangs_in_a_driver_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No signal ends a process whose system call does not return: the agent goes on all the same."""
    worker = WorkerProcess(plan_in(tmp_path), worker_mains.ignores_stop)
    worker.start()
    assert isinstance(await asyncio.wait_for(worker.next_event(), PATIENCE_S), Ready)
    process = worker._process
    assert process is not None
    pid = worker.pid
    with monkeypatch.context() as unkillable:
        unkillable.setattr(worker_process, "KILLED_S", 0.1)
        unkillable.setattr(worker_process, "end_group", lambda _: None)
        unkillable.setattr(type(process), "kill", lambda _: None)
        worker.end()
    assert worker.exit_code is None
    os.killpg(pid, signal.SIGKILL)
    process.join()


async def test_ending_twice_is_fine(tmp_path: Path) -> None:
    """An ended worker can be ended and asked to stop again."""
    worker = WorkerProcess(plan_in(tmp_path), worker_mains.dies_at_once)
    worker.start()
    await asyncio.wait_for(events_of(worker), PATIENCE_S)
    worker.end()
    worker.end()
    worker.ask_to_stop("again")


def test_bytes_are_a_sign_of_life_until_the_worker_is_ready() -> None:
    """A slow download of the state is no hanging; later, averagers answer others though the training hangs."""
    now = [0.0]
    watchdog = Watchdog(900.0, lambda: now[0])
    left = []
    for at, message in (
        (800.0, Transferred(0, 10)),
        (1600.0, Transferred(0, 20)),
        (1700.0, Transferred(0, 20)),  # nothing has come since
        (2000.0, Ready("Qm", 0, "cpu")),
        (2100.0, Transferred(0, 30)),
        (2150.0, LineInDoubt()),  # nor is this: the thread that counts the bytes says it
        (2200.0, Notice("info", "alive")),
        (9999.0, Transferred(0, 40)),
    ):
        now[0] = at
        watchdog.hear(message)
        left.append(watchdog.left_s)
    assert left == [900.0, 900.0, 800.0, 900.0, 800.0, 750.0, 900.0, 0.0]


def test_a_state_that_takes_long_is_no_hanging() -> None:
    """A worker that lives to catch up is alive as bytes come; and one whose agent downloads, as long as it counts."""
    now = [0.0]
    watchdog = Watchdog(900.0, lambda: now[0])
    left = []
    for at, message, awaits_agent in (
        (100.0, Ready("Qm", 0, "cpu"), False),
        (900.0, Transferred(0, 10, awaits_state=True), False),
        (1700.0, Transferred(0, 20, awaits_state=True), False),
        (1800.0, Transferred(0, 20, awaits_state=True), False),  # nothing has come since
        (2500.0, Transferred(0, 30), False),
        (2550.0, Transferred(0, 30), True),
        (3000.0, LineInDoubt(), True),
    ):
        now[0] = at
        watchdog.hear(message, awaits_agent)
        left.append(watchdog.left_s)
    assert left == [900.0, 900.0, 900.0, 800.0, 100.0, 900.0, 450.0]
