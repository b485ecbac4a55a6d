"""Devices are tried, and what does not work is passed over or refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from auth.errors import ConfigError
from peer.backends import device_trial
from peer.backends.device_trial import SIDE, UNSEEN, WRONG, working_device

NO_KERNEL = "CUDA error: no kernel image is available for execution on the device"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | float]:
    """A machine with two GPUs in which PyTorch finds this wrong: an error's text, or another result."""
    wrong: dict[str, str | float] = {}

    def gradients(device: torch.device) -> list[float]:
        found = wrong.get(str(device), 2.0 * SIDE**3)
        if isinstance(found, str):
            raise RuntimeError(found)
        return [found]

    monkeypatch.setattr(device_trial, "count_gpus", lambda: 2)
    monkeypatch.setattr(device_trial, "has_tpu", lambda: False)
    monkeypatch.setattr(device_trial, "has_mps", lambda: False)
    monkeypatch.setattr(device_trial, "_torch_gradients", gradients)
    return wrong


def test_devices_that_work_are_taken(machine: Mapping[str, str | float]) -> None:
    """All of them, with nothing to say."""
    assert not machine
    assert working_device("auto") == working_device("cuda") == ("cuda:0,1", "")
    assert working_device("cuda:1") == ("cuda:1", "")
    assert working_device("cpu") == ("cpu", "")


def test_auto_leaves_out_what_does_not_work(machine: dict[str, str | float]) -> None:
    """The other GPU is taken, else the CPU, with the first line of each reason."""
    machine["cuda:0"] = f"{NO_KERNEL}\nCUDA kernel errors might be asynchronously reported at some other API call."
    assert working_device("auto") == ("cuda:1", f"cuda:0 cannot be used here ({NO_KERNEL})")
    machine["cuda:1"] = 7.0
    device, fault = working_device("auto")
    assert device == "cpu"
    assert fault == f"cuda:0 cannot be used here ({NO_KERNEL}); cuda:1 cannot be used here ({WRONG})"


@pytest.mark.parametrize(("name", "fault"), [("auto", UNSEEN), ("cpu", "")])
def test_a_card_that_pytorch_does_not_see_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fault: str
) -> None:
    """Its driver's program is there, and PyTorch counts no GPU: else a volunteer would train on the CPU for weeks."""
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for there in "has_tpu", "count_gpus", "has_mps":
        monkeypatch.setattr(device_trial, there, lambda: 0)
    assert working_device(name) == ("cpu", fault)


def test_what_a_person_has_chosen_must_work(machine: dict[str, str | float]) -> None:
    """No other device is taken in its place; one that was not chosen may be broken."""
    machine["cuda:0"] = NO_KERNEL
    assert working_device("cuda:1") == ("cuda:1", "")
    for name in "cuda", "cuda:0", "cuda:0,1":
        with pytest.raises(ConfigError) as raised:
            working_device(name)
        said = f"`--device {name}`: cuda:0 cannot be used here ({NO_KERNEL}). Fix this, or use `--device cpu`."
        assert str(raised.value) == said
    with pytest.raises(ConfigError, match="there is no GPU 2 here"):
        working_device("cuda:2")


def test_a_tpu_that_cannot_be_used_gives_way_to_gpus(
    machine: Mapping[str, str | float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of a TPU are there, and JAX really finds none."""
    assert not machine
    monkeypatch.setattr(device_trial, "has_tpu", lambda: True)
    device, fault = working_device("auto")
    assert device == "cuda:0,1"
    assert fault.startswith("tpu cannot be used here (")


def test_jax_is_really_tried() -> None:
    """On all the devices that it finds here."""
    assert working_device("jax") == ("jax", "")


def test_pytorch_is_really_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The right result comes of a processor that stands for a GPU."""
    monkeypatch.setattr(device_trial, "count_gpus", lambda: 1)
    monkeypatch.setattr(device_trial, "torch_devices", lambda _: (torch.device("cpu"),))
    assert working_device("cuda:0")[1] == ""
