"""Decisions about averaging groups; real swarms are in tests/system."""

from __future__ import annotations

import pytest

from peer.swarm_optimizer import FULL_GROUP_ATTEMPTS, required_group_size


@pytest.mark.parametrize("averaging", [1, 2, 3, 10])
def test_first_attempts_wait_for_everybody(averaging: int) -> None:
    """The first rounds of a step are begun only with every peer that is at this step."""
    assert [required_group_size(averaging, attempt) for attempt in range(FULL_GROUP_ATTEMPTS)] == [averaging] * 3


@pytest.mark.parametrize("averaging", range(1, 12))
def test_later_attempts_need_more_than_half(averaging: int) -> None:
    """Two groups that are each large enough would have to share a peer, so a step cannot be taken twice."""
    size = required_group_size(averaging, FULL_GROUP_ATTEMPTS)
    assert 2 * size > averaging
    assert size <= averaging
