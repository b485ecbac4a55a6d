"""Reducers whose own counts keep a round from having the samples of its batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pytest
from hypothesis import given, strategies as st

from peer.reduction.attestation import Attestation, AttestedRound, AttestedSender, digest
from peer.reduction.undercounting import Accounts

ROUND = AttestedRound("run", 1, 7, b"group", digest(b"order"))
SENDERS = ("w", "x", "y", "z")
MEMBERS = {"c2": "c", "c3": "c"}  # further devices
WHOLE, NOTHING = (8, 8, 8, 8), (0, 0, 0, 0)
NO_OTHERS: Mapping[str, Sequence[float]] = MappingProxyType({})
Counts = Mapping[str, Sequence[float]]


def attested(counted: Sequence[float], named: Sequence[float]) -> Attestation:
    """A reducer's attestation that it heard of these weights, and counted so much of each in both of its parts."""
    inputs, averages = [digest(b"first"), digest(b"second")], [digest(b"third"), digest(b"fourth")]
    lines = [AttestedSender.of_parts(weight, inputs, [of, of]) for weight, of in zip(named, counted, strict=True)]
    return Attestation.of_round(ROUND, averages, lines)


def accounts(
    counts: Counts,
    senders: Sequence[str] = SENDERS,
    named: Mapping[str, Sequence[float]] | None = None,
    keeper: str = "",
) -> Accounts:
    """Four senders name 8 samples to each reducer, or what is `named` to it; the reducers count so much of them."""
    heard = {reducer: (named or {}).get(reducer, [8.0] * len(senders)) for reducer in counts}
    attestations = {reducer: attested(of, heard[reducer]) for reducer, of in counts.items()}
    return Accounts(attestations, senders, MEMBERS, frozenset({keeper} if keeper else ()))


@pytest.mark.parametrize(
    ("counts", "low"),
    [
        ({"a": WHOLE, "b": WHOLE, "c": NOTHING}, {"c"}),
        ({"a": WHOLE, "c": (7.9, 7.9, 7.9, 8)}, {"c"}),
        ({"a": WHOLE, "b": WHOLE, "c": (0, 0, 8, 8)}, set()),  # half of them
        ({"a": NOTHING, "b": NOTHING, "c": WHOLE}, set()),  # most know something
        ({"a": WHOLE, "b": WHOLE, "c": NOTHING, "c2": NOTHING, "c3": NOTHING}, {"c", "c2", "c3"}),  # one voice
        ({"a": NOTHING, "b": WHOLE, "c": WHOLE, "c2": NOTHING}, {"a", "c", "c2"}),  # the voice of its best device
        ({"a": WHOLE, "c": (0, 0, 8, 8), "c2": (8, 8, 0, 0)}, {"c", "c2"}),  # they share the others
        ({"c": NOTHING}, {"c"}),  # beside what was named
        ({"c": WHOLE}, set()),
        ({}, set()),
    ],
)
def test_who_counts_most_members_for_less_than_most_reducers_do(counts: Counts, low: set[str]) -> None:
    """One reducer may know something of half of the members; hardly of more."""
    assert accounts(counts).cutting_most() == low


def test_a_reducers_own_samples_are_no_evidence() -> None:
    """Its count of itself excuses no cuts, and makes nobody else's count a cut."""
    senders = ("c", "x", "y", "z")
    assert accounts({"a": WHOLE, "b": WHOLE, "c": (8, 0, 0, 8)}, senders).cutting_most() == {"c"}
    assert accounts({"a": WHOLE, "b": WHOLE, "c": (0, 0, 8, 8)}, senders).cutting_most() == set()
    twice = ("c", "c2", "x", "y")
    for target in (24, 32):
        assert accounts({"a": (1, 1, 8, 8), "c2": WHOLE}, twice).undercounting(target) == set()


def test_a_reducer_that_does_not_count_itself_cuts_nobody_else() -> None:
    """It may cut half of the others beside."""
    beside, whole = ("c", "w", "x", "y", "z"), (8, 8, 8, 8, 8)
    assert accounts({"a": whole, "b": whole, "c": (0, 0, 0, 8, 8)}, beside).cutting_most() == set()
    assert accounts({"a": (8, 8), "b": (8, 8), "c": (0, 0)}, ("c", "x")).cutting_most() == set()


def test_only_members_who_brought_something_are_counted() -> None:
    """Each of them once: keepers and auxiliary peers, or many devices, make no cut look like one of few."""
    named = dict.fromkeys("abc", (8.0, 8.0, 0.0, 0.0))
    assert accounts({"a": (8, 8, 0, 0), "b": (8, 8, 0, 0), "c": NOTHING}, named=named).cutting_most() == {"c"}
    senders, cut = ("x", "y", "c2", "c3"), (0, 0, 8, 8)
    assert accounts({"a": cut, "b": WHOLE, "d": WHOLE}, senders).cutting_most() == {"a"}


def test_of_two_senders_nobody_can_tell_which_is_right() -> None:
    """One that cuts the only other one may have a reason; only a round that is short for that tells against it."""
    both = accounts({"keeper": (8, 8), "c": (8, 0)}, ("c", "x"))
    assert both.cutting_most() == set()
    assert both.short_alone(16) == {"c"}


def test_a_keepers_word_counts() -> None:
    """There is no round without it."""
    one = accounts({"keeper": NOTHING, "a": WHOLE, "b": WHOLE}, keeper="keeper")
    assert one.undercounting(32) == set()


