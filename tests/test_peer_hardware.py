"""Which device trains, with how many threads, and how that is said."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest
import torch

from auth.errors import ConfigError
from peer.hardware import describe_device, has_tpu, pick_device, pick_threads


def test_cpu_is_always_there() -> None:
    """`--device cpu` gives the CPU on every machine."""
    assert pick_device("cpu", gpus=3, tpu=True) == "cpu"


@pytest.mark.parametrize(
    ("gpus", "tpu", "device"),
    [(0, False, "cpu"), (1, False, "cuda:0"), (2, False, "cuda:0"), (0, True, "tpu"), (1, True, "tpu")],
)
def test_auto_takes_the_best_device(gpus: int, tpu: bool, device: str) -> None:
    """`--device auto` never fails."""
    assert pick_device("auto", gpus, tpu) == device


@pytest.mark.parametrize("name", ["tpu", "jax"])
def test_jax_is_taken_where_it_is_asked_for(name: str) -> None:
    """Whether it finds a device is seen when it starts."""
    assert pick_device(name, gpus=1, tpu=False) == name


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


def test_missing_gpu_is_one_clear_error() -> None:
    """Who asks for a GPU that is not there reads what to do instead."""
    with pytest.raises(ConfigError, match="no GPU here; use `--device cpu`"):
        pick_device("cuda", gpus=0, tpu=False)


def test_unknown_device_is_one_clear_error() -> None:
    """The error names what was asked for and what is allowed."""
    with pytest.raises(ConfigError, match=r"\(abacus\) must be auto, cpu, cuda, tpu or jax"):
        pick_device("abacus", gpus=1, tpu=False)


def test_threads_are_as_wanted_or_as_many_as_may_be_used() -> None:
    """Without a wish no more threads compute than this process has cores."""
    assert pick_threads(3) == 3
    assert 1 <= pick_threads(None) <= (os.cpu_count() or 1)


def test_zero_threads_are_refused() -> None:
    """The error names the option."""
    with pytest.raises(ConfigError, match="--threads"):
        pick_threads(0)


@pytest.mark.parametrize(("threads", "line"), [(1, "cpu (1 thread)"), (2, "cpu (2 threads)")])
def test_description_is_one_line(threads: int, line: str) -> None:
    """A person reads what trains."""
    assert describe_device(torch.device("cpu"), threads) == line
