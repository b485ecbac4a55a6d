"""Bytes are counted, and held below the volunteer's rates."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
from hivemind.proto import averaging_pb2

from auth.errors import ConfigError
from peer.limits.limits import Limits
from peer.limits.policy import Readings
from peer.limits.usage import UsageMeter
from peer.network.traffic import BURST_S, HEADERS, Throttle, Traffic, passes_in_time, require_rate
from peer.reporting.messages import Transferred
from tests.support.clocks import Clock
from tests.support.waiting import PATIENCE_S

RATE = 1000.0  # bytes a second


def test_a_rate_holds_over_time() -> None:
    """Whatever the sizes, what has passed is at most the rate times the time, and a short burst more."""
    clock = Clock(100.0)
    throttle = Throttle(RATE, clock)
    for size in (100, 5000, 1, 700, 3000, 3000):
        clock.now += throttle.reserve(size)
        assert throttle.total_bytes <= RATE * (clock.now - 100.0 + BURST_S) + 1
    assert throttle.total_bytes == pytest.approx(RATE * (clock.now - 100.0 + BURST_S), rel=0.01)


def test_a_silence_earns_no_more_than_a_burst() -> None:
    """After an hour nobody may send an hour's worth at once."""
    clock = Clock()
    throttle = Throttle(RATE, clock)
    throttle.reserve(1000)
    clock.now += 3600
    assert throttle.reserve(1000) == pytest.approx(HEADERS - BURST_S)


def test_without_a_rate_everything_is_counted_and_nothing_waits() -> None:
    """Headers are counted, too."""
    throttle = Throttle()
    assert [throttle.reserve(1000) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert throttle.total_bytes == pytest.approx(3000 * HEADERS)
    assert throttle.seconds_for(10**9) == 0.0


FORKING = f"""
import multiprocessing
from peer.network.traffic import Throttle
throttle = Throttle({RATE}, lambda: 100.0)
context = multiprocessing.get_context("fork")
others = [context.Process(target=throttle.reserve, args=(1000,)) for _ in range(3)]
for other in others:
    other.start()
for other in others:
    other.join()
print(throttle.total_bytes, throttle.reserve(1000))
"""


def test_forked_processes_share_one_rate() -> None:
    """The averagers of gradients and of the state are processes of their own, and the line is one.

    They are forked from a process of its own: in this one other tests may have started threads.
    """
    done = subprocess.run(
        [sys.executable, "-c", FORKING], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    total_bytes, wait_s = map(float, done.stdout.split())
    assert total_bytes == pytest.approx(3000 * HEADERS)
    assert wait_s == pytest.approx(4 * HEADERS - BURST_S, rel=1e-6)


async def test_messages_pass_whole_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sending waits before a message, receiving after it, each for what it weighs."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    messages = [averaging_pb2.AveragingData(group_id=bytes(500 * n)) for n in (1, 2, 3)]

    async def stream() -> AsyncIterator[averaging_pb2.AveragingData]:
        for message in messages:
            yield message

    clock = Clock()
    traffic = Traffic(Throttle(RATE, clock), Throttle(2 * RATE, clock))
    assert [message async for message in traffic.sending(stream())] == messages
    assert [message async for message in traffic.receiving(stream())] == messages
    sizes = [message.ByteSize() for message in messages]
    assert traffic.up.total_bytes == traffic.down.total_bytes == pytest.approx(sum(sizes) * HEADERS, rel=0.01)
    assert slept[2] == pytest.approx(sum(sizes) * HEADERS / RATE - BURST_S, rel=0.01)
    assert slept[5] == pytest.approx(sum(sizes) * HEADERS / (2 * RATE) - BURST_S, rel=0.01)


def test_a_line_is_too_slow_that_needs_nearly_all_of_a_round() -> None:
    """Of 36 MB within a minute; a line of which nothing is known is not."""
    lines = (0.4e6, 0.79e6, 0.81e6, 0.0, None)
    assert [passes_in_time(36_000_000, rate, 60.0) for rate in lines] == [False, False, True, True, True]


def test_a_rate_at_which_a_peer_would_only_stand_by_is_refused() -> None:
    """One sentence with the least that will do; no limit is never too slow."""
    require_rate("--max-upload-rate", None, 10**9, 60.0)
    require_rate("--max-upload-rate", 1e6, 10**7, 60.0)
    with pytest.raises(ConfigError, match=r"`--max-upload-rate` \(0.8 Mbit/s\).*10\.0 MB.*60 s.*Allow 1\.9 Mbit/s"):
        require_rate("--max-upload-rate", 1e5, 10**7, 60.0)


def test_a_stays_traffic_adds_up_over_its_workers() -> None:
    """What the agent fetched itself counts, too."""
    account = UsageMeter(Limits())
    account.fetching.reserve(1000)
    for _ in range(2):
        account.take(Transferred(10, 1))
        account.take(Transferred(20, 2))
        account.worker_ended()
    account.take(Transferred(5, 5))
    readings = account.on(Readings(on_battery=True))
    assert (readings.sent_bytes, readings.received_bytes) == (45, 9 + round(1000 * HEADERS))
    assert readings.on_battery
