"""Rounds in two halves, with averages that need no network; real ones are in tests/system."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import hivemind
import pytest
import torch
from hivemind.averaging.allreduce import AllreduceException

from peer.averaging.averager import SwarmGradientAverager
from peer.gradients.power_sgd import FIRST, LowRank
from peer.config.training import Averaging
from tests.support.idle_averager import (
    GROUP,
    HALF_BYTES,
    accumulate,
    averaged,
    idle_averager,
    result_of,
    take_round,
)

pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")  # by hivemind, for its daemon
SHAPE = torch.Size((24, 40))


@pytest.fixture
def parameters() -> list[torch.nn.Parameter]:
    """A matrix and a bias."""
    return [torch.nn.Parameter(torch.zeros(SHAPE)), torch.nn.Parameter(torch.zeros(5))]


@pytest.fixture
def averager(dht: hivemind.DHT, parameters: list[torch.nn.Parameter]) -> SwarmGradientAverager:
    """An averager of factors of rank 2."""
    return idle_averager(dht, parameters, Averaging(powersgd_rank=2))


class Halves:
    """A network of which the other peer has the same numbers: averages change nothing; a half of a round may fail."""

    def __init__(self, failing: bytes | None = None) -> None:
        self.failing, self.seen = failing, cast(list[tuple[bytes, list[torch.Size]]], [])

    def all_reduce(self, values: Sequence[torch.Tensor], half: bytes) -> None:
        """Average with a peer that has the same numbers."""
        self.seen.append((half, [tensor.shape for tensor in values]))
        if half == self.failing:
            raise AllreduceException("a value is missing")


def own_numbers(averager: SwarmGradientAverager) -> list[torch.Tensor]:
    """Return the numbers with which this peer begins its next round."""
    averager.load_accumulators_into_averager_()
    return averaged(averager)


def test_images_come_first_then_all_else(averager: SwarmGradientAverager, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both halves are the same group's; the outcome's samples are the second's, its bytes those of both."""
    halves = Halves()
    group = take_round(averager, halves.all_reduce, monkeypatch)
    first = (FIRST, [torch.Size((2, SHAPE[0]))])
    assert halves.seen == [first, (b"", [torch.Size((2, SHAPE[1])), torch.Size((5,))])]
    assert (group.size, group.samples) == (2, 12)
    assert group.averaged_bytes == 2 * HALF_BYTES


@pytest.mark.parametrize("half", [FIRST, b""])
def test_a_round_that_fails_in_either_half_leaves_all(
    averager: SwarmGradientAverager, monkeypatch: pytest.MonkeyPatch, half: bytes
) -> None:
    """The next attempt finds the peer's own numbers and the factors of the last round that succeeded."""
    before = [*own_numbers(averager), *(right.clone() for right in cast(LowRank, averager._code)._rights.values())]
    with pytest.raises(AllreduceException, match="a value is missing"):
        take_round(averager, Halves(failing=half).all_reduce, monkeypatch)
    after = [*averaged(averager), *cast(LowRank, averager._code)._rights.values()]
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("delayed", [False, True])
def test_what_a_step_loses_comes_with_the_next(
    averager: SwarmGradientAverager,
    parameters: list[torch.nn.Parameter],
    monkeypatch: pytest.MonkeyPatch,
    delayed: bool,
) -> None:
    """The step's gradient is of the factors' rank; what it lacks is added to that of the following step.

    With delayed steps, what is accumulated beside the round is neither in it nor in what it loses.
    """
    if delayed:
        averager.hold()
        accumulate(averager, parameters, seed=2, samples=4)
    own = own_numbers(averager)[0]
    take_round(averager, Halves().all_reduce, monkeypatch)
    with averager.making_room():
        step = averaged(averager)[0]
        assert torch.linalg.matrix_rank(step) == 2
    if not delayed:
        accumulate(averager, parameters, seed=2, samples=4)
    assert parameters[0].grad is not None
    mean = parameters[0].grad / 4
    averager.load_accumulators_into_averager_()
    assert torch.allclose(averaged(averager)[0], mean + (own - step) * 6 / 4, rtol=0, atol=1e-4)


@pytest.mark.parametrize("takes_a_state", [True, False])
def test_remainders_are_dropped_with_the_state_and_not_with_samples(
    averager: SwarmGradientAverager,
    parameters: list[torch.nn.Parameter],
    monkeypatch: pytest.MonkeyPatch,
    takes_a_state: bool,
) -> None:
    """A remainder belongs to the parameters of its step; a peer that takes another's state no longer has these."""
    own = own_numbers(averager)[0]
    take_round(averager, Halves().all_reduce, monkeypatch)
    with averager.making_room():
        step = averaged(averager)[0]
    accumulate(averager, parameters, seed=4, samples=3)
    assert averager.drop_all() == 3
    if takes_a_state:
        averager.forget_remainders()
    accumulate(averager, parameters, seed=5, samples=2)
    assert parameters[0].grad is not None
    expected = parameters[0].grad / 2 + (0 if takes_a_state else (own - step) * 6 / 2)
    averager.load_accumulators_into_averager_()
    assert torch.allclose(averaged(averager)[0], expected, rtol=0, atol=1e-4)


def test_a_run_that_averages_without_factors_drops_what_they_left(
    averager: SwarmGradientAverager, parameters: list[torch.nn.Parameter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that no gradient comes in one large step; what is loaded then are the new samples, each once."""
    take_round(averager, Halves().all_reduce, monkeypatch)
    with averager.making_room():
        pass
    assert cast(LowRank, averager._code)._lost
    accumulate(averager, parameters, seed=6, samples=2)
    assert parameters[0].grad is not None
    mean = parameters[0].grad / 2
    assert averager.change(averager.averaging.with_code(("8bit-blockwise", 0)))
    assert torch.equal(own_numbers(averager)[0], mean)
    halves = Halves()
    take_round(averager, halves.all_reduce, monkeypatch)
    assert halves.seen == [(b"", [SHAPE, torch.Size((5,))])]


def test_nobody_waits_for_a_half_that_does_not_come(averager: SwarmGradientAverager) -> None:
    """Who has sent parts of a second half learns at once that the first has failed here."""

    async def fail() -> list[bool]:
        averager._pending_groups_registered = asyncio.Event()
        with averager._register_allreduce_group(GROUP):
            registered = list(averager._running_groups.values())
        assert not averager._running_groups
        return [future.cancelled() for future in registered]

    assert result_of(fail()) == [True, True]
