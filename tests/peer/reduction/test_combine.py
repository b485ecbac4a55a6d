"""Parts that are held until all have come, and combined in the order of the senders."""

from __future__ import annotations

import asyncio

import pytest
import torch
from hivemind.averaging.partition import AllreduceException, BannedException
from hypothesis import given, settings, strategies as st

from peer.reduction.combine import (
    PartReducer,
    ReducedPart,
    RefusedPart,
    WeightedPart,
    centered_clipping,
    reduced_mean,
    weighted_mean,
    weighted_median,
)

SHAPE = torch.Size([5])
SENDERS = 4
VALUES = 64


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
async def test_the_order_of_arrival_changes_no_bit(order: list[int], seed: int) -> None:
    """The same parts give the same bits and the same weight."""
    usual, other = await average_in_order(list(range(SENDERS)), seed), await average_in_order(order, seed)
    assert torch.equal(usual.average, other.average)
    assert usual.weight == other.weight


async def test_all_get_the_mean_by_weight() -> None:
    """Everybody is answered with the same average, part after part, and with the weight behind it."""
    reducer = PartReducer([SHAPE, SHAPE], 2)
    for part in range(2):
        answers = await asyncio.gather(
            bringing(reducer, 0, 1.0, 3.0, part), bringing(reducer, 1, 5.0 + part, 1.0, part)
        )
        for answer in answers:
            assert torch.equal(answer.average, torch.full(SHAPE, 2.0 + part / 4))
            assert answer.weight == 4.0
    assert reducer.finished.is_set()


async def test_who_is_banned_is_neither_waited_for_nor_counted() -> None:
    """Not even with the part that it has brought already; and it may bring no other."""
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


async def test_who_is_not_waited_for_counts_if_it_is_there_in_time() -> None:
    """With the first part it was, with the second the others were before it: from there on it is out."""
    reducer = PartReducer([SHAPE, SHAPE], 3, unawaited=[2])
    ones = torch.ones(SHAPE)
    first = await asyncio.gather(*(reducer.accumulate_part(sender, 0, ones) for sender in (2, 0, 1)))
    assert [reduced.weight for reduced in first] == [3.0] * 3
    second = await asyncio.gather(*(reducer.accumulate_part(sender, 1, ones) for sender in (0, 1)))
    assert [reduced.weight for reduced in second] == [2.0] * 2
    assert reducer.banned == {2}
    with pytest.raises(BannedException):
        await reducer.accumulate_part(2, 1, ones)


async def test_a_sender_without_a_weight_is_awaited_until_it_has_said_so() -> None:
    """It is not late at the end, for it has nothing to bring."""
    reducer = PartReducer([SHAPE, SHAPE], 3)
    waiting = [bringing(reducer, sender, 2.0) for sender in (0, 1)]
    await asyncio.sleep(0)
    assert reducer.counted == []
    reducer.on_sender_weightless(2)
    for answer in await asyncio.gather(*waiting):
        assert torch.equal(answer.average, torch.full(SHAPE, 2.0))
        assert answer.weight == 2.0
    last = bringing(reducer, 0, 2.0, part=1)
    await asyncio.sleep(0)
    reducer.finalize()
    assert reducer.late == {1}
    await asyncio.gather(last, return_exceptions=True)


async def test_who_is_awaited_at_the_end_is_late() -> None:
    """Where the round ends in the middle; nobody is after the last part."""
    reducer, ones = PartReducer([SHAPE, SHAPE], 4), torch.ones(SHAPE)
    await asyncio.gather(*(reducer.accumulate_part(sender, 0, ones) for sender in range(4)))
    reducer.on_sender_failed(3)
    waiting = [asyncio.create_task(reducer.accumulate_part(sender, 1, ones)) for sender in (0, 1)]
    await asyncio.sleep(0)
    reducer.finalize()
    assert reducer.late == {2}
    await asyncio.gather(*waiting, return_exceptions=True)
    whole = PartReducer([SHAPE], 2)
    await asyncio.gather(*(whole.accumulate_part(sender, 0, ones) for sender in range(2)))
    whole.finalize()
    assert whole.late == frozenset()


@pytest.mark.parametrize(("sender", "part"), [(0, 0), (0, 1), (1, 1), (1, 2), (1, -1)])
async def test_a_part_that_is_not_due_is_refused(sender: int, part: int) -> None:
    """Neither the same part twice nor one ahead of the others is held."""
    reducer = PartReducer([SHAPE, SHAPE], 3)
    first = bringing(reducer, 0, 1.0)
    await asyncio.sleep(0)
    with pytest.raises(RefusedPart, match="not due"):
        await bringing(reducer, sender, 1.0, part=part)
    reducer.on_sender_failed(1)
    reducer.on_sender_failed(2)
    assert (await first).weight == 1.0


async def test_who_stops_waiting_takes_nothing_from_the_others() -> None:
    """A lost connection ends one sender's wait; its part counts until it is banned."""
    reducer = PartReducer([SHAPE], 2)
    lost = bringing(reducer, 0, 1.0)
    await asyncio.sleep(0)
    lost.cancel()
    with pytest.raises(asyncio.CancelledError):
        await lost
    reducer.on_sender_failed(0)
    assert (await bringing(reducer, 1, 3.0)).weight == 1.0


