"""Absences: who was absent is left out for a while, ever longer, and an honest peer is soon back."""

from __future__ import annotations

import pytest

from peer.averaging.absences import MOST_REMEMBERED, REMEMBERED_ROUNDS, Absences, absent_of, unawaited


def waited_for(absences: Absences, rounds: int) -> list[int]:
    """The rounds in which somebody who never comes was waited for."""
    costly = []
    for number in range(rounds):
        if "mallory" not in absences.current():
            costly.append(number)
        absences.round_ended(["mallory"])
    return costly


@pytest.mark.parametrize(
    ("free", "first_rounds", "costly"),
    [(0, 16, [0, 17, 50, 115]), (1, 4, [0, 1, 6, 15, 32, 65, 130]), (1, 1, [0, 1, 3, 6, 11, 20, 37, 70, 135])],
)
def test_who_is_always_absent_costs_ever_fewer_rounds(free: int, first_rounds: int, costly: list[int]) -> None:
    """Each time it is left out for twice as many."""
    assert waited_for(Absences(free=free, first_rounds=first_rounds), 200) == costly


def test_who_is_there_again_is_soon_forgotten() -> None:
    """The next absence is a first one."""
    absences = Absences(free=0, first_rounds=4)
    absences.round_ended(["ada"])
    for _ in range(4):
        assert absences.current() == {"ada"}
        absences.round_ended()
    assert absences.current() == set()
    for _ in range(REMEMBERED_ROUNDS + 1):
        absences.round_ended()
    absences.round_ended(["ada"])
    for _ in range(4):
        absences.round_ended()
    assert absences.current() == set()


def test_a_long_term_is_remembered_for_long() -> None:
    """Who was left out for 32 rounds must be there for as many."""
    absences = Absences(free=0, first_rounds=16)
    absences.round_ended(["ada"])
    for _ in range(16):
        absences.round_ended()
    absences.round_ended(["ada"])
    for _ in range(2 * 32 - 1):
        absences.round_ended()
    absences.round_ended(["ada"])
    for _ in range(63):
        absences.round_ended()
    assert absences.current() == {"ada"}


def test_those_absent_last_are_named() -> None:
    """A declaration has room for few; and nobody's memory grows without bound."""
    absences = Absences(free=0, first_rounds=4)
    absences.round_ended(["early"])
    absences.round_ended(map(str, range(MOST_REMEMBERED)))
    assert "early" not in absences.current()
    assert len(absences.current()) == MOST_REMEMBERED
    absences.round_ended(["late"])
    assert absences.newest(2)[-1] == "late"


@pytest.mark.parametrize(
    ("absent", "awaited", "found"), [("", "abc", ""), ("a", "ab", "a"), ("ab", "abcd", "ab"), ("ab", "abc", "")]
)
def test_a_peer_that_misses_most_has_lost_its_own_line(absent: str, awaited: str, found: str) -> None:
    """Then nobody is held to have been absent."""
    assert absent_of(set(absent), set(awaited)) == set(found)


@pytest.mark.parametrize(
    ("out", "others", "found"), [("ax", "ab", "a"), ("a", "a", ""), ("ab", "abc", ""), ("", "", "")]
)
def test_most_are_always_waited_for(out: str, others: str, found: str) -> None:
    """A reducer that waits for nobody averages its own part alone."""
    assert unawaited(set(out), set(others)) == set(found)
