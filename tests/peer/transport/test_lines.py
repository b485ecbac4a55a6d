"""Lines in virtual time: fair shares, and bytes that travel together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from peer.network.traffic import BOTH_WAYS, ON_THE_LINE
from peer.transport.lines import Direction, Line, Lines, Transfer
from tests.support.virtual_tests import played_by

MEGABYTE = 1e6 / ON_THE_LINE  # that takes so much of a line
HOME = Line(up=1e6, down=4e6, latency_s=0.02)
FAST = Line(up=1e7, down=1e7, latency_s=0.01)


class Moving:
    """Transfers over the lines of two homes, a and b, and a fast peer."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.now, self.lines = loop.time, Lines(loop.time, loop.call_later)
        for name, line in (("a", HOME), ("b", HOME), ("fast", FAST)):
            self.lines.connect(name, line)

    def send(self, bytes_by: dict[Direction, float]) -> tuple[Transfer, asyncio.Event]:
        """A transfer, and the event of its end."""
        done = asyncio.Event()
        return self.lines.send(bytes_by, done.set), done


@played_by
async def played(scenario: Callable[[Moving], Awaitable[None]]) -> None:
    await scenario(Moving())


@played
async def test_transfers_on_one_line_share_it_and_the_rest_goes_to_those_who_can_use_it(moving: Moving) -> None:
    """The fast peer's uplink of 10 MB/s: a takes 4, the bound of its downlink, and the one to itself the other 6."""
    _, to_a = moving.send({("fast", "up"): 4 * MEGABYTE, ("a", "down"): 4 * MEGABYTE})
    _, others = moving.send({("fast", "up"): 6 * MEGABYTE})
    await to_a.wait()
    await others.wait()
    assert moving.now() == pytest.approx(1.0)


@played
async def test_a_transfer_that_begins_when_another_ends_gets_its_share_from_then_on(moving: Moving) -> None:
    """A third one, under way meanwhile, is not slowed down for the time before."""
    done, third = asyncio.Event(), asyncio.Event()
    second = {("a", "up"): 0.5 * MEGABYTE}
    moving.lines.send({("a", "up"): 0.5 * MEGABYTE}, lambda: moving.lines.send(second, done.set))
    moving.lines.send({("a", "up"): MEGABYTE}, third.set)
    await done.wait()
    assert third.is_set()
    assert moving.now() == pytest.approx(2.0)
    assert moving.lines.moved("a", "up") == pytest.approx(2e6)


@pytest.mark.parametrize(("received", "busy"), [(8.0, 1.0), (2.0, 0.25)])
@played
async def test_a_direction_is_slower_while_the_other_one_is_busy(moving: Moving, received: float, busy: float) -> None:
    """Acknowledgements queue behind the data of the other direction, as far as that is busy; no more bytes pass."""
    _, done = moving.send({("a", "up"): 2 * MEGABYTE, ("a", "down"): received * MEGABYTE})
    await done.wait()
    assert moving.now() == pytest.approx(2.0 * (1 + BOTH_WAYS * busy))
    assert moving.lines.moved("a", "up") == pytest.approx(2e6)


@played
async def test_a_stopped_transfer_leaves_its_line_to_the_others(moving: Moving) -> None:
    """And what it has passed stays passed."""
    _, first = moving.send({("a", "up"): MEGABYTE})
    stopped, second = moving.send({("a", "up"): MEGABYTE})
    await asyncio.sleep(1.0)
    moving.lines.stop(stopped)
    await first.wait()
    assert moving.now() == pytest.approx(1.5)
    assert moving.lines.moved("a", "up") == pytest.approx(1.5e6)
    assert not second.is_set()


@played
async def test_a_dead_line_passes_nothing_until_it_is_back(moving: Moving) -> None:
    """A line of no speed keeps its transfers waiting."""
    _, done = moving.send({("a", "up"): MEGABYTE})
    await asyncio.sleep(0.5)
    moving.lines.connect("a", Line(up=0.0, down=0.0, latency_s=0.02))
    await asyncio.sleep(9.5)
    assert not done.is_set()
    moving.lines.connect("a", HOME)
    await done.wait()
    assert moving.now() == pytest.approx(10.5)
