"""How much of a claim is counted, and what the keeper credits."""

from __future__ import annotations

import math

import pytest

from peer.allowances import REMEMBERED_STEPS, Allowances, CreditBook
from peer.records import KnownPeer, PeerRecord


def peer(peer_id: str, samples: int, member: str = "") -> KnownPeer:
    """A trainer that claims so many samples."""
    record = PeerRecord(token="jwt", step=3, samples=samples, rate=1.0, time=1.0, training=True, client_mode=False)
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


def test_whose_parts_were_refused_is_not_counted() -> None:
    """However much it claims."""
    allowances = Allowances(target=100, refused=frozenset({"bad"}))
    assert allowances.counted([peer("bad", 50), peer("good", 20)]) == 20


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
