"""Limits as people type them, and hours of the day over midnight and changes of the clock."""

from __future__ import annotations

from datetime import datetime, time, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from auth.errors import ConfigError
from peer.limits.limits import TimeWindow, next_start, parse_rate, parse_size

NIGHT = TimeWindow.parse("22:00-07:00")

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("window", "inside", "outside"),
    [
        ("22:00-07:00", ["22:00", "23:59", "00:00", "06:59"], ["07:00", "12:00", "21:59"]),
        ("09:30-17:00", ["09:30", "16:59"], ["09:29", "17:00", "00:00"]),
        ("18:00-24:00", ["18:00", "23:59"], ["00:00", "17:59"]),
        ("0:00-6:00", ["00:00", "05:59"], ["06:00", "23:59"]),
    ],
)
def test_a_window_holds_its_start_and_not_its_end(window: str, inside: list[str], outside: list[str]) -> None:
    """Also over midnight."""
    parsed = TimeWindow.parse(window)
    assert all(parsed.holds(time.fromisoformat(at)) for at in inside)
    assert not any(parsed.holds(time.fromisoformat(at)) for at in outside)


@pytest.mark.parametrize(
    "text", ["", "22-7", "22:00", "25:00-07:00", "22:60-07:00", "07:00-07:00", "0:00-24:00", "a-b"]
)
def test_what_is_no_window_is_refused_in_one_sentence(text: str) -> None:
    """The message repeats what was typed and shows how it is done."""
    with pytest.raises(ConfigError, match=r"`--hours` \(.*22:00-07:00\.$"):
        TimeWindow.parse(text)


@pytest.mark.parametrize(
    ("midday", "hours_in_a_night"),
    [
        (datetime(2026, 3, 28, 12, tzinfo=BERLIN), 8),  # the clock is put forward that night
        (datetime(2026, 10, 24, 12, tzinfo=BERLIN), 10),  # and back that night
        (datetime(2026, 6, 1, 12, tzinfo=BERLIN), 9),
    ],
)
def test_the_clock_on_the_wall_counts_when_it_is_changed(midday: datetime, hours_in_a_night: int) -> None:
    """The night begins at ten and ends at seven, however many hours lie between."""
    begun = midday.astimezone(timezone.utc)
    quarters = [(begun + timedelta(minutes=15 * n)).astimezone(BERLIN) for n in range(96)]
    assert sum(NIGHT.holds(moment.time()) for moment in quarters) == 4 * hours_in_a_night


def test_the_next_start_may_be_tomorrow() -> None:
    """The earliest that is still to come, else the earliest of all."""
    windows = (NIGHT, TimeWindow.parse("12:00-13:00"))
    assert next_start(windows, datetime(2026, 6, 1, 8, tzinfo=BERLIN)) == time(12)
    assert next_start(windows, datetime(2026, 6, 1, 14, tzinfo=BERLIN)) == time(22)
    assert next_start(windows[1:], datetime(2026, 6, 1, 14, tzinfo=BERLIN)) == time(12)


@pytest.mark.parametrize(
    ("text", "size"), [("4GB", 4 * 10**9), ("500 mb", 5 * 10**8), ("1.5GiB", 3 * 2**29), ("2000B", 2000), (None, None)]
)
def test_sizes_have_units(text: str | None, size: int | None) -> None:
    """Decimal and binary ones, in any case."""
    assert parse_size("--max-disk", text) == size


@pytest.mark.parametrize("text", ["", "4", "GB", "-1GB", "0GB", "4 bananas", "nan GB", "0.1B"])
def test_what_is_no_size_is_refused_in_one_sentence(text: str) -> None:
    """The message names the option, what was typed and what would do."""
    with pytest.raises(ConfigError, match=r"`--max-disk` \(.*500MB"):
        parse_size("--max-disk", text)


def test_rates_are_in_megabits() -> None:
    """As people know their lines."""
    assert parse_rate("--max-upload-rate", 8.0) == 1e6
    assert parse_rate("--max-upload-rate", None) is None


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_rate_is_refused(rate: float) -> None:
    """Nothing at all is not a rate."""
    with pytest.raises(ConfigError, match=r"`--max-upload-rate` \(.*more than 0"):
        parse_rate("--max-upload-rate", rate)
