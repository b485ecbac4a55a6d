"""What `--device` may say, and which device that is on this machine; decided without touching any device.

The commands check the words before anything starts; what is there is found by `peer.hardware`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from auth.errors import ConfigError

DEVICES = ("auto", "cpu", "cuda", "mps", "tpu", "jax")
JAX_DEVICES = ("tpu", "jax")
TPU_CORES = ("accel[0-9]*", "vfio/[0-9]*")
GPUS = ("nvidia[0-9]*", "kfd", "dxg")  # NVIDIA's driver, AMD's, Windows' below Linux
_NUMBERED = re.compile(r"cuda:([0-9]{1,4}(?:,[0-9]{1,4})*)")


def check_device_name(name: str) -> str:
    """The name itself; raises `ConfigError` for what no machine has."""
    if name not in DEVICES and _NUMBERED.fullmatch(name) is None:
        raise ConfigError(
            f"`--device` ({name}) must be {', '.join(DEVICES[:-1])} or {DEVICES[-1]}; "
            "`cuda:1` or `cuda:0,2` chooses among several GPUs."
        )
    return name


def may_have_accelerator(devices: Path = Path("/dev"), platform: str = sys.platform) -> bool:
    """Whether there are a driver's files; without them PyTorch need not be loaded to look for what it drives."""
    return platform == "darwin" or any(any(devices.glob(pattern)) for pattern in GPUS + TPU_CORES)


def pick_device(name: str, gpus: int, tpu: bool, mps: bool = False) -> str:
    """The device that `--device` names: `cpu`, `cuda:0,1`, `mps`, `tpu`, or `jax` for whatever JAX finds.

    `cuda` means all GPUs; `auto` takes the TPU, else all GPUs, else Apple's, else the CPU. Raises `ConfigError`.
    """
    if check_device_name(name) == "auto":
        name = "tpu" if tpu else "cuda" if gpus else "mps" if mps else "cpu"
    if name == "mps" and not mps:
        raise ConfigError("`--device mps`: PyTorch finds no Apple GPU here; use `--device cpu`.")
    if not name.startswith("cuda"):
        return name
    if gpus == 0:
        raise ConfigError(
            f"`--device {name}`: PyTorch finds no GPU here; use `--device cpu`, or install its CUDA build."
        )
    chosen = gpu_numbers(name) or tuple(range(gpus))
    for number in chosen:
        if number >= gpus:
            there = "only `cuda:0` is" if gpus == 1 else f"`cuda:0` to `cuda:{gpus - 1}` are"
            raise ConfigError(f"`--device {name}`: there is no GPU {number} here; {there}.")
    return "cuda:" + ",".join(map(str, chosen))


def gpu_numbers(name: str) -> tuple[int, ...]:
    """The GPUs that a name like `cuda:0,2` lists, each once and in order; none where it lists none."""
    found = _NUMBERED.fullmatch(name)
    return tuple(sorted({int(number) for number in found[1].split(",")})) if found else ()
