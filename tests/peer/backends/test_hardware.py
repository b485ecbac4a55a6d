"""Which device trains, with how many threads, and how that is said."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from auth.errors import ConfigError
from peer.backends.hardware import (
    describe_devices,
    find_device,
    has_tpu,
    pick_precision,
    pick_threads,
    torch_devices,
)


def test_tpus_are_told_by_files_and_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cores without a runtime, and a runtime without cores, are no TPU."""
    runtime = tmp_path / "packages"
    runtime.mkdir()
    (runtime / "libtpu.py").touch()
    devices = tmp_path / "dev"
    (devices / "vfio").mkdir(parents=True)
    (devices / "vfio" / "vfio").touch()  # there wherever the driver is
    monkeypatch.syspath_prepend(runtime)
    assert not has_tpu(devices)
    (devices / "vfio" / "0").touch()
    assert has_tpu(devices)
    (devices / "vfio" / "0").unlink()
    (devices / "accel0").touch()
    assert has_tpu(devices)
    (runtime / "libtpu.py").unlink()
    importlib.invalidate_caches()
    assert not has_tpu(devices)


def test_the_device_is_found_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there is asked of PyTorch, and of the files."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    assert (find_device("auto"), find_device("mps"), find_device("cpu")) == ("mps", "mps", "cpu")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert (find_device("auto"), find_device("cuda:1")) == ("cuda:0,1", "cuda:1")


def test_precision_is_what_all_gpus_are_good_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """bf16 where all have it, fp16 where one has not; float32 on CPUs and Apple's; a wish is heard."""
    gpus = torch_devices("cuda:0,1")
    monkeypatch.setattr("peer.backends.hardware._has_bf16", lambda device: True)
    assert pick_precision("auto", gpus) == "bf16"
    monkeypatch.setattr("peer.backends.hardware._has_bf16", lambda device: device.index == 0)
    assert pick_precision("auto", gpus) == "fp16"
    assert pick_precision("auto", torch_devices("mps")) == pick_precision("auto", torch_devices("cpu")) == "fp32"
    assert pick_precision("bf16", torch_devices("mps")) == "bf16"


def test_threads_are_as_wanted_or_as_many_as_may_be_used() -> None:
    """Without a wish no more threads compute than this process has cores; the error names the option."""
    assert pick_threads(3) == 3
    with pytest.raises(ConfigError, match="--threads"):
        pick_threads(0)
    assert 1 <= pick_threads(None) <= (os.cpu_count() or 1)


def test_several_gpus_are_counted_by_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, however many there are."""
    kinds = ["Tesla T4", "Tesla T4", "GeForce RTX 4090"]
    facts = [SimpleNamespace(name=name, total_memory=15 << 30) for name in kinds]
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: facts[device.index])
    assert describe_devices(torch_devices("cuda:1"), 2) == "cuda:1 (Tesla T4, 15 GiB)"
    several = describe_devices(torch_devices("cuda:0,1,2"), 2)
    assert several == "2 × cuda (Tesla T4, 15 GiB) + 1 × cuda (GeForce RTX 4090, 15 GiB)"
    assert describe_devices(torch_devices("mps"), 2) == "mps (Apple GPU)"
