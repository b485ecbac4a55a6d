"""Lines in virtual time: fair shares, and bytes that travel together."""

from __future__ import annotations

import pytest
import simpy

from peer.network.traffic import BOTH_WAYS, ON_THE_LINE
from peer.rehearsal.lines import Lines
from peer.rehearsal.scenario import HomeLine

MEGABYTE = 1e6 / ON_THE_LINE  # that takes so much of a line


@pytest.fixture
def env() -> simpy.Environment:
    return simpy.Environment()


@pytest.fixture
def lines(env: simpy.Environment) -> Lines:
    """Two peers with lines of 1 MB/s up and 4 MB/s down, and a fast one."""
    lines = Lines(env)
    for name in ("a", "b"):
        lines.connect(name, HomeLine(up_mbit_per_second=8, down_mbit_per_second=32))
    lines.connect("fast", HomeLine(up_mbit_per_second=80, down_mbit_per_second=80))
    return lines


def test_transfers_on_one_line_share_it_and_the_rest_goes_to_those_who_can_use_it(
    env: simpy.Environment, lines: Lines
) -> None:
    """The fast peer's uplink of 10 MB/s: a takes 4, the bound of its downlink, and the one to itself the other 6."""
    to_a = lines.send({("fast", "up"): 4 * MEGABYTE, ("a", "down"): 4 * MEGABYTE})
    others = lines.send({("fast", "up"): 6 * MEGABYTE})
    env.run(to_a.done & others.done)
    assert env.now == pytest.approx(1.0)


@pytest.mark.parametrize(("received", "busy"), [(8.0, 1.0), (2.0, 0.25)])
def test_a_direction_is_slower_while_the_other_one_is_busy(
    env: simpy.Environment, lines: Lines, received: float, busy: float
) -> None:
    """Acknowledgements queue behind the data of the other direction, as far as that is busy; no more bytes pass."""
    transfer = lines.send({("a", "up"): 2 * MEGABYTE, ("a", "down"): received * MEGABYTE})
    env.run(transfer.done)
    assert env.now == pytest.approx(2.0 * (1 + BOTH_WAYS * busy))
    assert lines.moved("a", "up") == pytest.approx(2e6)


def test_a_stopped_transfer_leaves_its_line_to_the_others(env: simpy.Environment, lines: Lines) -> None:
    """And what it has passed stays passed."""
    first = lines.send({("a", "up"): MEGABYTE})
    second = lines.send({("a", "up"): MEGABYTE})
    env.run(until=1.0)
    lines.stop(second)
    env.run(first.done)
    assert env.now == pytest.approx(1.5)
    assert lines.moved("a", "up") == pytest.approx(1.5e6)
    assert not second.done.triggered


def test_a_dead_line_passes_nothing_until_it_is_back(env: simpy.Environment, lines: Lines) -> None:
    """A line of no speed keeps its transfers waiting."""
    transfer = lines.send({("a", "up"): MEGABYTE})
    line = HomeLine(up_mbit_per_second=8, down_mbit_per_second=32)
    env.run(until=0.5)
    lines.connect("a", line, factor=0.0)
    env.run(until=10.0)
    assert not transfer.done.triggered
    lines.connect("a", line)
    env.run(transfer.done)
    assert env.now == pytest.approx(10.5)
