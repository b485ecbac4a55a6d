"""The intervals of looks and reports: few while the batch is far from full."""

from __future__ import annotations

import pytest

from peer.progress.refresh import Refresh


@pytest.mark.parametrize(("shortest_s", "expiration_s", "seconds"), [(0.5, 120.0, 6.0), (0.1, 120.0, 2.0)])
def test_a_keeper_that_has_gone_is_missed_soon_enough(shortest_s: float, expiration_s: float, seconds: float) -> None:
    """The longest interval is a small part of the time for which records count."""
    assert Refresh(shortest_s, expiration_s).longest_s == seconds