@pytest.mark.parametrize(
    ("counts", "target", "low"),
    [
        ({"a": WHOLE, "b": WHOLE, "c": (8, 8, 8, 7.4)}, 32, {"c"}),  # a fraction of one sample is enough
        ({"a": WHOLE, "b": WHOLE, "c": (8, 8, 8, 7.6)}, 32, set()),  # rounded, the batch is full
        ({"a": WHOLE, "b": WHOLE, "c": (0, 0, 8, 8)}, 32, {"c"}),
        ({"a": WHOLE, "b": (8, 8, 0, 0), "c": (0, 0, 8, 8)}, 32, {"b", "c"}),
        ({"a": WHOLE, "b": WHOLE, "c": (0, 0, 8, 8)}, 16, set()),  # the batch is full all the same
        ({"a": WHOLE, "b": WHOLE, "c": (0, 0, 8, 8)}, 33, set()),  # it would be short in any case
        ({"a": (8, 8, 8, 0), "b": (8, 8, 8, 0), "c": (8, 8, 8, 0)}, 32, set()),  # all cut the same one
        ({"a": WHOLE, "b": WHOLE, "c": NOTHING}, 0, set()),  # the target is not known
        ({"a": (8, 8, 8, 7.6), "b": (8, 8, 8, 7.6), "c": (8, 8, 8, 0)}, 32, {"c"}),  # rounded, others are full
        ({"a": (1, 8, 8, 8), "b": (1, 8, 8, 8), "c": (8, 8, 8, 0)}, 26, {"c"}),  # what others cut makes up for nothing
    ],
)
def test_who_falls_short_only_by_its_own_cuts(counts: Counts, target: int, low: set[str]) -> None:
    """The others' counts show what it could have counted."""
    assert accounts(counts).short_alone(target) == low


def test_the_part_with_the_fewest_samples_decides() -> None:
    """A reducer could cut one of its parts only."""
    inputs, averages = [digest(b"first"), digest(b"second")], [digest(b"third"), digest(b"fourth")]
    lines = [AttestedSender.of_parts(8.0, inputs, counted) for counted in ([8, 8], [8, 0], [8, 8], [8, 8])]
    cut = Attestation.of_round(ROUND, averages, lines)
    given = {"a": attested(WHOLE, WHOLE), "b": attested(WHOLE, WHOLE), "c": cut}
    assert Accounts(given, SENDERS, {}).short_alone(32) == {"c"}


def test_a_sender_that_names_less_to_one_reducer_makes_it_no_liar() -> None:
    """It counts all that it was brought."""
    named = {"a": (8.0, 8.0, 1.0, 1.0)}
    framed = accounts({"a": (8, 8, 1, 1), "b": WHOLE, "c": WHOLE}, named=named)
    assert framed.undercounting(32) == set()


def test_weights_that_are_named_only_make_no_round_short() -> None:
    """Of a member who reduces alone, or of devices that speak for each other, with sums beyond all numbers."""
    alone = accounts({"c": (8, 8, 8, 1)}, named={"c": (8.0, 8.0, 8.0, 1e6)})
    assert alone.short_alone(32) == set()
    most = (1.7e308, 1.7e308, 8.0, 8.0)
    beyond = accounts({"a": (0, 0, 8, 8), "b": most, "d": most}, named=dict.fromkeys("abd", most))
    assert beyond.short_alone(32) == {"a"}


def test_reducers_that_count_nothing_of_others_make_nobody_cut_most() -> None:
    """The honest one counts two of four members; most others count the two that it cut, and nothing of the rest."""
    peers = [f"peer {number}" for number in range(5)]
    counts = {peer: [8.0, 8.0, 0.0, 0.0, 0.0] for peer in peers[1:]} | {peers[4]: [0.0, 0.0, 8.0, 8.0, 8.0]}
    attestations = {peer: attested(of, [8.0] * 5) for peer, of in counts.items()}
    assert peers[4] not in Accounts(attestations, peers, dict(zip(peers, peers, strict=True))).cutting_most()


@given(st.data())
def test_no_reducer_that_cuts_half_of_the_others_is_held_to_cut_most(data: st.DataObject) -> None:
    """The attestations of the rest change nothing in that, nor do their members."""
    peers = [f"peer {number}" for number in range(data.draw(st.integers(2, 7), "peers"))]
    owners = data.draw(st.lists(st.sampled_from(peers), min_size=len(peers), max_size=len(peers)), "owners")
    members = dict(zip(peers, owners, strict=True))
    honest = data.draw(st.sampled_from(peers), "honest")
    members[honest] = honest
    others = sorted({owner for peer, owner in members.items() if peer != honest and owner != honest})
    cut = set(data.draw(st.permutations(others), "cut")[: len(others) // 2])
    weights = st.sampled_from([0.0, 1.0, 7.9, 8.0])
    counts = {peer: [data.draw(weights, f"{peer} of {sender}") for sender in peers] for peer in peers}
    counts[honest] = [of if members[sender] in cut else 8.0 for sender, of in zip(peers, counts[honest], strict=True)]
    attestations = {peer: attested(of, [8.0] * len(peers)) for peer, of in counts.items()}
    reducing = {peer: attested for peer, attested in attestations.items() if members[peer] != honest or peer == honest}
    assert honest not in Accounts(reducing, peers, members).cutting_most()
