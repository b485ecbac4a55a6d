"""Hours of the day in which a machine may be used, in its own local time, also over midnight."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, time

from auth.errors import ConfigError

_FORM = re.compile(r"(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})")


@dataclass(frozen=True)
class TimeWindow:
    """From `start`, inclusive, to `end`, exclusive, on the clock on the wall; over midnight if `end` is the earlier.

    The clock on the wall is also what counts when it is put forward or back: that night is an hour shorter or longer.
    """

    start: time
    end: time

    @classmethod
    def parse(cls, text: str) -> TimeWindow:
        """Read `22:00-07:00`; raises `ConfigError`."""
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
        """Whether this time of the day lies within."""
        if self.start < self.end:
            return self.start <= now < self.end
        return now >= self.start or now < self.end

    def __str__(self) -> str:
        return f"{self.start:%H:%M}-{self.end:%H:%M}"


def next_start(windows: Sequence[TimeWindow], now: datetime) -> time:
    """When the next of these windows begins, outside of all of which `now` lies."""
    later = [window.start for window in windows if window.start > now.time()]
    return min(later or [window.start for window in windows])


def _time(hour: str, minute: str) -> time:
    """24:00 is the day's end, and so the next one's beginning."""
    return time(0) if (hour, minute) == ("24", "00") else time(int(hour), int(minute))
