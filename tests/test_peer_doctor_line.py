"""Measuring the line, against a real coordinator."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from auth.errors import UnreachableError
from auth.join_link import JoinLink
from coordinator.visitors import PROBES_PER_MINUTE
from peer.control_client import ControlClient
from peer.doctor.context import Context, Options
from peer.doctor.findings import Verdict
from peer.doctor.line import SLOW_BYTES_PER_SECOND, check_bandwidth, judge_line
from peer.line import LineSpeed, measure_line, rate
from tests.support.control_plane import connected, serving
from tests.support.strange_coordinators import SilentCoordinator, strange_coordinator


def context_with(client: ControlClient, link: JoinLink) -> Context:
    context = Context(Options(Path("unused"), link))
    context.client = client
    return context


async def test_the_line_is_measured(tmp_path: Path) -> None:
    """A real connection has a speed in each direction."""
    async with serving(tmp_path) as coordinator, connected(coordinator) as client:
        outcome = await check_bandwidth(context_with(client, coordinator.link))
        assert outcome.verdict in (Verdict.OK, Verdict.WARNING)
        assert outcome.data["up_bytes_per_second"] > 0
        assert outcome.data["down_bytes_per_second"] > 0


async def test_a_slow_line_is_not_measured_for_ever(tmp_path: Path) -> None:
    """When the time is over, what has been sent and received is enough."""
    ticks: Iterator[int] = count()
    async with serving(tmp_path) as coordinator, connected(coordinator) as client:
        speed = await measure_line(client.open_probe(20.0), 3.0, lambda: float(next(ticks)))
        assert 0 < speed.up < 200_000
        assert 0 < speed.down < 200_000


@pytest.mark.usefixtures("no_patience")
async def test_a_coordinator_that_is_busy_is_no_failure(tmp_path: Path) -> None:
    """Who asks too often reads when to ask again."""
    async with serving(tmp_path) as coordinator, connected(coordinator) as client:
        context = context_with(client, coordinator.link)
        outcomes = [await check_bandwidth(context) for _ in range(PROBES_PER_MINUTE + 1)]
        assert outcomes[-1].verdict is Verdict.SKIPPED
        assert "wait" in outcomes[-1].found


async def test_a_coordinator_that_miscounts_is_not_believed(tmp_path: Path) -> None:
    """Bytes that were not sent make no speed."""
    async with strange_coordinator(tmp_path, SilentCoordinator()) as link:
        client = await ControlClient.connect(link, time.time)
        with pytest.raises(UnreachableError):
            await measure_line(client.open_probe(20.0), 5.0, time.monotonic)
        assert (await check_bandwidth(context_with(client, link))).verdict is Verdict.SKIPPED
        await client.close()


def test_the_slower_direction_decides() -> None:
    """A fast download does not make up for an upload that others wait for."""
    assert judge_line(LineSpeed(SLOW_BYTES_PER_SECOND, 1e9)).verdict is Verdict.OK
    slow = judge_line(LineSpeed(SLOW_BYTES_PER_SECOND - 1, 1e9))
    assert slow.verdict is Verdict.WARNING
    assert "2.0 Mbit/s up, 8,000.0 Mbit/s down" in slow.found


def test_a_rate_is_always_finite() -> None:
    """Also where no time seems to have passed."""
    assert rate(1000, 2.0) == 500.0
    assert rate(1000, 0.0) == 1e6
