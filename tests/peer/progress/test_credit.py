"""Credit for claims: the keeper counts a claim as far as rounds bear it out."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from peer.progress.credit import (
    FALSE_ROUNDS,
    LOST_IN_ALL,
    LOST_ROUNDS,
    REMEMBERED_STEPS,
    Allowances,
    CreditBook,
    FalseClaims,
    is_inflated,
    newcomer_share,
)
from peer.progress.records import KnownPeer, PeerRecord
from peer.reduction.attestation import AttestedWeight

RECORD = PeerRecord(step=3, samples=10, rate=1.0, time=1.0, training=True, client_mode=False)

BAD = KnownPeer("bad", "mallory", "d", "trainer", RECORD)


def attested(weights: dict[str, float]) -> dict[str, AttestedWeight]:
    """Attest these weights, of which nothing was cut."""
    return {peer_id: AttestedWeight(weight, weight, weight, weight) for peer_id, weight in weights.items()}


def ended(claims: FalseClaims, weights: dict[str, float]) -> None:
    """A round that brought these weights, and was full."""
    claims.round_ended([BAD], weights, attested(weights), Allowances(target=10), short=False)


def test_after_refusals_in_two_rounds_it_is_not_counted_any_more() -> None:
    """What it brings is averaged all the same, but no step begins because of it."""
    claims = FalseClaims()
    for _ in range(FALSE_ROUNDS):
        claims.parts_refused(["bad"])
        ended(claims, {"bad": 4.0})
    assert claims.refused == {"bad"}


def test_of_a_false_claim_and_a_cut_weight_the_less_is_believed() -> None:
    """Both may hold of one device."""
    claims = FalseClaims()
    claims.doubted.update(bad=4, other=1)
    cut = {"bad": AttestedWeight(20.0, 20.0, 1.5, 1.5), "other": AttestedWeight(20.0, 20.0, 0.0, 0.0)}
    cut["good"] = AttestedWeight(20.0, 20.0, 19.0, 19.0)  # which rounding may do
    claims.round_ended([], {}, cut, Allowances(target=10), short=False)
    assert claims.believed == {"bad": 1, "other": 0}


def test_who_has_claimed_falsely_is_believed_a_little_more_with_patience() -> None:
    """A hundredth of a batch: else a step that only such a device can fill would never come."""
    claimant = replace(BAD, record=BAD.record.model_copy(update={"samples": 900}))
    assert Allowances(target=1000, doubted={"bad": 3}, patience=2.0).samples(claimant) == 3 + 2 * 10


@pytest.mark.parametrize(("brought", "missing"), [(10.0, {}), (9.0, {"bad": 1}), (1.0, {"bad": 9})])
def test_only_samples_that_were_not_brought_are_missing(brought: float, missing: dict[str, int]) -> None:
    """A peer that brings all it is believed to have owes nothing, though the round was short."""
    claims = FalseClaims()
    claims.round_ended([BAD], {}, attested({"bad": brought}), Allowances(target=10), short=True)
    assert claims.missing == missing
    claims.step_began()
    assert claims.missing == {}


def test_one_lying_reducer_lowers_what_is_believed_and_has_nobody_accused() -> None:
    """All peers believe the device less, alike; only a peer that received too little itself accuses it."""
    claims, witness = FalseClaims(), FalseClaims()
    for time in range(FALSE_ROUNDS):
        record = BAD.record.model_copy(update={"time": float(time + 1)})
        claimant, lowered = replace(BAD, record=record), {"bad": AttestedWeight(10.0, 1.0, 10.0, 10.0)}
        claims.round_ended([claimant], {"bad": 10.0}, lowered, Allowances(target=10), short=True)
        witness.round_ended([claimant], {"bad": 1.0}, attested({"bad": 10.0}), Allowances(target=10), short=True)
    assert claims.doubted == {"bad": 1}
    assert not claims.are_false("bad")
    assert witness.are_false("bad")


@pytest.mark.parametrize(("by_most", "refused"), [(0.0, {"bad"}), (10.0, set())])
def test_a_sender_that_breaks_off_again_and_again_is_not_counted(by_most: float, refused: set[str]) -> None:
    """It has named its weight and sent too few parts: the others fill the batch. One reducer alone may lie about it."""
    claims, broken_off = FalseClaims(), {"bad": AttestedWeight(10.0, 10.0, 0.0, by_most)}
    for _ in range(LOST_ROUNDS):
        claims.round_ended([BAD], {}, broken_off, Allowances(target=10), short=True)
    assert Allowances(target=10, missing=claims.missing, doubted=claims.believed, patience=100.0).samples(BAD) == 0
    claims.step_began()
    for _ in range(LOST_IN_ALL - LOST_ROUNDS):
        claims.round_ended([BAD], {}, broken_off, Allowances(target=10), short=True)
    assert claims.refused == refused


def test_a_refusal_holds_in_the_round_that_caused_it() -> None:
    """The sender has named a weight there, and nothing of it counted."""
    claims = FalseClaims()
    claims.parts_refused(["bad"])
    claims.round_ended([BAD], {}, {"bad": AttestedWeight(10.0, 10.0, 0.0, 0.0)}, Allowances(target=10), short=False)
    assert claims.refused == {"bad"}


@pytest.mark.parametrize(
    ("named", "inflated"),
    [(101.0, False), (800.0, False), (3200.0, False), (3201.0, True), (1e30, True), (math.nan, False)],
)
def test_an_inflated_weight_is_above_its_cap_and_what_any_peer_has(named: float, inflated: bool) -> None:
    """Above its cap alone it may be what an honest peer computed while nobody saw its records."""
    assert is_inflated(named, cap=100.0, most=800) is inflated
    assert not is_inflated(named, cap=1e40, most=800)


@pytest.mark.parametrize(("members", "share"), [(0, 1.0), (1, 1.0), (2, 1.0), (4, 0.5), (8, 0.25), (100, 0.25)])
def test_a_newcomer_has_twice_a_fair_share(members: int, share: float) -> None:
    """Of a small swarm all, of a large one the least that the run allows."""
    assert newcomer_share(members, 0.25) == share


def peer(peer_id: str, samples: int, member: str = "") -> KnownPeer:
    """A trainer that claims so many samples."""
    record = PeerRecord(step=3, samples=samples, rate=1.0, time=1.0, training=True, client_mode=False)
    return KnownPeer(peer_id, member or peer_id, peer_id, "trainer", record)


def test_many_devices_of_a_member_count_as_one_newcomer() -> None:
    """Ten new devices of one person do not fill a batch that two of two would not."""
    allowances = Allowances(target=100, share=0.25)
    assert allowances.counted([peer(f"d{index}", 25, "crowd") for index in range(10)]) == 25
    assert allowances.counted([peer("a", 25), peer("b", 25)]) == 50


def test_credited_devices_of_a_member_add_up() -> None:
    """What the keeper saw each bring is believed of all of them together."""
    allowances = Allowances(target=100, share=0.25, credits={"d1": 30, "d2": 20})
    assert allowances.counted([peer("d1", 40, "crowd"), peer("d2", 30, "crowd")]) == 70
    assert allowances.counted([peer("d1", 90, "crowd"), peer("d2", 90, "crowd"), peer("new", 90, "crowd")]) == 100


def test_no_weight_is_cut_below_what_was_counted() -> None:
    """Together the caps of a member's devices leave at least what the view counted of them, whoever brings how much."""
    crowd = [peer("d1", 40, "crowd"), peer("d2", 0, "crowd"), peer("d3", 10, "crowd")]
    for brought_before in ({}, {"d1": 30}, {"d2": 60, "d3": 5}):
        allowances = Allowances(target=100, share=0.25, credits=brought_before)
        caps = allowances.weight_caps([*crowd, peer("other", 25)])
        brought = sum(min(device.record.samples, caps[device.peer_id]) for device in crowd)
        assert brought >= allowances.counted(crowd)
        assert caps["other"] == allowances.newcomers_cap == 50


