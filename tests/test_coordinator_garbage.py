"""Full collections of garbage come when they are due, and not because much was allocated."""

from __future__ import annotations

import asyncio
import gc
import weakref

from coordinator.garbage import rare_full_collections
from tests.support.waiting import eventually


class Knot:
    """Refers to itself, so that only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


def full_collections() -> int:
    return int(gc.get_stats()[2]["collections"])


async def test_much_that_lives_brings_about_no_full_collection() -> None:
    """Outside the block the same does."""
    async with rare_full_collections():
        before = full_collections()
        kept = [[number] for number in range(500_000)]
        assert full_collections() == before
    kept += [[number] for number in range(1_000_000)]
    assert full_collections() > before


async def test_old_garbage_goes_when_the_collection_is_due() -> None:
    """Also what the young generations have passed on."""
    async with rare_full_collections(every_s=0.05):
        knot = Knot()
        gc.collect(1)
        gone = weakref.ref(knot)
        del knot
        await eventually("the object is collected", lambda: gone() is None)


async def test_afterwards_all_is_as_before() -> None:
    """Thresholds, and what the collector walks over."""
    thresholds = gc.get_threshold()
    async with rare_full_collections():
        assert gc.get_freeze_count() > 0
    await asyncio.sleep(0)
    assert (gc.get_threshold(), gc.get_freeze_count()) == (thresholds, 0)
