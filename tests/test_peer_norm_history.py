"""How large averages usually are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.norm_history import LEAST_FACTOR, LEAST_ROUNDS, MOST_FACTOR, REMEMBERED_ROUNDS, NormHistory, usual_limit


@given(st.lists(st.floats(1e-30, 1e30), min_size=1, max_size=REMEMBERED_ROUNDS))
def test_the_limit_keeps_to_its_bounds(norms: list[float]) -> None:
    """Rounds that are all alike leave room, and rounds that are all different not too much."""
    middle = sorted(norms)
    limit = usual_limit(norms)
    assert middle[0] * LEAST_FACTOR * 0.999 <= limit <= middle[-1] * MOST_FACTOR * 1.001


def test_one_spike_moves_little() -> None:
    """A single round that was a thousand times larger is not what is usual."""
    assert usual_limit([1.0] * 8 + [1000.0]) == pytest.approx(LEAST_FACTOR)


def test_what_varies_has_a_wider_limit() -> None:
    """Rounds that differ threefold from one to the next may do so again."""
    assert usual_limit([1.0, 3.0, 1.0, 3.0, 9.0, 3.0, 1.0]) > LEAST_FACTOR * 3.0


def test_tensors_without_gradient() -> None:
    """Where most averages are zero, nothing is usual; a few zeros among others change little."""
    assert usual_limit([0.0] * 4 + [1.0]) == 0.0
    assert usual_limit([0.0] + [1.0] * 4) == pytest.approx(LEAST_FACTOR)


def test_history_begins_after_some_rounds_and_forgets_old_ones() -> None:
    """Before, nothing is known; later only the last rounds count."""
    history = NormHistory()
    for _ in range(LEAST_ROUNDS - 1):
        history.add([1.0, 5.0])
    assert (history.limits(), history.medians()) == (None, None)
    history.add([1.0, 5.0])
    assert history.medians() == [1.0, 5.0]
    for _ in range(REMEMBERED_ROUNDS):
        history.add([2.0, 0.0])
    assert history.limits() == [pytest.approx(2.0 * LEAST_FACTOR), 0.0]
