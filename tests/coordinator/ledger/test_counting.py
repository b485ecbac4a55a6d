"""A step's loss: the mean over samples, which one false word hardly moves."""

from __future__ import annotations

import pytest

from coordinator.ledger.counting import LEAST_SPREAD, SPREAD, loss_sums


def mean(reported: list[tuple[float, int]], before: float | None = None) -> float:
    total, samples = loss_sums(reported, before)
    return total / samples


def test_honest_losses_are_weighted_by_samples() -> None:
    """Nothing is changed where losses lie as close as devices' of one step do."""
    assert loss_sums([(5.0, 10), (6.0, 30)], None) == (230.0, 40)


def test_without_samples_there_is_no_loss() -> None:
    """Who brought nothing says nothing."""
    assert loss_sums([(5.0, 0)], 4.0) == (0.0, 0)


@pytest.mark.parametrize("lie", [0.0, 1e-9, 100.0])
@pytest.mark.parametrize("share", [1, 10, 40, 49])
def test_a_false_loss_moves_the_mean_by_its_share_of_the_spread(lie: float, share: int) -> None:
    """Whatever it is, and however many samples less than half were really brought with it."""
    moved = mean([(4.0, (100 - share) // 2), (4.0, 100 - share - (100 - share) // 2), (lie, share)]) - 4.0
    assert abs(moved) <= (SPREAD * 4.0 + LEAST_SPREAD) * share / 100 + 1e-9


def test_of_two_equal_halves_the_one_near_the_step_before_is_right() -> None:
    """Two devices with the same samples and different losses: the curve goes on where it was."""
    assert mean([(100.0, 8), (4.0, 8)], before=4.2) < 4.6
    assert mean([(0.0, 8), (4.0, 8)], before=4.2) > 3.4


def test_a_model_that_blows_up_is_seen() -> None:
    """When all losses jump there is nothing to correct."""
    assert mean([(60.0, 8), (66.0, 8), (58.0, 4)], before=4.0) > 58.0
