"""What can be typed as a limit."""

from __future__ import annotations

import pytest

from auth.errors import ConfigError
from peer.guest.limits import parse_rate, parse_size


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
