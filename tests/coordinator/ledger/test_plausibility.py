"""What a report may claim: each claim that cannot be true is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.ledger.plausibility import Facts, implausibility, is_ahead, step_horizon
from peer.reporting.messages import StepReport

TARGET = 100
FACTS = Facts(current_era=1, horizon_step=12, target_batch_size=TARGET, reported_already=False)
REPORT = StepReport(
    step=10,
    samples=50,
    loss=2.5,
    mlm_loss=2.0,
    sop_loss=0.5,
    group_size=3,
    group_samples=100,
    averaging_s=1.5,
    samples_per_second=20.0,
    lost_samples=4,
    lost_reason="out of sync",
    data_wait_s=0.1,
    elapsed_s=4.0,
)


def judge(facts: Facts = FACTS, seq: int = 1, era: int = 1, completed_at: float = 1.0, **claims: Any) -> str | None:
    return implausibility(seq, era, completed_at, replace(REPORT, **claims), facts)


@pytest.mark.parametrize(
    "claims",
    [
        {},
        {"samples": 0, "loss": None, "mlm_loss": None, "sop_loss": None},
        {"samples": 1000},
        {"loss": 100.0},
        {"step": 12},
        {"step": 1},
        {"group_samples": None},
    ],
)
def test_plausible_claims_pass(claims: dict[str, Any]) -> None:
    """Ordinary reports, and those at the very limits, are believed."""
    assert judge(**claims) is None


@pytest.mark.parametrize(
    "name",
    ["loss", "mlm_loss", "sop_loss", "averaging_s", "samples_per_second", "data_wait_s", "elapsed_s", "completed_at"],
)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_are_refused(name: str, value: float) -> None:
    """Not a number, or an infinite one, is named."""
    assert judge(**{name: value}) == f"`{name}` is not finite"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("loss", 100.1),
        ("loss", -0.1),
        ("mlm_loss", 101.0),
        ("sop_loss", -1.0),
        ("samples", 1001),
        ("samples", -1),
        ("step", 0),
        ("step", -1),
        ("group_size", 10_001),
        ("group_size", -1),
        ("group_samples", 1001),
        ("averaging_s", -1.0),
        ("averaging_s", 1e9),
        ("samples_per_second", 1e8),
        ("lost_samples", 10_001),
        ("lost_samples", -1),
        ("lost_reason", "x" * 41),
        ("lost_reason", "two\nlines"),
        ("data_wait_s", -0.5),
        ("elapsed_s", 1e9),
        ("seq", -1),
        ("seq", 2**63),
        ("era", 2),
        ("era", -1),
    ],
)
def test_claims_out_of_range_are_refused(name: str, value: object) -> None:
    """One bad value refuses the report, and the reason names it."""
    reason = judge(**{name: value})
    assert reason is not None
    assert f"`{name}`" in reason


def test_a_step_ahead_is_no_wrong_claim_while_its_era_lasts() -> None:
    """The swarm may reach it yet; of an era that is over nothing comes any more."""
    assert judge(step=10**9) is None
    assert judge(step=13, era=0) == "step 13 was not reached in era 0, which is over"


@pytest.mark.parametrize(("step", "era", "ahead"), [(12, 1, False), (13, 1, True), (13, 0, False)])
def test_ahead_is_beyond_the_horizon_of_the_present_era(step: int, era: int, ahead: bool) -> None:
    """Only there may a step become known later."""
    assert is_ahead(step, era, FACTS) == ahead


def test_second_report_of_a_step_is_refused() -> None:
    """A device does one part of each step."""
    assert judge(replace(FACTS, reported_already=True)) == "step 10 was already reported by this device"


@pytest.mark.parametrize(("known_for_s", "horizon"), [(0.0, 12), (0.4, 12), (1.0, 14), (60.0, 132), (-5.0, 12)])
def test_horizon_moves_with_time(known_for_s: float, horizon: int) -> None:
    """The older the knowledge, the further the swarm may have come; a clock set back takes nothing away."""
    assert step_horizon(10, known_for_s) == horizon
