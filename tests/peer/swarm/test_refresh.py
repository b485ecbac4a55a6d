"""The intervals of looks and reports: few while the batch is far from full."""

from __future__ import annotations

import pytest

from peer.swarm.refresh import UNKNOWN_S, longest_refresh_s, look_interval_s


@pytest.mark.parametrize(
    ("remaining_s", "seconds"), [(0.0, 0.5), (1.0, 0.5), (8.0, 2.0), (300.0, 6.0), (float("inf"), UNKNOWN_S)]
)
def test_looks_are_rare_while_the_batch_is_far_from_full(remaining_s: float, seconds: float) -> None:
    """And come often enough to see it full, though nobody's rate is known well."""
    assert look_interval_s(1, remaining_s, 0.5, 6.0) == seconds


@pytest.mark.parametrize(("shortest_s", "expiration_s", "seconds"), [(0.5, 120.0, 6.0), (0.1, 120.0, 2.0)])
def test_a_keeper_that_has_gone_is_missed_soon_enough(shortest_s: float, expiration_s: float, seconds: float) -> None:
    """The longest interval is a small part of the time for which records count."""
    assert longest_refresh_s(shortest_s, expiration_s) == seconds
