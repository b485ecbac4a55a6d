"""Chaos in virtual time: drawn mishaps break no rule of the swarm or the ledger, and home lines contribute."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from peer.rehearsal.rounds import VirtualRounds
from peer.rehearsal.scenario import HomeLine, Rehearsed, Scenario, Visit
from peer.rehearsal.swarm import RehearsedDevice, rehearse
from peer.swarm.decision import Demands, Move, Situation, decide, demands_on_group
from peer.swarm.view import SwarmView
from tests.support.rehearsed_chaos import chaos_config, draw_chaos, run_chaos, shrunk

QUICK_SEEDS, ALL_SEEDS = 40, 1000
BLOCKS = 20  # of the seeds, each a test
LINE = HomeLine(up_mbit_per_second=20, down_mbit_per_second=50)
TRACE_OF_A_SEED = """
from tests.support.rehearsed_chaos import draw_chaos, run_chaos
print(*run_chaos(draw_chaos(3), 3).run.trace, sep="\\n")
"""


def require_no_broken_rule(seed: int) -> None:
    """Fail with the scenario as drawn, its last lines, and the smallest one that breaks the same rule."""
    outcome = run_chaos(draw_chaos(seed), seed)
    if outcome.audit.broken:
        pytest.fail(f"{outcome.story}\n\nSmaller:\n{shrunk(outcome).story}", pytrace=False)


@pytest.mark.parametrize("seed", range(QUICK_SEEDS))
def test_chaos_breaks_no_rule(seed: int) -> None:
    """Each rule is a function of `tests.support.rehearsed_chaos`, with a sentence that says what must hold."""
    require_no_broken_rule(seed)


@pytest.mark.thorough
@pytest.mark.parametrize("block", range(BLOCKS))
def test_chaos_of_a_thousand_seeds_breaks_no_rule(block: int) -> None:
    """Seeds beyond the quick ones, in blocks."""
    for seed in range(QUICK_SEEDS + block, ALL_SEEDS, BLOCKS):
        require_no_broken_rule(seed)


def test_a_seed_gives_the_same_trace_in_every_process() -> None:
    """Byte by byte, whatever the seed of Python's own hashes."""
    traces = {
        subprocess.run(
            [sys.executable, "-c", TRACE_OF_A_SEED],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=600,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(traces) == 1
    assert len(traces.pop().splitlines()) > 50


def swarm_with(device: Rehearsed, parameters: int = 500_000, **others: object) -> Scenario:
    """Four ordinary volunteers and this device for ten minutes."""
    usual = tuple(Rehearsed(name=name, line=LINE, samples_per_second=3.0) for name in "abcd")
    return Scenario.model_validate(
        {"duration_s": 600.0, "parameters": parameters, "devices": (*usual, device)} | others
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
        pytest.param(SLOW, {"peer.samples_at_once": whole_microbatch}, id="a microbatch outlasts a step"),
        pytest.param(JOINER, {"peer.decide": never_follow}, id="a joiner downloads for ever"),
        pytest.param(
            FAR,
            {"rounds.demands_on_group": most_are_enough, "rounds.VirtualRounds.prepare": look_for_no_group_yet},
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
        monkeypatch.setattr(f"peer.rehearsal.{name}", decision)
    then = fate_of_the_last(scenario).work
    assert then.computed > 0
    assert then.counted < 0.1 * then.computed
