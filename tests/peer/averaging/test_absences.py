"""Absences: who was absent is left out for a while, ever longer, and an honest peer is soon back."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from peer.averaging.absences import (
    MISSED_ROUNDS,
    MOST_REMEMBERED,
    REMEMBERED_ROUNDS,
    UNDERCOUNTED_ROUNDS,
    Absences,
    Attendance,
    absent_of,
    unawaited,
)
from peer.averaging.declarations import MOST_MISSED


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


OTHERS = ("keeper", "bob", "mallory")
GROUP = ("own", *OTHERS)


@pytest.fixture
def attendance() -> Attendance:
    """The record of a peer in a group of four, all of which send and reduce."""
    return Attendance("own", lambda peer: f"the device of {peer}")


def end_round(
    attendance: Attendance, missed: Collection[str] = (), silent: Collection[str] = (), late: Collection[str] = ()
) -> bool:
    """Record a round of the four."""
    return attendance.round_ended(missed=missed, silent=silent, late=late, reducers=OTHERS, senders=GROUP)


def test_a_missed_reducer_is_declared(attendance: Attendance, caplog: pytest.LogCaptureFixture) -> None:
    """For some rounds, to the next groups; the log names it."""
    assert end_round(attendance, missed=["mallory"])
    assert attendance.declared == ["mallory"]
    assert caplog.messages == [
        "missing: the device of mallory, peer mallory, did not return all averages: it gets no share for some rounds"
    ]
    for _ in range(MISSED_ROUNDS):
        assert attendance.explains_failures
        end_round(attendance)
    assert (attendance.declared, attendance.explains_failures) == ([], False)


def test_a_reducer_that_undercounts_twice_in_succession_is_declared(
    attendance: Attendance, caplog: pytest.LogCaptureFixture
) -> None:
    """Each half of a round by itself; once may be chance, and this peer does not declare itself."""
    for half, low in ((b"a", ["bob"]), (b"b", ["mallory"]), (b"a", ["mallory"]), (b"b", ["bob"])):
        attendance.counted(half, low, GROUP)
    assert attendance.declared == []
    attendance.counted(b"a", [], ["own", "keeper", "bob"])  # a round without it shows nothing of it
    assert attendance.declared == []
    attendance.counted(b"a", ["mallory", "own"], GROUP)
    attendance.counted(b"a", ["own"], GROUP)
    assert attendance.declared == ["mallory"]
    [said] = caplog.messages
    assert "peer mallory, counted too few of others' samples again" in said
    assert not attendance.explains_failures  # because its averages arrived


def test_single_rounds_of_undercounting_are_forgotten_with_the_code(attendance: Attendance) -> None:
    """The halves of a round in another code are not the same ones."""
    attendance.counted(b"", ["bob"], GROUP)
    attendance.forget_counts()
    attendance.counted(b"", ["bob"], GROUP)
    assert attendance.declared == []
    attendance.counted(b"", ["bob"], GROUP)
    assert attendance.declared == ["bob"]


def test_a_reducer_is_declared_once(attendance: Attendance) -> None:
    """Whatever it did; and a declaration has room for few."""
    peers = [f"peer {number}" for number in range(MOST_MISSED + 1)]
    for _ in range(UNDERCOUNTED_ROUNDS):
        attendance.counted(b"", ["bob", "mallory"], GROUP)
    end_round(attendance, missed=["bob"])
    assert sorted(attendance.declared) == ["bob", "mallory"]
    attendance.round_ended(missed=peers, reducers=[*peers, *map(str, range(MOST_MISSED))])
    declared = attendance.declared
    assert len(declared) == len(set(declared)) == MOST_MISSED


def test_a_sender_that_was_silent_twice_is_not_waited_for(
    attendance: Attendance, caplog: pytest.LogCaptureFixture
) -> None:
    """The others hear nothing of that: each reducer decides for itself."""
    assert end_round(attendance, silent=["bob"])
    assert attendance.unawaited(OTHERS) == set()
    assert end_round(attendance, silent=["bob"])
    assert attendance.unawaited(OTHERS) == {"bob"}
    assert caplog.messages == ["missing: the device of bob, peer bob, did not send all its parts"] * 2
    assert (attendance.declared, attendance.explains_failures) == ([], False)


@pytest.mark.parametrize("took_all_its_time", [True, False])
def test_a_sender_too_slow_for_the_round_twice_is_not_waited_for(
    attendance: Attendance, took_all_its_time: bool
) -> None:
    """A round that broke off early shows nothing of those whose parts were still on their way."""
    for _ in range(2):  # a round that is broken off breaks off everybody's stream
        end_round(attendance, silent=OTHERS, late=["bob"] if took_all_its_time else [])
    assert attendance.unawaited(OTHERS) == ({"bob"} if took_all_its_time else set())


def test_reducers_that_await_a_late_sender_too_are_not_missed(attendance: Attendance) -> None:
    """At the end of a round's time, a reducer that this peer awaits may await the same sender as this peer."""
    assert end_round(attendance, missed=["keeper"], late=["bob"])
    assert attendance.declared == []


def test_a_peer_that_misses_most_blames_nobody(attendance: Attendance) -> None:
    """Its own connection was down, or the leader has told it of another group than the others."""
    for _ in range(2):
        assert not end_round(attendance, missed=OTHERS, silent=OTHERS)
    assert (attendance.declared, attendance.unawaited(OTHERS)) == ([], set())
