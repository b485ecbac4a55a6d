"""Rounds in two halves, with averages that need no network; real ones are in tests/system."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
import torch

from peer.config.training import Averaging
from peer.gradients.power_sgd import FIRST, LowRank
from tests.support.gradient_rounds import GradientRounds

SHAPE = torch.Size((24, 40))


@pytest.fixture
def rounds() -> GradientRounds:
    """Rounds of a matrix, in factors of rank 2, and a bias."""
    parameters = [torch.nn.Parameter(torch.zeros(SHAPE)), torch.nn.Parameter(torch.zeros(5))]
    return GradientRounds(parameters, Averaging(powersgd_rank=2))


class Halves:
    """A network of which the other peer has the same numbers: averages change nothing; a half of a round may fail."""

    def __init__(self, failing: bytes | None = None) -> None:
        self.failing, self.seen = failing, list[tuple[bytes, list[torch.Size]]]()

    def all_reduce(self, values: Sequence[torch.Tensor], half: bytes) -> None:
        """Average with a peer that has the same numbers."""
        self.seen.append((half, [tensor.shape for tensor in values]))
        if half == self.failing:
            raise ConnectionError("a value is missing")


def mean_of(rounds: GradientRounds, samples: int) -> torch.Tensor:
    """Return the matrix's mean gradient over the samples in `.grad`."""
    assert rounds.parameters[0].grad is not None
    return rounds.parameters[0].grad / samples


def test_images_come_first_then_all_else(rounds: GradientRounds) -> None:
    """The first half is of the matrix alone, the second one of its coordinates and the bias."""
    halves = Halves()
    rounds.take_round(halves.all_reduce)
    first = (FIRST, [torch.Size((2, SHAPE[0]))])
    assert halves.seen == [first, (b"", [torch.Size((2, SHAPE[1])), torch.Size((5,))])]


@pytest.mark.parametrize("half", [FIRST, b""])
def test_a_round_that_fails_in_either_half_leaves_all(rounds: GradientRounds, half: bytes) -> None:
    """The next attempt finds the peer's own numbers and the factors of the last round that succeeded."""
    rights = cast(LowRank, rounds.code)._rights.values()
    before = [*rounds.loaded(), *(right.clone() for right in rights)]
    with pytest.raises(ConnectionError, match="a value is missing"):
        rounds.take_round(Halves(failing=half).all_reduce)
    assert all(torch.equal(old, new) for old, new in zip(before, [*rounds.averaged(), *rights], strict=True))


@pytest.mark.parametrize("delayed", [False, True])
def test_what_a_step_loses_comes_with_the_next(rounds: GradientRounds, delayed: bool) -> None:
    """The step's gradient is of the factors' rank; what it lacks is added to that of the following step.

    With delayed steps, what is accumulated beside the round is neither in it nor in what it loses.
    """
    if delayed:
        rounds.buffer.hold()
        rounds.accumulate(seed=2, samples=4)
    own = rounds.loaded()[0]
    rounds.take_round(Halves().all_reduce)
    step = rounds.take_step()[0]
    assert torch.linalg.matrix_rank(step) == 2
    if not delayed:
        rounds.accumulate(seed=2, samples=4)
    mean = mean_of(rounds, 4)
    assert torch.allclose(rounds.loaded()[0], mean + (own - step) * 6 / 4, rtol=0, atol=1e-4)


@pytest.mark.parametrize("takes_a_state", [True, False])
def test_remainders_are_dropped_with_the_state_and_not_with_samples(
    rounds: GradientRounds, takes_a_state: bool
) -> None:
    """A remainder belongs to the parameters of its step; a peer that takes another's state no longer has these."""
    own = rounds.loaded()[0]
    rounds.take_round(Halves().all_reduce)
    step = rounds.take_step()[0]
    rounds.accumulate(seed=4, samples=3)
    assert rounds.buffer.drop_all() == 3
    if takes_a_state:
        rounds.buffer.forget_remainders()
    rounds.accumulate(seed=5, samples=2)
    expected = mean_of(rounds, 2) + (0 if takes_a_state else (own - step) * 6 / 2)
    assert torch.allclose(rounds.loaded()[0], expected, rtol=0, atol=1e-4)
