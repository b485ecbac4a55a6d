"""When the keeper writes checkpoints; the whole keeper runs in tests/system."""

from __future__ import annotations

import pytest

from coordinator.keeper import must_checkpoint


@pytest.mark.parametrize(
    ("step", "newest", "stopping", "expected"),
    [
        (5, 0, False, True),  # due
        (4, 0, False, False),
        (10, 5, False, True),
        (7, 1, False, True),  # caught up over a due step: do not wait for the next multiple
        (6, 5, False, False),
        (6, 5, True, True),  # stopping: nothing is lost
        (5, 5, True, False),  # written already
        (0, 0, True, False),
    ],
)
def test_checkpoints_when_due_and_at_the_end(step: int, newest: int, stopping: bool, expected: bool) -> None:
    """Every five steps here, after a gap, and when stopping, but never the same step twice."""
    assert must_checkpoint(step, newest, every=5, boundaries=(), stopping=stopping) is expected


@pytest.mark.parametrize(
    ("step", "newest", "expected"),
    [
        (7, 5, False),  # the last step of the phase before
        (8, 5, True),  # the boundary
        (8, 8, False),
        (9, 5, True),  # the keeper was away at the boundary, or the disk was full
        (9, 8, False),
        (13, 8, True),  # due
        (14, 13, True),  # the next boundary
    ],
)
def test_a_phase_begins_with_a_checkpoint(step: int, newest: int, expected: bool) -> None:
    """The state with which a phase starts is written, or the first of the phase that the keeper has."""
    assert must_checkpoint(step, newest, every=5, boundaries=(8, 14), stopping=False) is expected
