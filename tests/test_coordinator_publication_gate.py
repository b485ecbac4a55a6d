"""Which checkpoints are published."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from coordinator.publication_gate import why_withheld

WHOLE = {"weight": torch.zeros(3), "bias": torch.ones(2)}
GOOD: dict[str, Any] = {"loss": 2.0, "last_loss": 2.0, "most_rise": 1.5, "is_own": True}


@pytest.mark.parametrize("change", [{}, {"last_loss": None}, {"loss": 3.0}, {"loss": 0.1}])
def test_a_sound_state_passes(change: dict[str, Any]) -> None:
    """The first of a run, one that learns, and one whose loss has risen within the bound."""
    assert why_withheld(WHOLE, **(GOOD | change)) == ""


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_no_numbers_are_named(value: float) -> None:
    """One such value in one tensor is enough."""
    broken = WHOLE | {"bias": torch.tensor([1.0, value])}
    assert "`bias`" in why_withheld(broken, **GOOD)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"loss": 3.1}, "1.5 times"),
        ({"loss": math.nan}, "not finite"),
        ({"loss": math.inf}, "not finite"),
        ({"is_own": False}, "taken from a member"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, Any], reason: str) -> None:
    """A loss that rose too far or is none, and a state that nobody else vouches for."""
    assert reason in why_withheld(WHOLE, **(GOOD | change))
