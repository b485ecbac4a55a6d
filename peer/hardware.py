"""What this machine trains on: the device, how many threads, and one line that says so."""

from __future__ import annotations

import os

import psutil
import torch

from auth.errors import ConfigError


def count_gpus() -> int:
    """How many GPUs PyTorch can use; asks the driver's management library, which leaves the process fit to fork."""
    return torch.cuda.device_count()


def pick_device(name: str, gpus: int) -> torch.device:
    """The device that `--device` names; `auto` takes the first of the GPUs, else the CPU. Raises `ConfigError`."""
    if name == "cpu" or (name == "auto" and gpus == 0):
        return torch.device("cpu")
    if name not in ("auto", "cuda"):
        raise ConfigError(f"`--device` ({name}) must be auto, cpu or cuda.")
    if gpus == 0:
        raise ConfigError("`--device cuda`: PyTorch finds no GPU here; use `--device cpu`, or install its CUDA build.")
    return torch.device("cuda", 0)


def pick_threads(wanted: int | None) -> int:
    """How many threads compute: as many as wanted, else one per physical core that this process may use."""
    if wanted is not None:
        if wanted < 1:
            raise ConfigError(f"`--threads` ({wanted}) must be at least 1.")
        return wanted
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(usable, psutil.cpu_count(logical=False) or usable))


def describe_device(device: torch.device, threads: int) -> str:
    """One line for people: `cpu (2 threads)` or `cuda:0 (Tesla T4, 15 GiB)`; this touches the accelerator."""
    if device.type != "cuda":
        return f"{device.type} ({threads} thread{'s' if threads != 1 else ''})"
    properties = torch.cuda.get_device_properties(device)
    return f"{device} ({properties.name}, {properties.total_memory / 2**30:.0f} GiB)"
