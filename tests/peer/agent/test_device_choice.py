"""The device is tried in a process of its own, which may die or hang."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from auth.errors import ConfigError
from peer.agent import device_choice
from peer.agent.device_choice import TrialMain, choose_device, default_trial_main
from peer.reporting.messages import TrialPlan
from peer.runtime.devices import may_have_accelerator
from peer.runtime.processes import lead_own_group


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
        monkeypatch.setattr(device_choice, "TRIAL_S", 0.5)
    device, fault = await choose_device("auto", tmp_path, main, devices)
    assert device == "cpu"
    assert reason in fault
    with pytest.raises(ConfigError, match=f"`--device cuda:1`: it cannot be used here.*{reason}"):
        await choose_device("cuda:1", tmp_path, main, devices)
