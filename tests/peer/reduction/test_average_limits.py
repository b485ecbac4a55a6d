"""How large averages may be."""

from __future__ import annotations

import math

import pytest
import torch

from peer.reduction.average_limits import JUMP, LEAST_ROUNDS, REMEMBERED_ROUNDS, AverageScreen

HALF = b""


def test_nothing_is_too_large_before_there_are_rounds() -> None:
    """Nor for a tensor whose averages were zero so far; each half of a round has its own."""
    screen = AverageScreen()
    for _ in range(LEAST_ROUNDS):
        assert screen.limits(HALF, 2) == [math.inf, math.inf]
        screen.accepted(HALF, [torch.full((4,), 3.0), torch.zeros(4)])
    assert screen.limits(HALF, 2) == [pytest.approx(6.0 * JUMP), math.inf]
    assert screen.limits(b".images", 2) == [math.inf, math.inf]


def test_limits_follow_the_last_rounds() -> None:
    """The largest of them counts, until it is forgotten."""
    screen = AverageScreen()
    screen.accepted(HALF, [torch.full((1,), 50.0)])
    for _ in range(REMEMBERED_ROUNDS - 1):
        screen.accepted(HALF, [torch.ones(1)])
    assert screen.limits(HALF, 1) == [pytest.approx(50.0 * JUMP)]
    screen.accepted(HALF, [torch.ones(1)])
    assert screen.limits(HALF, 1) == [pytest.approx(JUMP)]
