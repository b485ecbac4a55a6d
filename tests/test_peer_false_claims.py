"""What rounds show of claims; how the course uses it is in test_peer_course.py."""

from __future__ import annotations

import math

import pytest

from peer.allowances import Allowances
from peer.false_claims import FALSE_ROUNDS, FalseClaims, is_inflated
from peer.records import KnownPeer, PeerRecord

RECORD = PeerRecord(token="jwt", step=3, samples=10, rate=1.0, time=1.0, training=True, client_mode=False)
BAD = KnownPeer("bad", "mallory", "d", "trainer", RECORD)


def ended(claims: FalseClaims, weights: dict[str, float]) -> None:
    """A round that brought these weights, and was full."""
    claims.round_ended([BAD], weights, Allowances(target=10), short=False)


def test_refused_parts_are_not_counted_until_some_were_taken() -> None:
    """One bad round may be an accident: who brings good parts again is counted again."""
    claims = FalseClaims()
    claims.parts_refused(["bad"])
    ended(claims, {"good": 10.0})
    assert claims.refused == {"bad"}
    ended(claims, {"good": 10.0, "bad": 1.0})
    assert claims.refused == frozenset()


def test_after_refusals_in_two_rounds_it_is_not_counted_any_more() -> None:
    """What it brings is averaged all the same, but no step begins because of it."""
    claims = FalseClaims()
    for _ in range(FALSE_ROUNDS):
        claims.parts_refused(["bad"])
        ended(claims, {"bad": 4.0})
    assert claims.refused == {"bad"}


@pytest.mark.parametrize(("brought", "missing"), [(10.0, {}), (9.0, {"bad": 1}), (1.0, {"bad": 9})])
def test_only_samples_that_were_not_brought_are_missing(brought: float, missing: dict[str, int]) -> None:
    """A peer that brings all it is believed to have owes nothing, though the round was short."""
    claims = FalseClaims()
    claims.round_ended([BAD], {"bad": brought}, Allowances(target=10), short=True)
    assert claims.missing == missing
    claims.step_began()
    assert claims.missing == {}


@pytest.mark.parametrize(
    ("named", "inflated"),
    [(10.0, False), (40.0, False), (41.0, False), (101.0, True), (1e30, True), (math.nan, False)],
)
def test_an_inflated_weight_is_above_cap_and_record(named: float, inflated: bool) -> None:
    """Above only one of them it may be a newcomer's, or one computed since the record."""
    assert is_inflated(named, cap=100.0, claimed=10, most_claimed=800) is inflated
    assert not is_inflated(named, cap=1e40, claimed=10, most_claimed=800)
    assert not is_inflated(named, cap=100.0, claimed=800, most_claimed=800)
