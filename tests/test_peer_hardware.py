"""Which device trains, with how many threads, and how that is said."""

from __future__ import annotations

import os

import pytest
import torch

from auth.errors import ConfigError
from peer.hardware import describe_device, pick_device, pick_threads


def test_cpu_is_always_there() -> None:
    """`--device cpu` gives the CPU on every machine."""
    assert pick_device("cpu", gpus=3) == torch.device("cpu")


@pytest.mark.parametrize(("gpus", "device"), [(0, "cpu"), (1, "cuda:0"), (2, "cuda:0")])
def test_auto_takes_the_first_gpu_or_the_cpu(gpus: int, device: str) -> None:
    """`--device auto` never fails."""
    assert pick_device("auto", gpus) == torch.device(device)


def test_missing_gpu_is_one_clear_error() -> None:
    """Who asks for a GPU that is not there reads what to do instead."""
    with pytest.raises(ConfigError, match="no GPU here; use `--device cpu`"):
        pick_device("cuda", gpus=0)


def test_unknown_device_is_one_clear_error() -> None:
    """The error names what was asked for and what is allowed."""
    with pytest.raises(ConfigError, match=r"\(abacus\) must be auto, cpu or cuda"):
        pick_device("abacus", gpus=1)


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