async def test_a_round_that_ends_lets_everybody_go() -> None:
    """Who waits when the round is given up is told so at once."""
    reducer = PartReducer([SHAPE], 2)
    waiting = bringing(reducer, 0, 1.0)
    await asyncio.sleep(0)
    reducer.finalize()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(AllreduceException, match="has ended"):
        await bringing(reducer, 1, 1.0)


def senders(count: int, seed: int = 0, size: float = 1.0) -> list[WeightedPart]:
    """Honest ones: the same gradient of norm 1 or so, and noise about as large."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(VALUES, generator=generator) / 8
    noise = [torch.randn(VALUES, generator=generator) / 8 for _ in range(count)]
    return [WeightedPart(index, size * (common + own), 4.0) for index, own in enumerate(noise)]


def norm(values: torch.Tensor) -> float:
    """L2."""
    return float(values.norm())


def test_honest_senders_keep_their_mean() -> None:
    """Where nobody is far from the centre, the result is the plain mean."""
    honest = senders(5)
    mean = weighted_mean(0, honest)
    found = centered_clipping(honest, mean * 0.9, norm(mean), radius=5.0, iterations=1)
    assert torch.allclose(found, mean, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.floats(1.0, 1e6), st.booleans())
def test_one_sender_moves_the_average_by_a_radius_at_most(size: float, flipped: bool) -> None:
    """However large its numbers are; so the direction stays the honest ones'."""
    honest = senders(5)
    mean = weighted_mean(0, honest)
    attack = WeightedPart(5, mean * (-size if flipped else size), 4.0)
    clean = centered_clipping(honest, mean, norm(mean), radius=1.0, iterations=1)
    found = centered_clipping([*honest, attack], mean, norm(mean), radius=1.0, iterations=1)
    assert norm(found - clean) <= norm(mean) / 6**0.5 + norm(mean - clean) + 1e-6


@pytest.mark.parametrize("size", [10.0, 1e30])
def test_a_sender_that_is_cut_moves_the_average_by_its_radius(size: float) -> None:
    """By its direction and no further, also where the squares of its values are infinite in float32."""
    parts = [WeightedPart(0, torch.zeros(VALUES), 3.0), WeightedPart(1, torch.full((VALUES,), size), 1.0)]
    found = centered_clipping(parts, torch.zeros(VALUES), usual=1.0, radius=1.0, iterations=1)
    assert norm(found) == pytest.approx(0.25**0.5)


def test_without_a_history_the_median_is_the_centre() -> None:
    """A sender of enormous numbers does not set the first average."""
    honest = senders(4)
    found = centered_clipping(
        [*honest, WeightedPart(4, torch.full((VALUES,), 1e6), 4.0)], None, 0.0, radius=1.0, iterations=3
    )
    assert norm(found - weighted_mean(0, honest)) < 2 * norm(weighted_mean(0, honest))


def test_a_centre_without_a_usual_norm_is_no_history() -> None:
    """Averages of zero only say nothing of how far the next ones may be from them."""
    honest = senders(4)
    found = centered_clipping(honest, torch.zeros(VALUES), 0.0, radius=1.0, iterations=3)
    assert torch.equal(found, centered_clipping(honest, None, 0.0, radius=1.0, iterations=3))


def test_few_samples_have_a_wider_radius() -> None:
    """A small batch's gradient is noisy; its deviation counts in full where an equal one's would be cut."""
    centre = torch.zeros(VALUES)
    small = WeightedPart(0, torch.full((VALUES,), 1.0), 1.0)
    large = WeightedPart(1, torch.zeros(VALUES), 99.0)
    found = centered_clipping([small, large], centre, usual=1.0, radius=1.0, iterations=1)
    assert torch.allclose(found, torch.full((VALUES,), 0.01))


def test_the_median_is_by_weight() -> None:
    """A heavy sender outweighs two light ones, value by value."""
    light = [WeightedPart(0, torch.tensor([1.0, 5.0]), 1.0), WeightedPart(1, torch.tensor([2.0, 6.0]), 1.0)]
    assert weighted_median([*light, WeightedPart(2, torch.tensor([9.0, 0.0]), 3.0)]).tolist() == [9.0, 0.0]
    assert weighted_median([*light, WeightedPart(2, torch.tensor([9.0, 0.0]), 1.0)]).tolist() == [2.0, 5.0]


def test_nobody_weighs() -> None:
    """Without any sample the average is zero, of the weight zero, by which everybody knows it."""
    assert centered_clipping([WeightedPart(0, torch.ones(2), 0.0)], None, 0.0, 1.0, 1).tolist() == [0.0, 0.0]
    reduced = reduced_mean(0, [WeightedPart(0, torch.ones(2), 0.0)])
    assert (reduced.average.tolist(), reduced.weight) == ([0.0, 0.0], 0.0)
