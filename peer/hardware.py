"""What this machine trains on: the device, how many threads, and one line that says so."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import psutil
import torch

from auth.errors import ConfigError
from peer.precision import Precision, Wanted

DEVICES = ("auto", "cpu", "cuda", "tpu", "jax")
JAX_DEVICES = ("tpu", "jax")


def count_gpus() -> int:
    """How many GPUs PyTorch can use; asks the driver's management library, which leaves the process fit to fork."""
    return torch.cuda.device_count()


def has_tpu(devices: Path = Path("/dev")) -> bool:
    """Whether this is a TPU host whose runtime is installed; told by its files, because to ask JAX starts threads."""
    cores = any(devices.glob("accel[0-9]*")) or any(devices.glob("vfio/[0-9]*"))
    return cores and importlib.util.find_spec("libtpu") is not None


def pick_device(name: str, gpus: int, tpu: bool) -> str:
    """The device that `--device` names: `cpu`, `cuda:0`, `tpu`, or `jax` for whatever JAX finds.

    `auto` takes the TPU, else the first of the GPUs, else the CPU. Raises `ConfigError`.
    """
    if name not in DEVICES:
        raise ConfigError(f"`--device` ({name}) must be {', '.join(DEVICES[:-1])} or {DEVICES[-1]}.")
    if name == "auto":
        name = "tpu" if tpu else "cuda" if gpus else "cpu"
    if name == "cuda" and gpus == 0:
        raise ConfigError("`--device cuda`: PyTorch finds no GPU here; use `--device cpu`, or install its CUDA build.")
    return "cuda:0" if name == "cuda" else name


def pick_threads(wanted: int | None) -> int:
    """How many threads compute: as many as wanted, else one per physical core that this process may use."""
    if wanted is not None:
        if wanted < 1:
            raise ConfigError(f"`--threads` ({wanted}) must be at least 1.")
        return wanted
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(usable, psutil.cpu_count(logical=False) or usable))


def pick_precision(wanted: Wanted, device: torch.device) -> Precision:
    """What was asked for; else bfloat16 where the GPU has it, float16 on older ones, float32 on everything else."""
    if wanted != "auto":
        return wanted
    if device.type != "cuda":
        return "fp32"
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"


def describe_device(device: torch.device, threads: int) -> str:
    """One line for people: `cpu (2 threads)` or `cuda:0 (Tesla T4, 15 GiB)`; this touches the accelerator."""
    if device.type != "cuda":
        return f"{device.type} ({threads} thread{'s' if threads != 1 else ''})"
    properties = torch.cuda.get_device_properties(device)
    return f"{device} ({properties.name}, {properties.total_memory / 2**30:.0f} GiB)"
