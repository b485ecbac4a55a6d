"""What a volunteer allows: parsed once, where the command line is read, and passed on as it is."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from auth.errors import ConfigError
from peer.guest.windows import TimeWindow

BYTES_PER_S_OF_MBIT = 125_000
_UNITS = {unit: 1000**power for power, unit in enumerate(("b", "kb", "mb", "gb", "tb"))}
_UNITS |= {unit: 1024**power for power, unit in enumerate(("kib", "mib", "gib", "tib"), start=1)}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)", re.IGNORECASE)


@dataclass(frozen=True)
class Limits:
    """None, or nothing, is no limit."""

    hours: tuple[TimeWindow, ...] = ()  # only within one of these
    polite: bool = False  # not on battery, not over a metered network, not while somebody uses the machine
    max_hours: float | None = None  # of one stay, pauses included
    memory_bytes: int | None = None  # of the worker
    disk_bytes: int | None = None  # of all files of this device
    upload_rate: float | None = None  # bytes a second
    download_rate: float | None = None
    upload_bytes: int | None = None  # of one stay
    download_bytes: int | None = None

    @property
    def rates(self) -> tuple[float | None, float | None]:
        """Both directions', bytes a second."""
        return self.upload_rate, self.download_rate


NO_LIMITS = Limits()


def parse_windows(texts: Sequence[str]) -> tuple[TimeWindow, ...]:
    """Every `--hours` that was given; raises `ConfigError`."""
    return tuple(map(TimeWindow.parse, texts))


def parse_size(option: str, text: str | None) -> int | None:
    """Bytes, of `4GB`, `500 MiB`; raises `ConfigError`."""
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    size = float(match[1]) * _UNITS.get(match[2].lower(), 0) if match else 0.0
    if size < 1:
        raise ConfigError(f"`{option}` ({text}) must be a size with its unit, such as 500MB, 4GB or 2GiB.")
    return int(size)


def parse_rate(option: str, megabits: float | None) -> float | None:
    """Bytes a second, of Mbit/s; raises `ConfigError`."""
    if megabits is None:
        return None
    if not (math.isfinite(megabits) and megabits > 0):
        raise ConfigError(f"`{option}` ({megabits:g}) must be more than 0 Mbit/s.")
    return megabits * BYTES_PER_S_OF_MBIT
