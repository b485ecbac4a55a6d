"""Attacks of a member on the swarm's course: honest members go on together, lose nothing, and learn who it was.

One swarm for all of them: keeper, two honest members and an insider, whose code is changed and whose token is valid.
"""

from __future__ import annotations

import json
from contextlib import ExitStack

import pytest

from auth.receipts import read_receipt
from tests.security.member_swarm import HONEST, INSIDER, MemberSwarm, go_on_under, hold_one_state
from tests.security.outsiders import OUTSIDERS, Outsider

STEPS_WITHOUT_KEEPER = 4
MOST_RETURNS = 3  # of a keeper
MORE_DEVICES = 11  # of the insider, beside the one that trains


def test_step_bomb(swarm: MemberSwarm) -> None:
    """A claim of step 10^9 moves nobody, and everybody names who made it."""
    go_on_under(swarm, "step bomb")
    assert {(said["member"], said["kind"]) for said in swarm.named("step")} == {(INSIDER, "step")}
    assert f"suspicious: {INSIDER} (device" in swarm.keeper.log.read_text()


def test_progress_inflation(swarm: MemberSwarm) -> None:
    """Claims of millions of samples begin no step before its batch is full."""
    go_on_under(swarm, "inflation")
    assert {said["member"] for said in swarm.named("samples")} == {INSIDER}


def test_a_member_with_twelve_devices(swarm: MemberSwarm) -> None:
    """Most devices claim a later step and a full batch each: they are one member, which moves nobody."""
    go_on_under(swarm, "many devices")
    assert {said["member"] for said in swarm.all_named()} <= {INSIDER}


@pytest.mark.parametrize("attack", ["false sketch", "false beacon"])
def test_false_words_on_the_state_move_nobody(swarm: MemberSwarm, attack: str) -> None:
    """Another state in a member's record, or a beacon of its own making, ahead in another era: no one follows."""
    go_on_under(swarm, attack)
    assert all(said["era"] == 0 for said in swarm.steps_at(swarm.step))
    assert {said["member"] for said in swarm.all_named()} <= {INSIDER}


def test_outsiders_gain_nothing_by_tokens_that_do_not_count(swarm: MemberSwarm) -> None:
    """With none, a copied, an expired or a revoked one they get no record, no group, no state; training goes on."""
    with ExitStack() as stack:
        outsiders = {shows: stack.enter_context(Outsider(swarm, shows)) for shows in OUTSIDERS}
        gained = {shows: doors for shows, outsider in outsiders.items() if (doors := outsider.doors_opened())}
    assert gained == {}
    go_on_under(swarm, "nothing")


def test_receipts_say_what_everybody_brought(swarm: MemberSwarm) -> None:
    """Whoever reduced signs it: never more than a peer brought, the insider too, and mostly all sign the same bytes."""
    names = dict(zip(swarm.pseudonyms, (INSIDER, *HONEST), strict=True))
    peers = dict(zip((INSIDER, *HONEST), [swarm.insider, *swarm.honest], strict=True))
    brought = {
        (name, said["step"]): said["samples"]
        for name, peer in peers.items()
        for said in peer.said
        if said["event"] == "step" and said["averaged"]
    }
    signed = [said for step in range(1, swarm.step + 1) for said in swarm.steps_at(step) if said["receipt"]]
    bodies = [read_receipt(said["receipt"]).body for said in signed]
    assert 0 < len(set(bodies)) < len(bodies)
    for body in map(json.loads, bodies):
        for pseudonym, samples in body["samples"].items():
            assert samples <= brought.get((names[pseudonym], body["step"]), samples)


def test_a_false_leader_stops_nobody(swarm: MemberSwarm) -> None:
    """Nobody follows it while the keeper leads; without the keeper it is passed over once it has said what is false.

    Its voice must not be needed: the others are most of those that took the last step.
    """
    go_on_under(swarm, "false leader")
    assert not [said for said in swarm.insider.said if said["event"] == "led"]
    swarm.insider.tell("nothing")
    swarm.keeper.kill()
    without_keeper = swarm.step + STEPS_WITHOUT_KEEPER
    for peer in swarm.honest:
        peer.wait_for_step(without_keeper)
    swarm.insider.tell("false leader")
    swarm.insider.wait_for_event("led")
    last = swarm.step + STEPS_WITHOUT_KEEPER
    for peer in swarm.honest:
        peer.wait_for_step(last)
    told = f"suspicious: {INSIDER} (device"
    led = "led a group in which the leader changed what this peer had said of itself"
    assert any(told in peer.log.read_text() and led in peer.log.read_text() for peer in swarm.honest)
    swarm.keeper = swarm.start_keeper()
    go_on_under(swarm, "nothing")


def test_donor_capture(swarm: MemberSwarm) -> None:
    """A keeper that comes back with nothing asks the insider first, refuses its state, and takes an honest member's.

    It names who gave a false state, unless the swarm takes a step before enough members have said what theirs is: then
    it comes back once more. The insider, which may have fallen behind before, must be at the swarm's step: of a state
    of an older step, nobody can say any more what it should be.
    """
    for _ in range(MOST_RETURNS):
        swarm.insider.wait_for_step(swarm.step)
        swarm.insider.tell("donor")
        swarm.keeper.kill()
        swarm.keeper = swarm.start_keeper()
        caught_up = swarm.keeper.wait_for(lambda said: said["event"] == "step" and said["step"] > 0)
        assert swarm.insider.wait_for_event("donated")
        assert not caught_up["averaged"]
        go_on_under(swarm, "donor")
        honest = [said for peer in swarm.honest for said in peer.said if said["event"] == "step"]
        assert any(hold_one_state([caught_up, said]) for said in honest if said["step"] == caught_up["step"])
        if swarm.named("state"):
            break
    assert {said["member"] for said in swarm.named("state")} == {INSIDER}
