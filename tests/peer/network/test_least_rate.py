"""Downloads are left for their rate, not for their length."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from peer.network.least_rate import LEAST_BYTES_PER_S, PATIENCE_S, at_least_rate
from tests.support.clocks import Clock


async def parts(clock: Clock, number: int, size: int, seconds: float) -> AsyncIterator[bytes]:
    """So many parts of a size, each after so long."""
    for _ in range(number):
        clock.now += seconds
        yield bytes(size)


async def number_taken(sent: AsyncIterator[bytes], clock: Clock) -> int:
    """How many of the parts come through."""
    return len([part async for part in at_least_rate(sent, len, clock)])


async def test_a_slow_download_may_take_hours() -> None:
    """A day long, at the least rate, with a pause before each part that is nearly as long as the patience."""
    clock = Clock()
    pause_s = PATIENCE_S - 20.0
    slow = parts(clock, number=800, size=int(pause_s * LEAST_BYTES_PER_S), seconds=pause_s)
    assert await number_taken(slow, clock) == 800


@pytest.mark.parametrize(("size", "seconds"), [(1, 60.0), (LEAST_BYTES_PER_S // 2, 1.0), (0, 0.1)])
async def test_a_sender_that_trickles_is_left(size: int, seconds: float) -> None:
    """A byte a minute, or half the least rate, is not gone on with for ever."""
    clock = Clock()
    began_at = clock.now
    with pytest.raises(asyncio.TimeoutError):
        await number_taken(parts(clock, 10_000, size, seconds), clock)
    assert clock.now - began_at <= 2 * PATIENCE_S + seconds


async def test_speed_buys_no_long_silence() -> None:
    """Whatever came before, a sender is left when it has given nothing for the patience."""
    clock = Clock()

    async def burst_and_trickle() -> AsyncIterator[bytes]:
        yield bytes(1000 * LEAST_BYTES_PER_S)
        async for part in parts(clock, 100, 1, PATIENCE_S / 4):
            yield part

    began_at = clock.now
    with pytest.raises(asyncio.TimeoutError):
        await number_taken(burst_and_trickle(), clock)
    assert clock.now - began_at <= 2 * PATIENCE_S


async def test_the_receivers_own_time_is_its_own() -> None:
    """Keeping to a volunteer's rate, a receiver may take each part as late as it has to."""
    clock, taken = Clock(), 0
    async for _ in at_least_rate(parts(clock, 50, 100, 0.0), len, clock):
        clock.now += 10 * PATIENCE_S
        taken += 1
    assert taken == 50