def test_a_device_whose_record_is_old_has_its_equal_share() -> None:
    """It may have computed much since; and nobody gets more than twice the member's allowance by it."""
    allowances = Allowances(target=100, share=0.25)
    caps = allowances.weight_caps([peer("d1", 20, "pair"), peer("d2", 0, "pair")])
    assert caps == {"d1": 50.0, "d2": 25.0}


def test_credit_is_what_was_brought_to_the_last_steps() -> None:
    """The most of them; what was long ago is forgotten, and who brought little is not named."""
    book = CreditBook()
    book.take({"fast": 30.0, "slow": 3.0}, 10.0, lambda _: 100.0)
    book.take({"fast": 10.0, "slow": 3.0}, 20.0, lambda _: 100.0)
    assert (book.usual_s, book.credits_above(5.0)) == (15.0, {"fast": 30})
    for _ in range(REMEMBERED_STEPS):
        book.take({"slow": 3.0}, 10.0, lambda _: 100.0)
    assert book.credits_above(0.0) == {"slow": 3}


@pytest.mark.parametrize(
    ("weight", "credit"), [(1e9, {"liar": 20}), (-5.0, {}), (math.nan, {}), (math.inf, {"liar": 20})]
)
def test_no_weight_is_credited_beyond_twice_what_was_allowed(weight: float, credit: dict[str, int]) -> None:
    """So whoever names any weight that it likes gains a little with each step, not all with the first."""
    book = CreditBook()
    book.take({"liar": weight}, 10.0, lambda _: 10.0)
    assert book.credits_above(0.0) == credit


def test_a_round_in_which_the_keeper_reduced_nothing_takes_no_credit() -> None:
    """However many there are; only the steps' duration is known from them."""
    book = CreditBook()
    book.take({"a": 20.0}, 10.0, lambda _: 16.0)
    for _ in range(2 * REMEMBERED_STEPS):
        book.take({}, 30.0, lambda _: 16.0)
    assert book.credits_above(10.0) == {"a": 20}
    assert book.usual_s == 30.0
