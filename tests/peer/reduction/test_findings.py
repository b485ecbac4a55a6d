"""Findings of one process reach the others, and a group leaves accused peers out."""

from __future__ import annotations

import pytest

from peer.reduction.findings import (
    ACCUSED_S,
    MAX_ID_CHARS,
    MOST_ACCUSED,
    MOST_DETAIL_CHARS,
    Accusations,
    Finding,
    outvoted,
)


def test_a_finding_that_quotes_others_is_bounded() -> None:
    """On its way to the trainer's process."""
    finding = Finding("a" * 1000, "parts", "b" * 10_000).bounded
    assert (len(finding.peer_id), len(finding.detail)) == (MAX_ID_CHARS, MOST_DETAIL_CHARS)
    assert finding.bounded == finding


PEERS = ["keeper", "alice", "bob", "mallory"]


def test_who_was_caught_is_accused_for_a_time() -> None:
    """Those caught last, if there are many; nobody for ever."""
    now = [0.0]
    accusations = Accusations(lambda: now[0])
    for number in range(MOST_ACCUSED + 1):
        accusations.accuse(f"peer {number}")
    accusations.accuse("peer 1")
    assert accusations.current() == [f"peer {number}" for number in (*range(2, MOST_ACCUSED + 1), 1)]
    now[0] = ACCUSED_S
    assert accusations.current() == []


@pytest.mark.parametrize(("accusers", "is_out"), [([], False), (["alice"], False), (["alice", "keeper"], True)])
def test_most_of_the_others_must_have_caught_it(accusers: list[str], is_out: bool) -> None:
    """One word against another's leads to nothing."""
    accused = [{"mallory"} if peer in accusers else set() for peer in PEERS]
    assert outvoted(PEERS, PEERS, accused, [False] * 4) == [False, False, False, is_out]


def test_a_member_has_one_voice_and_none_about_itself() -> None:
    """However many devices it has in the group."""
    peers, members = ["m1", "m2", "m3", "a", "b"], ["mallory"] * 3 + ["alice", "bob"]
    assert not any(outvoted(peers, members, [{"a"}] * 3 + [set(), set()], [False] * 5))
    assert outvoted(peers, members, [set()] * 3 + [{"m1"}] * 2, [False] * 5) == [True, *[False] * 4]


def test_the_keeper_is_never_left_out() -> None:
    """It is the operator's own."""
    accused = [set(), {"keeper"}, {"keeper"}, {"keeper"}]
    assert not any(outvoted(PEERS, PEERS, accused, [True, False, False, False]))
