"""Decisions about `--device`, `--compile` and `--precision` that need no access to a device.

Commands validate these options first. `peer.backends.hardware` detects devices, and
`peer.backends.devices` measures the speed of compiled layers if `worth_trying` recommends it.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from auth.errors import ConfigError

CompileMode = Literal["auto", "on", "off"]
LEAST_STEPS = 200  # compile layers only if at least this many steps remain
LEAST_HOURS = 1.0  # compile only for at least this training time, because compiling takes a minute or two
LEAST_GAIN = 0.05  # use compiled layers if they save at least this fraction of a microbatch's time
Precision = Literal["fp32", "bf16", "fp16"]
Wanted = Literal["auto", "fp32", "bf16", "fp16"]
FIRST_SCALE = 2.0**16
GROW_AFTER = 2000  # the scale doubles after this many consecutive microbatches without overflow
DEVICES = ("auto", "cpu", "cuda", "mps", "tpu", "jax")
JAX_DEVICES = ("tpu", "jax")
TPU_CORES = ("accel[0-9]*", "vfio/[0-9]*")
GPUS = ("nvidia[0-9]*", "kfd", "dxg")  # device files of NVIDIA, AMD, and Windows under WSL
_NUMBERED = re.compile(r"cuda:([0-9]{1,4}(?:,[0-9]{1,4})*)")


def check_device_name(name: str) -> str:
    """Validate and return the value of `--device`. Raises `ConfigError` if it is not a valid name."""
    if name not in DEVICES and _NUMBERED.fullmatch(name) is None:
        raise ConfigError(
            f"`--device` ({name}) must be {', '.join(DEVICES[:-1])} or {DEVICES[-1]}; "
            "`cuda:1` or `cuda:0,2` chooses among several GPUs."
        )
    return name


def may_have_accelerator(devices: Path = Path("/dev"), platform: str = sys.platform) -> bool:
    """Return whether there may be an accelerator; if not, PyTorch need not be loaded to check."""
    return platform == "darwin" or any(any(devices.glob(pattern)) for pattern in GPUS + TPU_CORES)


def pick_device(name: str, gpus: int, tpu: bool, mps: bool = False) -> str:
    """Return the device selected by `--device`: `cpu`, `cuda:0,1`, `mps`, `tpu` or `jax`.

    `cuda` selects all GPUs, `jax` any JAX device, and `auto` the first available of TPU, GPUs,
    Apple GPU and CPU. Raises `ConfigError` if the selected device is missing.
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
    """Return the sorted, distinct GPU numbers in a name like `cuda:0,2`, or () for other names."""
    found = _NUMBERED.fullmatch(name)
    return tuple(sorted({int(number) for number in found[1].split(",")})) if found else ()


@dataclass(frozen=True)
class Stay:
    """The expected training time of this device."""

    steps_left: int  # remaining global steps of the run
    hours: float | None  # expected hours of training; None if unlimited


@dataclass(frozen=True)
class Trial:
    """The measurements of compiled layers, in seconds per microbatch."""

    plain_s: float
    compile_s: float  # one-time cost of compiling
    compiled_s: float

    @property
    def pays(self) -> bool:
        """Whether compiled layers are faster by at least `LEAST_GAIN`."""
        return self.compiled_s <= (1 - LEAST_GAIN) * self.plain_s


def worth_trying(mode: CompileMode, on_gpus: bool, stay: Stay) -> tuple[bool, str]:
    """Return (whether to try compiled layers, the reason for the decision).

    On CPUs, compilation is opt-in: it needs a C++ compiler and at least a minute of one core.
    """
    if mode != "auto":
        return mode == "on", f"--compile {mode}"
    if not on_gpus:
        return False, "no GPU"
    if stay.steps_left < LEAST_STEPS:
        return False, f"the run has only {stay.steps_left} steps left"
    if stay.hours is not None and stay.hours < LEAST_HOURS:
        return False, "the stay is short"
    return True, ""


class LossScale:
    """A loss scale that keeps fp16 gradients from underflowing, adjusted like PyTorch's `GradScaler`.

    See Micikevicius et al. 2018 (arXiv 1710.03740), section 3.2. Gradients are divided by the scale
    before accumulation, and microbatches that overflow are recomputed, so no sample is lost.
    """

    def __init__(self, precision: Precision) -> None:
        self.value = FIRST_SCALE if precision == "fp16" else 1.0
        self._grows = precision == "fp16"
        self._successes = 0

    def lower(self) -> None:
        """Halve the scale, but not below 1; call once per microbatch that overflows."""
        self._successes = 0
        self.value = max(1.0, self.value / 2)

    def succeeded(self) -> None:
        """Record a microbatch without overflow; double the scale after `GROW_AFTER` in a row."""
        self._successes += 1
        if self._grows and self._successes == GROW_AFTER:
            self._successes = 0
            self.value *= 2
