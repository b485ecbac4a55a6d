"""How many joiners a donor serves at once."""

from __future__ import annotations

from peer.donations import AT_ONCE, OF_ONE_MEMBER, STALLED_S, Donations
from tests.support.clocks import Clock


def test_a_few_are_served_and_the_others_come_back() -> None:
    """Who finds no place finds one when a download has ended."""
    donations = Donations(Clock())
    under_way = [donations.begin(f"member {n}") for n in range(AT_ONCE)]
    assert None not in under_way
    assert donations.begin("late") is None
    first = under_way[0]
    assert first is not None
    donations.end(first)
    donations.end(first)  # a second time changes nothing
    assert donations.begin("late") is not None
    assert donations.begin("later") is None


def test_one_member_cannot_hold_all_places() -> None:
    """However many devices it has."""
    donations = Donations(Clock())
    assert [donations.begin("ada") is not None for _ in range(AT_ONCE)] == [True] * OF_ONE_MEMBER + [False] * (
        AT_ONCE - OF_ONE_MEMBER
    )
    assert donations.begin("grace") is not None


def test_who_takes_nothing_loses_its_place() -> None:
    """Its download ends with the next part, if that is ever taken; one that goes on keeps its place."""
    clock = Clock()
    donations = Donations(clock, at_once=2)
    stalled, moving = donations.begin("ada"), donations.begin("grace")
    assert stalled is not None
    assert moving is not None
    clock.now += STALLED_S - 1
    assert donations.goes_on(moving)
    clock.now += 1
    assert donations.begin("late") is not None
    assert not donations.goes_on(stalled)
    assert donations.goes_on(moving)
