"""A volunteer's limits, and their parsing from the command line.

Hours of the day are in the machine's local time and may span midnight (`TimeWindow`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, time

from auth.errors import ConfigError
from peer.network.traffic import BYTES_PER_S_OF_MBIT

_FORM = re.compile(r"(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})")
_UNITS = {unit: 1000**power for power, unit in enumerate(("b", "kb", "mb", "gb", "tb"))} | {
    unit: 1024**power for power, unit in enumerate(("kib", "mib", "gib", "tib"), start=1)
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)", re.IGNORECASE)


@dataclass(frozen=True)
class Limits:
    """A volunteer's limits; None or an empty value means no limit."""

    hours: tuple[TimeWindow, ...] = ()  # train only within one of these windows
    polite: bool = False  # pause on battery, on a metered network, or while the machine is in use
    max_hours: float | None = None  # limit on the time since joining, including pauses
    memory_bytes: int | None = None  # limit on the worker's memory
    disk_bytes: int | None = None  # limit on this device's files
    upload_rate: float | None = None  # limit on uploads, in bytes per second
    download_rate: float | None = None
    upload_bytes: int | None = None  # limit on the bytes sent since joining
    download_bytes: int | None = None

    @property
    def rates(self) -> tuple[float | None, float | None]:
        """The upload and download limits in bytes per second."""
        return self.upload_rate, self.download_rate


NO_LIMITS = Limits()


def parse_windows(texts: Sequence[str]) -> tuple[TimeWindow, ...]:
    """Parse the values of `--hours`. Raises `ConfigError` if one is not a time window."""
    return tuple(map(TimeWindow.parse, texts))


def parse_size(option: str, text: str | None) -> int | None:
    """Parse a size such as `4GB` or `500 MiB` into bytes. Raises `ConfigError` if it is malformed."""
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    size = float(match[1]) * _UNITS.get(match[2].lower(), 0) if match else 0.0
    if size < 1:
        raise ConfigError(f"`{option}` ({text}) must be a size with its unit, such as 500MB, 4GB or 2GiB.")
    return int(size)


def parse_rate(option: str, megabits: float | None) -> float | None:
    """Convert a rate from Mbit/s to bytes per second. Raises `ConfigError` unless it is above 0."""
    if megabits is None:
        return None
    if not (math.isfinite(megabits) and megabits > 0):
        raise ConfigError(f"`{option}` ({megabits:g}) must be more than 0 Mbit/s.")
    return megabits * BYTES_PER_S_OF_MBIT


@dataclass(frozen=True)
class TimeWindow:
    """A daily window of local time, from `start` to `end`; spans midnight if `end` is earlier.

    A window that spans a daylight saving time change is an hour shorter or longer.
    """

    start: time
    end: time

    @classmethod
    def parse(cls, text: str) -> TimeWindow:
        """Parse a window such as `22:00-07:00`. Raises `ConfigError` if it is malformed or empty."""
        match = _FORM.fullmatch(text.strip())
        if match is None:
            raise ConfigError(f"`--hours` ({text}) must be two times of the day, such as 22:00-07:00.")
        try:
            window = cls(_time(match[1], match[2]), _time(match[3], match[4]))
        except ValueError as error:
            raise ConfigError(f"`--hours` ({text}) must be two times of the day, such as 22:00-07:00.") from error
        if window.start == window.end:
            raise ConfigError(f"`--hours` ({text}) must begin and end at different times, such as 22:00-07:00.")
        return window

    def holds(self, now: time) -> bool:
        """Return whether a time of day is within the window."""
        if self.start < self.end:
            return self.start <= now < self.end
        return now >= self.start or now < self.end

    def __str__(self) -> str:
        return f"{self.start:%H:%M}-{self.end:%H:%M}"


def next_start(windows: Sequence[TimeWindow], now: datetime) -> time:
    """Return the next time at which any window starts; `now` must be outside all windows."""
    later = [window.start for window in windows if window.start > now.time()]
    return min(later or [window.start for window in windows])


def _time(hour: str, minute: str) -> time:
    """Parse a time of day; 24:00 means 00:00."""
    return time(0) if (hour, minute) == ("24", "00") else time(int(hour), int(minute))
