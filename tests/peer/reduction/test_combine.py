"""Parts that are held until all have come, and combined in the order of the senders."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import torch
from hivemind.averaging.partition import AllreduceException, BannedException
from hypothesis import given, settings, strategies as st

from peer.reduction.combine import PartReducer, ReducedPart, RefusedPart
from tests.support.waiting import PATIENCE_S

SHAPE = torch.Size([5])
SENDERS = 4


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run a test's coroutine."""

    async def bounded() -> None:
        await asyncio.wait_for(main(), PATIENCE_S)

    asyncio.run(bounded())


def bringing(
    reducer: PartReducer, sender: int, value: float, weight: float = 1.0, part: int = 0
) -> asyncio.Task[ReducedPart]:
    """One sender's part, all of one value, on its way to the reducer."""
    return asyncio.ensure_future(reducer.accumulate_part(sender, part, torch.full(SHAPE, value), weight=weight))


async def average_in_order(order: list[int], seed: int) -> ReducedPart:
    """What senders' parts come to when they arrive in this order."""
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(SHAPE, generator=generator) * 10.0**sender for sender in range(SENDERS)]
    reducer = PartReducer([SHAPE], SENDERS)
    tasks = []
    for sender in order:
        tasks.append(asyncio.ensure_future(reducer.accumulate_part(sender, 0, parts[sender], weight=0.1 + sender)))
        await asyncio.sleep(0)
    return (await asyncio.gather(*tasks))[0]


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(SENDERS)), st.integers(0, 2**31))
def test_the_order_of_arrival_changes_no_bit(order: list[int], seed: int) -> None:
    """The same parts give the same bits and the same weight."""

    async def main() -> None:
        usual, other = await average_in_order(list(range(SENDERS)), seed), await average_in_order(order, seed)
        assert torch.equal(usual.average, other.average)
        assert usual.weight == other.weight

    run(main)


def test_all_get_the_mean_by_weight() -> None:
    """Everybody is answered with the same average, part after part, and with the weight behind it."""

    async def main() -> None:
        reducer = PartReducer([SHAPE, SHAPE], 2)
        for part in range(2):
            answers = await asyncio.gather(
                bringing(reducer, 0, 1.0, 3.0, part), bringing(reducer, 1, 5.0 + part, 1.0, part)
            )
            for answer in answers:
                assert torch.equal(answer.average, torch.full(SHAPE, 2.0 + part / 4))
                assert answer.weight == 4.0
        assert reducer.finished.is_set()

    run(main)


def test_who_is_banned_is_neither_waited_for_nor_counted() -> None:
    """Not even with the part that it has brought already; and it may bring no other."""

    async def main() -> None:
        reducer = PartReducer([SHAPE], 3)
        bad, first = bringing(reducer, 1, 1e6, 1e6), bringing(reducer, 0, 2.0, 4.0)
        await asyncio.sleep(0)
        reducer.on_sender_failed(1)
        reducer.on_sender_failed(2)
        answer = await first
        assert torch.equal(answer.average, torch.full(SHAPE, 2.0))
        assert answer.weight == 4.0
        assert (await bad).weight == 4.0
        with pytest.raises(BannedException):
            await bringing(reducer, 1, 1.0)

    run(main)


@pytest.mark.parametrize(("sender", "part"), [(0, 0), (0, 1), (1, 1), (1, 2), (1, -1)])
def test_a_part_that_is_not_due_is_refused(sender: int, part: int) -> None:
    """Neither the same part twice nor one ahead of the others is held."""

    async def main() -> None:
        reducer = PartReducer([SHAPE, SHAPE], 3)
        first = bringing(reducer, 0, 1.0)
        await asyncio.sleep(0)
        with pytest.raises(RefusedPart, match="not due"):
            await bringing(reducer, sender, 1.0, part=part)
        reducer.on_sender_failed(1)
        reducer.on_sender_failed(2)
        assert (await first).weight == 1.0

    run(main)


def test_who_stops_waiting_takes_nothing_from_the_others() -> None:
    """A lost connection ends one sender's wait; its part counts until it is banned."""

    async def main() -> None:
        reducer = PartReducer([SHAPE], 2)
        lost = bringing(reducer, 0, 1.0)
        await asyncio.sleep(0)
        lost.cancel()
        with pytest.raises(asyncio.CancelledError):
            await lost
        reducer.on_sender_failed(0)
        assert (await bringing(reducer, 1, 3.0)).weight == 1.0

    run(main)


def test_a_round_that_ends_lets_everybody_go() -> None:
    """Who waits when the round is given up is told so at once."""

    async def main() -> None:
        reducer = PartReducer([SHAPE], 2)
        waiting = bringing(reducer, 0, 1.0)
        await asyncio.sleep(0)
        reducer.finalize()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(AllreduceException, match="has ended"):
            await bringing(reducer, 1, 1.0)

    run(main)
