"""This machine's hardware: devices, thread count, precision, and descriptions for users."""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psutil
import torch

from auth.errors import ConfigError
from peer.runtime.devices import TPU_CORES, Precision, Wanted, gpu_numbers, pick_device
from peer.runtime.software import how_to_add


def count_gpus() -> int:
    """Count the GPUs through the driver's management library, so that forking remains safe."""
    return torch.cuda.device_count()


def has_tpu(devices: Path = Path("/dev")) -> bool:
    """Return whether TPU device files and libtpu exist; querying JAX would start threads."""
    cores = any(any(devices.glob(pattern)) for pattern in TPU_CORES)
    return cores and importlib.util.find_spec("libtpu") is not None


def has_mps() -> bool:
    """Return whether PyTorch can use an Apple GPU."""
    return torch.backends.mps.is_available()


def require_jax(device: str) -> None:
    """Raise `ConfigError` if JAX, an optional extra, is not installed."""
    if importlib.util.find_spec("jax") is None:
        raise ConfigError(f"`--device {device}` needs JAX: {how_to_add('tpu')}, and start again.")


def find_device(name: str) -> str:
    """Return the device selected by `--device` (see `peer.runtime.devices.pick_device`)."""
    return pick_device(name, count_gpus(), has_tpu(), has_mps())


def torch_devices(device: str) -> tuple[torch.device, ...]:
    """Return the PyTorch devices for a selection: two devices for `cuda:0,2`, for example."""
    numbers = gpu_numbers(device)
    return tuple(torch.device("cuda", number) for number in numbers) or (torch.device(device),)


def pick_threads(wanted: int | None) -> int:
    """Return the number of compute threads: `wanted`, or one per usable physical core."""
    if wanted is not None:
        if wanted < 1:
            raise ConfigError(f"`--threads` ({wanted}) must be at least 1.")
        return wanted
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(usable, psutil.cpu_count(logical=False) or usable))


def pick_precision(wanted: Wanted, devices: Sequence[torch.device]) -> Precision:
    """Return `wanted`; for `auto`, fp32 without GPUs, bf16 if all GPUs support it, else fp16."""
    if wanted != "auto":
        return wanted
    if any(device.type != "cuda" for device in devices):  # half precision is untested on Apple GPUs
        return "fp32"
    return "bf16" if all(map(_has_bf16, devices)) else "fp16"


def describe_device(device: torch.device, threads: int) -> str:
    """Return a description such as `cuda:0 (Tesla T4, 15 GiB)`. Initializes the accelerator."""
    if device.type == "mps":
        return "mps (Apple GPU)"
    if device.type != "cuda":
        return f"{device.type} ({threads} thread{'s' if threads != 1 else ''})"
    return f"{device} ({_gpu_kind(device)})"


def describe_devices(devices: Sequence[torch.device], threads: int) -> str:
    """Return a description of several devices, such as `2 × cuda (Tesla T4, 15 GiB)`."""
    if len(devices) == 1:
        return describe_device(devices[0], threads)
    kinds = Counter(
        f"cuda ({_gpu_kind(device)})" if device.type == "cuda" else describe_device(device, threads)
        for device in devices
    )
    return " + ".join(f"{count} × {kind}" for kind, count in kinds.items())


def _gpu_kind(device: torch.device) -> str:
    properties = torch.cuda.get_device_properties(device)
    return f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"


def _has_bf16(device: torch.device) -> bool:
    with torch.cuda.device(device):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
