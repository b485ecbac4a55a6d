"""The agent's handle on its worker, with really spawned processes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest

from auth.errors import ConfigError
from peer.agent import worker_process
from peer.agent.worker_process import TrialMain, Watchdog, WorkerProcess, choose_device, default_trial_main
from peer.reporting.messages import (
    LineInDoubt,
    Notice,
    Ready,
    StepReport,
    Stopped,
    Transferred,
    TrialPlan,
    WorkerMessage,
    WorkerPlan,
)
from peer.runtime.devices import may_have_accelerator
from peer.runtime.processes import lead_own_group
from tests.support import worker_mains
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.usefixtures("forked")


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


async def test_dead_worker_is_an_end_without_words(tmp_path: Path) -> None:
    """A worker that is killed says nothing, and the agent learns that at once; it can be ended twice, and asked to."""
    worker = WorkerProcess(plan_in(tmp_path), worker_mains.dies_at_once)
    worker.start()
    assert await asyncio.wait_for(events_of(worker), PATIENCE_S) == []
    worker.end()
    worker.end()
    worker.ask_to_stop("again")


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


def sees_a_card(plan: TrialPlan, pipe: Connection, parent_pid: int) -> None:
    """The real trial, where a driver counts one card that PyTorch cannot use."""
    import torch

    torch.cuda.device_count = lambda: 1
    default_trial_main(plan, pipe, parent_pid)


def dies(_plan: TrialPlan, _pipe: Connection, _parent_pid: int) -> None:
    """As within a broken driver."""
    lead_own_group()
    os.kill(os.getpid(), signal.SIGSEGV)


def hangs(_plan: TrialPlan, _pipe: Connection, _parent_pid: int) -> None:
    """As within a driver that waits for its card."""
    lead_own_group()
    time.sleep(3600)


def never(_plan: TrialPlan, _pipe: Connection, _parent_pid: int) -> None:
    """Nothing is to be tried."""
    raise AssertionError


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    """The files of a machine with a card's driver."""
    folder = tmp_path / "dev"
    folder.mkdir()
    (folder / "nvidia0").touch()
    return folder


def test_a_driver_is_told_by_its_files(devices: Path) -> None:
    """Of cards, not of what is there without one."""
    assert may_have_accelerator(devices, "linux")
    (devices / "nvidia0").rename(devices / "nvidiactl")
    assert not may_have_accelerator(devices, "linux")
    assert may_have_accelerator(devices, "darwin")


async def test_nothing_is_tried_without_a_driver(devices: Path, tmp_path: Path) -> None:
    """So machines without a card start as quickly as ever; so does one whose person wants the CPU."""
    assert await choose_device("cpu", tmp_path, never, devices) == ("cpu", "")
    (devices / "nvidia0").unlink()
    assert await choose_device("auto", tmp_path, never, devices) == ("auto", "")


async def test_a_card_that_pytorch_cannot_use_is_passed_over(devices: Path, tmp_path: Path) -> None:
    """`auto` then means the CPU, with the reason; who chose the card reads why it cannot be used."""
    device, fault = await choose_device("auto", tmp_path, sees_a_card, devices)
    assert device == "cpu"
    assert fault.startswith("cuda:0 cannot be used here (")
    assert "\n" not in fault
    with pytest.raises(ConfigError, match=r"`--device cuda`: cuda:0 cannot be used here \(.*use `--device cpu`\."):
        await choose_device("cuda", tmp_path, sees_a_card, devices)


@pytest.mark.parametrize(("main", "reason"), [(dies, "died: Segmentation fault"), (hangs, "did not answer")])
async def test_a_card_that_ends_or_hangs_the_process_is_passed_over(
    devices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, main: TrialMain, reason: str
) -> None:
    """What a driver does to the process that tries it is no end of the agent's."""
    if main is hangs:
        monkeypatch.setattr(worker_process, "TRIAL_S", 0.5)
    device, fault = await choose_device("auto", tmp_path, main, devices)
    assert device == "cpu"
    assert reason in fault
    with pytest.raises(ConfigError, match=f"`--device cuda:1`: it cannot be used here.*{reason}"):
        await choose_device("cuda:1", tmp_path, main, devices)
