"""How many joiners a donor serves at once, and which it turns away."""

from __future__ import annotations

import pytest

from peer.node.donations import AT_ONCE, BROKEN_OFF_S, OF_ONE_MEMBER, STALLED_S, Donations
from tests.support.clocks import Clock


def test_a_few_are_served_and_the_others_come_back() -> None:
    """A device that finds no place finds one when a download has ended."""
    donations = Donations(Clock())
    under_way = [donations.begin(f"member {n}", f"device {n}") for n in range(AT_ONCE)]
    assert None not in under_way
    assert donations.begin("late", "late's") is None
    first = under_way[0]
    assert first is not None
    donations.end(first)
    donations.end(first)  # a second time changes nothing
    assert donations.begin("late", "late's") is not None
    assert donations.begin("later", "later's") is None


def test_one_member_cannot_hold_all_places() -> None:
    """The number of its devices does not matter."""
    donations = Donations(Clock())
    given = [donations.begin("ada", f"device {n}") is not None for n in range(AT_ONCE)]
    assert given == [True] * OF_ONE_MEMBER + [False] * (AT_ONCE - OF_ONE_MEMBER)
    assert donations.begin("grace", "laptop") is not None


def test_a_stalled_download_loses_its_place() -> None:
    """It ends with the next part, if that is ever read; a download that goes on keeps its place."""
    clock = Clock()
    donations = Donations(clock, at_once=2)
    stalled, moving = donations.begin("ada", "laptop"), donations.begin("grace", "desktop")
    assert stalled is not None
    assert moving is not None
    clock.now += STALLED_S - 1
    assert donations.goes_on(moving)
    clock.now += 1
    assert donations.begin("late", "late's") is not None
    assert not donations.goes_on(stalled)
    assert donations.goes_on(moving)


def test_a_device_that_comes_again_has_left_its_download() -> None:
    """The donor may notice long after that nobody reads the stream."""
    donations = Donations(Clock(), after_break_s=BROKEN_OFF_S)
    left = donations.begin("ada", "laptop")
    assert left is not None
    assert donations.begin("ada", "laptop") is None
    assert not donations.goes_on(left)


@pytest.mark.parametrize("after_break_s", [BROKEN_OFF_S, 0.0])
def test_a_device_that_stalled_is_turned_away_unless_it_wants_an_average(after_break_s: float) -> None:
    """An average is small, is in no checkpoint, and is wanted at once."""
    donations = Donations(clock := Clock(), after_break_s=after_break_s)
    assert donations.begin("ada", "laptop") is not None
    clock.now += STALLED_S
    assert (donations.begin("ada", "laptop") is None) == (after_break_s > 0)
