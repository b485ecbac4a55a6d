"""Each rule of the chaos notices a weakened decision, and no other rule does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from coordinator.ledger.judgement import Delivery, Facts, Judgement, KeptReceipt, ReportOutcome, SampleClaim, judge
from peer.rehearsal.peer import RehearsedPeer
from peer.rehearsal.rounds import VirtualRounds
from peer.rehearsal.scenario import HomeLine, Mishap, Rehearsed, Scenario
from peer.rehearsal.troubles import Process
from peer.swarm.decision import NEVER
from tests.support import rehearsed_chaos as rules
from tests.support.rehearsed_chaos import END_S, Broken, draw_chaos, run_chaos

LINE = HomeLine(up_mbit_per_second=20, down_mbit_per_second=50)
# The keeper takes a step with `a` alone, and is killed before the others, who stood still, have the step.
KILLED_AFTER_A_STEP = Scenario(
    duration_s=END_S,
    parameters=500_000,
    start_s=10.0,
    devices=tuple(Rehearsed(name=name, line=LINE, samples_per_second=3.0) for name in "abcd"),
    mishaps=(
        *(Mishap(kind="stop", begin_s=60.0, end_s=119.0, who=name) for name in "bcd"),
        Mishap(kind="keeper", begin_s=118.0, end_s=200.0),
    ),
)


def take_a_step_again(live: int, has_keeper: bool, is_taken: bool) -> int:
    """The old decision: without the keeper most peers take a step, although another has taken it with the keeper."""
    return NEVER if has_keeper else live // 2 + 1


def need_no_keeper(live: int, has_keeper: bool, is_taken: bool) -> int:
    """Most peers take a step, whether or not the keeper is there."""
    return live // 2 + 1


def take_any_round(rounds: VirtualRounds) -> Process:
    """Take a step from whatever a round has brought."""
    return (yield from rounds._await_group(rounds._env.now))


def count_claims(claims: list[SampleClaim], receipts: list[KeptReceipt]) -> dict[int, int]:
    """Count what devices claim, whatever others have received."""
    return {claim.report_id: claim.samples for claim in claims}


def keep_lost_samples(peer: RehearsedPeer) -> int:
    """Tell samples as lost, and bring them to the next step all the same."""
    return peer.samples + (peer.held or 0)


def refuse_early_reports(delivery: Delivery, facts: Facts) -> Judgement:
    """The old decision: a report of a step that the keeper does not know yet is refused for good."""
    judgement = judge(delivery, facts)
    return replace(judgement, outcome=ReportOutcome.REFUSED) if judgement.outcome is ReportOutcome.AHEAD else judgement


def keepers_step(known_step: int, known_for_s: float) -> int:
    """Believe no step beyond the keeper's."""
    return known_step


CASES: list[tuple[Callable[..., object], int | Scenario, Mapping[str, Any]]] = [
    (
        rules.one_average_for_one_step,
        KILLED_AFTER_A_STEP,
        {"peer.swarm.decision.keeperless_group_size": take_a_step_again},
    ),
    (
        rules.no_group_hurries_without_the_keeper,
        4,
        {"peer.swarm.decision.keeperless_group_size": need_no_keeper},
    ),
    (
        rules.the_batch_is_full,
        18,
        {"peer.rehearsal.rounds.VirtualRounds._average": take_any_round},
    ),
    (
        rules.one_average_counts,
        12,
        {"tests.support.rehearsed_ledger.count": count_claims},
    ),
    (
        rules.nothing_counts_twice,
        0,
        {"peer.rehearsal.peer.RehearsedPeer._drop": keep_lost_samples},
    ),
    (
        rules.steps_have_no_gaps,
        0,
        {
            "tests.support.rehearsed_ledger.judge": refuse_early_reports,
            "tests.support.rehearsed_ledger.step_horizon": keepers_step,
        },
    ),
    (
        rules.honest_peers_are_not_named,
        0,
        {"peer.swarm.credit.FalseClaims.are_false": lambda *_: True},
    ),
    (
        rules.all_come_to_one_state,
        14,
        {"peer.rehearsal.tracker.VirtualTracker.has_drifted": property(lambda _: False)},
    ),
    (
        rules.the_run_recovers,
        0,
        {"peer.rehearsal.peer.longest_hold_s": lambda *_: 40.0},
    ),
    (
        rules.everybody_contributes,
        12,
        {"peer.swarm.decision.DownloadPause.is_over": property(lambda _: False)},
    ),
]


def broken_in(chaos: int | Scenario) -> list[Broken]:
    """The rules that are broken in the chaos of a seed, or in a scenario."""
    scenario, seed = (draw_chaos(chaos), chaos) if isinstance(chaos, int) else (chaos, 0)
    return run_chaos(scenario, seed).audit.broken


broken_today = cache(broken_in)  # before a decision is weakened


@pytest.mark.parametrize(("rule", "chaos", "weakened"), CASES, ids=[rule.__name__ for rule, _, _ in CASES])
def test_a_rule_notices_a_weakened_decision(
    rule: Callable[..., object], chaos: int | Scenario, weakened: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only this rule is broken with the weakened decision, and none with today's, in a seed's chaos or a scenario."""
    assert broken_today(chaos) == []
    for name, decision in weakened.items():
        monkeypatch.setattr(name, decision)
    assert {broken.rule for broken in broken_in(chaos)} == {rule.__doc__}


def test_every_rule_is_shown_to_notice_something() -> None:
    """A new rule needs a weakened decision."""
    assert {rule for rule, _, _ in CASES} == {*rules.AFTER_EACH_STEP, *rules.AT_THE_END}
