"""How much of a claim counts: what others received, and no more than was claimed."""

from __future__ import annotations

import pytest

from peer.crediting import Word, credited, disproved, newcomer_share

KEEPER = "keeper"


def words(*said: tuple[str, int]) -> list[Word]:
    return [Word(member, member == KEEPER, samples) for member, samples in said]


@pytest.mark.parametrize(
    ("said", "counted"),
    [
        ([], None),
        ([("ada", 30)], None),
        ([(KEEPER, 30)], 30),
        ([(KEEPER, 50)], 30),
        ([(KEEPER, 10)], 10),
        ([(KEEPER, 0)], 0),
        ([(KEEPER, 30), ("bob", 0), ("eve", 0)], 30),
        ([(KEEPER, 10), ("bob", 30), ("eve", 30)], 10),
        ([("bob", 30)], 30),
        ([("bob", 30), ("ada", 0)], 30),
        ([("bob", 30), ("eve", 20)], 20),
        ([("bob", 30), ("eve", 0), ("dan", 30)], 30),
        ([("bob", 5), ("eve", 1000), ("dan", 5)], 5),
    ],
)
def test_what_others_say_counts(said: list[tuple[str, int]], counted: int | None) -> None:
    """Ada claims 30: the keeper's word suffices, else the median of other members', never her own devices'."""
    assert credited(30, "ada", words(*said)) == counted


def test_no_samples_need_no_word() -> None:
    """An auxiliary peer claims none and waits for nobody."""
    assert credited(0, "ada", []) == 0


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ([(KEEPER, 10)], True),
        ([(KEEPER, 30)], False),
        ([("bob", 10)], False),
        ([("bob", 10), ("ada", 10)], False),
        ([("bob", 10), ("eve", 10)], True),
        ([("bob", 30), ("eve", 30)], False),
        ([("bob", 30), ("eve", 1)], False),
        ([("bob", 30), ("eve", 1), ("dan", 2)], True),
        ([("bob", 30), ("eve", 1), ("dan", 2), ("fay", 30)], False),
        ([(KEEPER, 30), ("eve", 1), ("dan", 2)], False),
        ([], False),
    ],
)
def test_who_is_named(said: list[tuple[str, int]], named: bool) -> None:
    """The keeper's word, or most others': one member's against another's is none."""
    assert disproved(30, "ada", words(*said), believed=1000) is named


@pytest.mark.parametrize(("received", "named"), [(19, True), (20, False), (25, False)])
def test_who_may_have_been_believed_less_than_it_brought_is_not_named(received: int, named: bool) -> None:
    """A reducer that cuts a weight leaves as much as it believes of anybody: less than that was really less."""
    for said in [(KEEPER, received)], [("bob", received), ("eve", received)]:
        assert disproved(30, "ada", words(*said), believed=20) is named


@pytest.mark.parametrize(("members", "share"), [(0, 1.0), (1, 1.0), (2, 1.0), (4, 0.5), (8, 0.25), (100, 0.25)])
def test_a_newcomer_has_twice_a_fair_share(members: int, share: float) -> None:
    """Of a small swarm all, of a large one the least that the run allows."""
    assert newcomer_share(members, 0.25) == share
