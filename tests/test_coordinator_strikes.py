"""When words are enough: the keeper's alone, or several members' whoever of them is left out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.strikes import INCIDENT_S, Policy, Verdict, Word, decide, incidents, members_may
from peer.suspicion import UNPROVEN

NOW = 10_000.0
POLICY = Policy(strikes=3, window_s=600.0)


def said(*witnesses: str | None, kind: str = "samples", every_s: float = 60.0) -> list[Word]:
    """One word of each, a minute apart, the last one now."""
    return [Word(NOW - every_s * number, witness, kind) for number, witness in enumerate(reversed(witnesses))]


def decided(words: list[Word], policy: Policy = POLICY, others_may: bool = True) -> Verdict | None:
    return decide(words, policy, others_may, NOW)


def test_the_keepers_words_count_alone() -> None:
    """Three of them are enough, two are not, and the reason names what was noticed."""
    assert decided(said(None, None)) is None
    verdict = decided([*said(None, None), Word(NOW, None, "step")])
    assert verdict == Verdict("failed checks within 10 minutes: samples 2 times, step", by_keeper=True)
    assert decided(said(None, None, None), others_may=False) is not None


def test_one_member_alone_never_gets_a_device_cut_off() -> None:
    """Not with a hundred words, nor with two of the keeper's that are too few."""
    alone = said(*["Mallory"] * 9)
    assert decided(alone) is None
    assert decided([*alone, *said(None, None, kind="step")]) is None


def test_two_members_who_each_say_it_often_enough_do() -> None:
    """Without either, three strikes remain; while members may not cut off more, nothing happens."""
    words = said("Ada", "Ada", "Ada") + said("Bob", "Bob", "Bob", kind="step")
    assert decided(words) is not None
    assert decided(words, others_may=False) is None
    assert decided(words[:-1]) is None


def test_who_notices_different_things_adds_up() -> None:
    """Each reducer sees only the part that it was sent: without the loudest one, three strikes of others remain."""
    verdict = decided(said("Ada", "Bob", "Carol", "Dan"))
    assert verdict is not None
    assert not verdict.by_keeper
    assert decided(said("Ada", "Bob", "Carol")) is None


def test_what_many_notice_at_once_is_one_strike() -> None:
    """An event that everybody sees is no worse than one that two have seen."""
    assert decided([Word(NOW - second, f"member {second}", "step") for second in range(int(INCIDENT_S))]) is None


@pytest.mark.parametrize("kind", sorted(UNPROVEN))
def test_what_nobody_can_prove_is_no_strike(kind: str) -> None:
    """Neither the keeper's words, which rest on what senders showed it, nor those of however many members."""
    words = said(None, None, None, "Ada", "Bob", "Carol", "Ada", "Bob", "Carol", kind=kind)
    assert decided(words) is None
    assert decided([*words, *said(None, None)]) is None


def test_old_words_are_forgotten() -> None:
    """Only those within the window count."""
    assert decided(said(None, None, None, every_s=POLICY.window_s / 2)) is None


def test_zero_strikes_turn_it_off() -> None:
    """Nothing that is said cuts anybody off."""
    assert decided(said(*[None] * 9), Policy(strikes=0)) is None


WORDS = st.builds(
    Word,
    at=st.floats(NOW - 700, NOW),
    witness=st.sampled_from([None, "Ada", "Bob", "Carol"]),
    kind=st.sampled_from(["step", "samples"]),
)


@given(st.lists(WORDS, max_size=30), st.sampled_from(["Ada", "Bob", "Carol"]))
def test_no_single_member_makes_the_difference(words: list[Word], left_out: str) -> None:
    """Whatever was said: if words suffice, there are strikes enough without any one member's, too."""
    if decided(words) is not None:
        recent = [word for word in words if word.at > NOW - POLICY.window_s]
        assert len(incidents(word for word in recent if word.witness != left_out)) >= POLICY.strikes


@pytest.mark.parametrize(("active", "most"), [(1, 1), (4, 1), (8, 2), (40, 10)])
def test_members_words_cut_off_a_quarter_at_most(active: int, most: int) -> None:
    """Two who lie together cannot empty the run; one they always may."""
    assert members_may(most - 1, active)
    assert not members_may(most, active)
