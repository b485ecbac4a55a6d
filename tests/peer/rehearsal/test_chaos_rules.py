"""Each rule of the chaos notices a weakened decision, and no other rule does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from coordinator.ledger.judgement import Delivery, Facts, Judgement, KeptReceipt, ReportOutcome, SampleClaim, judge
from peer.averaging.meetings import Meetings
from peer.averaging.rounds import AveragedGroup
from peer.gradients.buffer import GradientBuffer
from peer.node.quorum import HeldAverage, Quorum
from peer.progress.view import SwarmCourse
from tests.support import rehearsed_chaos as rules
from tests.support.rehearsed_chaos import Broken, draw_chaos, run_chaos


async def confirm_anything(meetings: Meetings, held: HeldAverage, decides_by: float) -> bool:
    """Take a step with an average, no matter how many hold it."""
    return True


def need_nobody(course: SwarmCourse, voters: Collection[str], keepers: Collection[str]) -> Quorum:
    """Let any group take a step."""
    return Quorum()


def fill_any_batch(**facts: Any) -> AveragedGroup:
    """Take a step from whatever a round has brought."""
    return AveragedGroup(**facts | {"samples": max(rules.TARGET, facts["samples"])})


def count_claims(claims: list[SampleClaim], receipts: list[KeptReceipt]) -> dict[int, int]:
    """Count what devices claim, whatever others have received."""
    return {claim.report_id: claim.samples for claim in claims}


def keep_lost_samples(gradients: GradientBuffer) -> int:
    """Tell samples as lost, and bring them to the next step all the same."""
    return gradients.all_samples


def refuse_early_reports(delivery: Delivery, facts: Facts) -> Judgement:
    """The old decision: a report of a step that the keeper does not know yet is refused for good."""
    judgement = judge(delivery, facts)
    return replace(judgement, outcome=ReportOutcome.REFUSED) if judgement.outcome is ReportOutcome.AHEAD else judgement


def keepers_step(known_step: int, known_for_s: float) -> int:
    """Believe no step beyond the keeper's."""
    return known_step


CASES: list[tuple[Callable[..., object], int, Mapping[str, Any]]] = [
    (
        rules.one_average_for_one_step,
        9,
        {
            "peer.averaging.meetings.Meetings._is_confirmed": confirm_anything,
            "peer.rehearsal.rounds.LAST_PARTS": 1.0,  # more rounds reach only some of their peers
        },
    ),
    (
        rules.most_who_took_the_last_step_take_the_next,
        7,
        {"peer.progress.view.SwarmCourse.quorum": need_nobody},
    ),
    (
        rules.the_batch_is_full,
        2,
        {"peer.rehearsal.gradients.AveragedGroup": fill_any_batch},
    ),
    (
        rules.one_average_counts,
        94,
        {"tests.support.rehearsed_ledger.count": count_claims},
    ),
    (
        rules.nothing_counts_twice,
        0,
        {"peer.gradients.buffer.GradientBuffer.drop_all": keep_lost_samples},
    ),
    (
        rules.steps_have_no_gaps,
        10,
        {
            "tests.support.rehearsed_ledger.judge": refuse_early_reports,
            "tests.support.rehearsed_ledger.step_horizon": keepers_step,
        },
    ),
    (
        rules.honest_peers_are_not_named,
        2,
        {"peer.progress.credit.FalseClaims.are_false": lambda *_: True},
    ),
    (
        rules.all_come_to_one_state,
        506,
        {"peer.progress.tracker.StepTracker.has_drifted": property(lambda _: False)},
    ),
    (
        rules.the_run_recovers,
        18,
        {"peer.swarm.moves.longest_hold_s": lambda *_: 40.0},
    ),
    (
        rules.everybody_contributes,
        9,
        {"peer.progress.decision.DownloadPause.is_over": property(lambda _: False)},
    ),
]


def broken_in(seed: int) -> list[Broken]:
    """The rules that are broken in the chaos of a seed."""
    return run_chaos(draw_chaos(seed), seed).audit.broken


broken_today = cache(broken_in)  # before a decision is weakened


@pytest.mark.parametrize(("rule", "seed", "weakened"), CASES, ids=[rule.__name__ for rule, _, _ in CASES])
def test_a_rule_notices_a_weakened_decision(
    rule: Callable[..., object], seed: int, weakened: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only this rule is broken with the weakened decision, and none with today's, in a seed's chaos."""
    assert broken_today(seed) == []
    for name, decision in weakened.items():
        monkeypatch.setattr(name, decision)
    assert {broken.rule for broken in broken_in(seed)} == {rule.__doc__}


def test_every_rule_is_shown_to_notice_something() -> None:
    """A new rule needs a weakened decision."""
    assert {rule for rule, _, _ in CASES} == {*rules.AFTER_EACH_STEP, *rules.AT_THE_END}
