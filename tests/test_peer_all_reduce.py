"""What a round leaves behind; whole rounds are in tests/system."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest
import torch
from hivemind.averaging.allreduce import AllreduceException
from hivemind.averaging.partition import TensorPartReducer

from peer.all_reduce import ExactAllReduce, take_averages


class EndedRound:
    """A round that brings these averages, of which so many values are missing."""

    def __init__(self, averages: list[torch.Tensor], missing_values: int = 0, least_weight: float = 1.0) -> None:
        self.averages, self.missing_values, self.least_weight = averages, missing_values, least_weight

    async def __aiter__(self) -> AsyncIterator[torch.Tensor]:
        for average in self.averages:
            yield average


def taken(ended: EndedRound) -> list[torch.Tensor]:
    """This peer's own numbers, all ones, after it has taken the round's averages."""
    own = [torch.ones(3), torch.ones(2)]
    asyncio.run(take_averages(ended, own))  # type: ignore[arg-type]
    return own


def test_averages_replace_a_peers_own_numbers() -> None:
    """After a round all numbers are the averages."""
    averages = [torch.full((3,), 5.0), torch.full((2,), 6.0)]
    assert all(torch.equal(own, average) for own, average in zip(taken(EndedRound(averages)), averages, strict=True))


@pytest.mark.parametrize(
    ("last", "missing_values", "weight", "named"),
    [
        (6.0, 2, 1.0, "2 values came back unaveraged"),
        (float("nan"), 0, 1.0, "not finite"),
        (6.0, 0, float("inf"), "not finite"),
    ],
)
def test_a_failed_round_leaves_a_peers_own_numbers(last: float, missing_values: int, weight: float, named: str) -> None:
    """The next round begins from the peer's own numbers, not from averages or gaps of one that failed."""
    own = [torch.ones(3), torch.ones(2)]
    ended = EndedRound([torch.full((3,), 5.0), torch.full((2,), last)], missing_values, weight)
    with pytest.raises(AllreduceException, match=named):
        asyncio.run(take_averages(ended, own))  # type: ignore[arg-type]
    assert torch.equal(own[0], torch.ones(3))
    assert torch.equal(own[1], torch.ones(2))


@pytest.mark.parametrize(
    ("index", "part"),
    [
        (0, torch.zeros(1)),  # would be added to all three values
        (0, torch.zeros(())),
        (0, torch.zeros(4)),
        (1, torch.zeros(3)),
        (2, torch.zeros(2)),  # one more than there are
        (0, torch.zeros(3, dtype=torch.complex64)),
    ],
)
def test_a_part_that_was_not_asked_for_is_refused(index: int, part: torch.Tensor) -> None:
    """Another shape or kind of numbers than the reducer's own part, or a part too many, fails its sender."""

    async def check(index: int, part: torch.Tensor) -> None:
        reducing = SimpleNamespace(tensor_part_reducer=TensorPartReducer([torch.Size([3]), torch.Size([2])], 2))
        ExactAllReduce._check_part(reducing, index, part)  # type: ignore[arg-type]

    asyncio.run(check(0, torch.zeros(3)))
    with pytest.raises(AllreduceException, match="not asked for"):
        asyncio.run(check(index, part))
