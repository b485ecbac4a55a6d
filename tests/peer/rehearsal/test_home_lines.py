"""Scenarios of faults that were found on home lines, as whole rehearsals; two groups that take one step: the chaos."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from peer.rehearsal.scenario import HomeLine, Mishap, Rehearsed, Scenario, Visit
from peer.rehearsal.swarm import RehearsedRun, rehearse
from tests.support.rehearsed_chaos import chaos_config

LINE = HomeLine(up_mbit_per_second=20, down_mbit_per_second=50)


def swarm_with(*devices: Rehearsed, rate: float = 3.0, parameters: int = 500_000, **others: object) -> Scenario:
    """Four ordinary volunteers and these devices for ten minutes."""
    usual = tuple(Rehearsed(name=name, line=LINE, samples_per_second=rate) for name in "abcd")
    return Scenario.model_validate(
        {"duration_s": 600.0, "parameters": parameters, "devices": (*usual, *devices)} | others
    )


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
    "scenario",
    [
        pytest.param(SLOW, id="a microbatch outlasts a step"),
        pytest.param(JOINER, id="a joiner downloads for ever"),
        pytest.param(FAR, id="a far peer is late each time"),
    ],
)
def test_a_device_on_a_home_line_contributes(scenario: Scenario) -> None:
    """Most samples of the last device count; with the fault less than a tenth of them did."""
    work = rehearse(chaos_config(), scenario, seed=1).devices[-1].work
    assert work.counted > 0.6 * work.computed > 0


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
    ("scenario", "cost", "bound"),
    [
        pytest.param(swarm_with_a_liar("claims"), step_s, 20.0, id="one device's claim fills the batch"),
        pytest.param(
            swarm_with_a_liar("leaves"), step_s, 50.0, id="a device that sends nothing counts towards each batch"
        ),
        pytest.param(swarm_with_a_liar("withholds"), step_s, 20.0, id="a reducer that is missed has its share again"),
        pytest.param(swarm_with(rate=1.0), batch, 70.0, id="peers compute past the full batch"),
        pytest.param(swarm_with(), gathering_s, 0.8, id="a complete group waits"),
        pytest.param(swarm_with(SLOW_LINE), round_s, 7.0, id="a slow line reduces as much as others"),
    ],
)
def test_a_fault_on_a_home_line_costs_a_swarm_little(
    scenario: Scenario, cost: Callable[[RehearsedRun], float], bound: float
) -> None:
    """A step, a batch, a gathering or a round is below the bound, which it exceeded with the fault."""
    assert cost(rehearse(chaos_config(), scenario, seed=1)) < bound
