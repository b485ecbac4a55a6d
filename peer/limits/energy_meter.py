"""Energy use of processor packages (RAPL counters) and NVIDIA GPUs (power draw).

The counters include all programs on the machine. Other components (main board, disks, screen, power
supply) are not measured, so the total consumption is higher.
"""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")
TIMEOUT_S = 5.0
SAMPLE_S = 10.0  # interval between readings of GPU power
LONGEST_S = 120.0  # longer gaps, such as after a suspend, are skipped because their energy is unknown
JOULES_PER_WH = 3600.0


@dataclass(frozen=True)
class Energy:
    """The energy used since the start, in watt-hours; None for a component without a meter."""

    processor_wh: float | None = None
    gpu_wh: float | None = None


NOT_KNOWN = Energy()


def read_packages(powercap: Path = POWERCAP) -> dict[str, tuple[float, float]]:
    """Return each processor package's energy counter and the counter's maximum, in joules."""
    found = {}
    for zone in sorted(powercap.glob("intel-rapl:[0-9]*")):  # AMD CPUs use this name, too
        if zone.name.count(":") == 1:  # a second colon marks a subzone of a package
            try:
                values = [float((zone / name).read_text()) / 1e6 for name in ("energy_uj", "max_energy_range_uj")]
            except (OSError, ValueError):  # recent kernels allow only root to read it
                continue
            found[zone.name] = (values[0], values[1])
    return found


def read_gpu_watts(command: str = "nvidia-smi", visible: str | None = None) -> float | None:
    """Return the total power draw of the visible GPUs in watts, or None if unavailable."""
    arguments = [command, "--query-gpu=power.draw", "--format=csv,noheader,nounits"]
    if visible:
        arguments.append(f"--id={visible}")
    try:
        found = subprocess.run(arguments, capture_output=True, timeout=TIMEOUT_S, check=True, text=True)  # noqa: S603
        watts = sum(float(line) for line in found.stdout.splitlines())
    except (OSError, subprocess.SubprocessError, ValueError):  # "[N/A]" means no sensor
        return None
    return watts if found.stdout.strip() and math.isfinite(watts) else None


class EnergyMeter:
    """A meter that adds up the energy used between readings."""

    def __init__(
        self,
        clock: Callable[[], float],
        packages: Callable[[], Mapping[str, tuple[float, float]]] = read_packages,
        gpu_watts: Callable[[], float | None] | None = None,
    ) -> None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        self._clock, self._packages = clock, packages
        self._gpu_watts = gpu_watts or (lambda: read_gpu_watts(visible=visible))
        self._counters: Mapping[str, tuple[float, float]] = {}
        self._processor_j: float | None = None
        self._gpu_j: float | None = None
        self._watts: float | None = None
        self._sampled_at = float("-inf")

    def read(self) -> Energy:
        """Return the energy used so far; call it in a thread, because it may run a program."""
        self._read_processor()
        if self._clock() >= self._sampled_at + SAMPLE_S:
            self._read_gpu()
        return Energy(_wh(self._processor_j), _wh(self._gpu_j))

    def _read_processor(self) -> None:
        before, self._counters = self._counters, self._packages()
        if self._counters:
            pairs = [(before[name][0], now, most) for name, (now, most) in self._counters.items() if name in before]
            used = sum(now - was if now >= was else now - was + most for was, now, most in pairs)
            self._processor_j = (self._processor_j or 0.0) + used

    def _read_gpu(self) -> None:
        now, before, self._watts = self._clock(), self._watts, self._gpu_watts()
        elapsed_s, self._sampled_at = now - self._sampled_at, now
        if self._watts is not None:
            used = (before + self._watts) / 2 * elapsed_s if before is not None and elapsed_s <= LONGEST_S else 0.0
            self._gpu_j = (self._gpu_j or 0.0) + used


def _wh(joules: float | None) -> float | None:
    return None if joules is None else joules / JOULES_PER_WH
