"""Faults that were found on home lines: scenarios that pass by today's decisions, and did not by the old ones.

Two groups that took one step are in `test_chaos_rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from peer.averaging.shares import reduction_shares
from peer.rehearsal.rounds import VirtualRounds
from peer.rehearsal.scenario import HomeLine, Mishap, Rehearsed, Scenario, Visit
from peer.rehearsal.swarm import RehearsedDevice, RehearsedRun, rehearse
from peer.swarm.decision import Demands, Move, Situation, decide, demands_on_group
from peer.swarm.view import SwarmView
from tests.support.rehearsed_chaos import chaos_config

LINE = HomeLine(up_mbit_per_second=20, down_mbit_per_second=50)


def swarm_with(*devices: Rehearsed, rate: float = 3.0, parameters: int = 500_000, **others: object) -> Scenario:
    """Four ordinary volunteers and these devices for ten minutes."""
    usual = tuple(Rehearsed(name=name, line=LINE, samples_per_second=rate) for name in "abcd")
    return Scenario.model_validate(
        {"duration_s": 600.0, "parameters": parameters, "devices": (*usual, *devices)} | others
    )


def fate_of_the_last(scenario: Scenario) -> RehearsedDevice:
    """Rehearse a scenario, and return what became of its last device."""
    return rehearse(chaos_config(), scenario, seed=1).devices[-1]


def whole_microbatch(microbatch: int, rate: float, usual_s: float) -> int:
    """The old decision: a microbatch is computed as a whole, however long it takes."""
    return microbatch


def never_follow(now: Situation) -> tuple[Move, str]:
    """The old decision: a peer that fell behind downloads the whole state, again and again."""
    return decide(replace(now, can_follow=False, may_download=True))


def look_for_no_group_yet(rounds: VirtualRounds) -> None:
    """The old decision: a group is looked for when the batch is full, and not before."""


def most_are_enough(view: SwarmView, **facts: object) -> Demands:
    """The old decision: a group begins once most peers are there."""
    demands: Demands = demands_on_group(view, **facts)  # type: ignore[arg-type]
    most = view.averaging // 2 + 1
    return replace(demands, required=most, expected=most)


SLOW = swarm_with(Rehearsed(name="slow", line=LINE, samples_per_second=0.08))
JOINER = swarm_with(
    Rehearsed(
        name="joiner",
        line=HomeLine(up_mbit_per_second=10, down_mbit_per_second=8),
        samples_per_second=2.0,
        visits=(Visit(begin_s=60),),
    ),
    parameters=2_000_000,
)
FAR = swarm_with(
    Rehearsed(
        name="far",
        line=HomeLine(up_mbit_per_second=20, down_mbit_per_second=50, latency_s=0.4),
        samples_per_second=2.0,
    )
)


@pytest.mark.parametrize(
    ("scenario", "old"),
    [
        pytest.param(
            SLOW, {"peer.rehearsal.peer.samples_at_once": whole_microbatch}, id="a microbatch outlasts a step"
        ),
        pytest.param(JOINER, {"peer.rehearsal.peer.decide": never_follow}, id="a joiner downloads for ever"),
        pytest.param(
            FAR,
            {
                "peer.rehearsal.rounds.demands_on_group": most_are_enough,
                "peer.rehearsal.rounds.VirtualRounds.prepare": look_for_no_group_yet,
            },
            id="a far peer is late each time",
        ),
    ],
)
def test_a_device_on_a_home_line_contributes_as_it_did_not(
    scenario: Scenario, old: dict[str, Callable[..., object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most samples of the device count; by the old decision hardly any did."""
    now = fate_of_the_last(scenario).work
    assert now.counted > 0.8 * now.computed
    for name, decision in old.items():
        monkeypatch.setattr(name, decision)
    then = fate_of_the_last(scenario).work
    assert then.computed > 0
    assert then.counted < 0.1 * then.computed


def believe_everything(*_: object) -> float:
    """The old decision: a claim of any size fills the batch."""
    return float("inf")


