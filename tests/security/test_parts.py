"""Attacks of a member on the averages: honest members hold the same finite numbers, learn as ever, and name who it was.

One swarm for all of them, as in `test_course.py`. What a reducer refuses is tried in all its forms in
`tests/peer/averaging/test_all_reduce.py`.
"""

from __future__ import annotations

import pytest

from tests.security.member_swarm import INSIDER, MemberSwarm, go_on_under
from tests.support.waiting import wait_until

JUDGED_STEPS = 4  # together: a small model's noise says little of a single one
MOST_CREDIT = 5.0  # times what was brought, of twenty claimed: nor more of four


@pytest.mark.parametrize("attack", ["20 times", "20 times, opposite"])
def test_claimed_samples_bring_neither_weight_nor_credit(swarm: MemberSwarm, attack: str) -> None:
    """A member that names twenty times its samples soon counts with those that its gradients bear out.

    The number of rounds is chance, so the test waits for the credit. These attacks are the first, while much is to be
    learnt: the noise of what is learnt has few dimensions, in which it takes more rounds to tell a claim from chance.
    """
    before = swarm.step
    swarm.insider.tell(attack)

    def counts_as_brought() -> bool:
        outcomes = [said for said in list(swarm.insider.said) if said["event"] == "step" and said["averaged"]]
        brought = {said["step"]: said["samples"] for said in outcomes if said["step"] > before}
        credited = {step: credit for step in brought if (credit := swarm.credited(step)) is not None}
        judged = sorted(credited)[-JUDGED_STEPS:]
        most = MOST_CREDIT * sum(brought[step] for step in judged)
        return len(judged) == JUDGED_STEPS and sum(credited[step] for step in judged) <= most

    wait_until("the claim brings no credit", counts_as_brought, *[peer.log for peer in swarm.started])
    go_on_under(swarm, attack)
    assert {said["member"] for said in swarm.all_named()} <= {INSIDER}


@pytest.mark.parametrize(
    ("attack", "kind", "reason"),
    [
        ("huge weight", "weight", "names the weight 1e+30"),
        ("no number", "parts", "not finite"),
        ("thousandfold", "gradient", "times the largest"),
        ("garbage", "parts", "what is no part"),
        ("endless", "parts", "not asked for"),
    ],
)
def test_who_sends_bad_parts_is_named(swarm: MemberSwarm, attack: str, kind: str, reason: str) -> None:
    """The swarm goes on, with equal bits, full batches and the loss of a clean run, and says who it was and why."""
    swarm.insider.tell(attack)
    named = swarm.wait_for_name(kind, reason)
    assert named["member"] == INSIDER
    go_on_under(swarm, attack)
    assert [said for said in swarm.all_named() if said["member"] != INSIDER] == []


@pytest.mark.parametrize("attack", ["opposite", "stalled"])
def test_who_cannot_be_named_does_no_lasting_harm(swarm: MemberSwarm, attack: str) -> None:
    """Gradients turned round look like honest ones that differ, and who stalls like one whose line is down."""
    before = len(swarm.all_named())
    go_on_under(swarm, attack)
    assert {said["member"] for said in swarm.all_named()[before:]} <= {INSIDER}