def note_nobody(*_: object) -> None:
    """The old decision: a peer that brings less than it claims is believed again in the next round."""


def miss_no_reducer(*_: object) -> list[str]:
    """The old decision: a reducer that returned no averages has its share again."""
    return []


def hold_never(now: Situation) -> tuple[Move, str]:
    """The old decision: a peer computes past the full batch instead of waiting for the others' last samples."""
    return decide(replace(now, may_hold=False))


def wait_for_the_window(view: SwarmView, **facts: object) -> Demands:
    """The old decision: a group waits for its whole window, whoever has come."""
    return replace(demands_on_group(view, **facts), expected=0)  # type: ignore[arg-type]


def share_alike(
    values: int, bandwidths: Sequence[float | None], reduces: Sequence[bool], *others: Any
) -> tuple[int, ...]:
    """The old decision: slow lines reduce as much as fast ones."""
    return reduction_shares(values, [None] * len(bandwidths), reduces, *others)


def swarm_with_a_liar(lie: str) -> Scenario:
    """Four volunteers, one of whom lies from the fourth step on."""
    return swarm_with(
        mishaps=(Mishap.model_validate({"kind": "lies", "begin_s": 50, "end_s": 600, "who": "b", "lie": lie}),)
    )


def step_s(run: RehearsedRun) -> float:
    """Return the seconds of a step."""
    return run.duration_s / len(run.steps)


def batch(run: RehearsedRun) -> float:
    """Return the samples of a step."""
    return sum(step.samples for step in run.steps) / len(run.steps)


def gathering_s(run: RehearsedRun) -> float:
    """Return the seconds for which a step's group was waited for."""
    return sum(step.waited_s for step in run.steps) / len(run.steps)


def round_s(run: RehearsedRun) -> float:
    """Return the seconds of a round."""
    return sum(step.round_s for step in run.steps) / len(run.steps)


SLOW_LINE = Rehearsed(
    name="slow line", line=HomeLine(up_mbit_per_second=2, down_mbit_per_second=10), samples_per_second=2.0
)


@pytest.mark.parametrize(
    ("scenario", "old", "cost", "bound"),
    [
        pytest.param(
            swarm_with_a_liar("claims"),
            {
                "peer.swarm.credit.Allowances.of": believe_everything,
                "peer.swarm.credit.FalseClaims.round_ended": note_nobody,
            },
            step_s,
            20.0,
            id="one device's claim fills the batch",
        ),
        pytest.param(
            swarm_with_a_liar("leaves"),
            {"peer.swarm.credit.FalseClaims.round_ended": note_nobody},
            step_s,
            50.0,
            id="a device that sends nothing counts towards each batch",
        ),
        pytest.param(
            swarm_with_a_liar("withholds"),
            {"peer.averaging.absences.Absences.newest": miss_no_reducer},
            step_s,
            20.0,
            id="a reducer that is missed has its share again",
        ),
        pytest.param(
            swarm_with(rate=1.0),
            {"peer.rehearsal.peer.decide": hold_never},
            batch,
            70.0,
            id="peers compute past the full batch",
        ),
        pytest.param(
            swarm_with(),
            {"peer.rehearsal.rounds.demands_on_group": wait_for_the_window},
            gathering_s,
            0.8,
            id="a complete group waits",
        ),
        pytest.param(
            swarm_with(SLOW_LINE),
            {"peer.rehearsal.groups.reduction_shares": share_alike},
            round_s,
            7.0,
            id="a slow line reduces as much as others",
        ),
    ],
)
def test_a_swarm_does_not_pay_what_it_paid(
    scenario: Scenario,
    old: dict[str, Callable[..., object]],
    cost: Callable[[RehearsedRun], float],
    bound: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step, a batch, a gathering or a round is below the bound, and was above it by the old decision."""
    assert cost(rehearse(chaos_config(), scenario, seed=1)) < bound
    for name, decision in old.items():
        monkeypatch.setattr(name, decision)
    assert cost(rehearse(chaos_config(), scenario, seed=1)) > bound
