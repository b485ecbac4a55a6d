"""Counters for a peer's traffic, and a volunteer's rate limits.

Gradients, states, the run's files and remote training data are counted, including protocol headers.
DHT and session traffic, about ten kilobytes per second, is not counted. The download limit delays
reading from the stream, so that the transport's flow control slows down the sender.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from auth.errors import ConfigError
from peer.network.least_rate import LEAST_BYTES_PER_S

HEADERS = 1.05  # measured bytes sent per byte of payload, including Ethernet, IP, TCP, Noise and yamux headers
# The next two values were fitted to real swarms by `benchmarks/swarm/rehearsal.py` at f9c99822.
ON_THE_LINE = 1.06  # bytes sent per byte of a part or state: headers and retransmissions
BOTH_WAYS = 0.25  # fraction of speed lost when both directions are busy, as acknowledgements queue behind data
BURST_S = 0.25  # largest burst after a pause, in seconds at the rate limit
Message = TypeVar("Message", bound=Any)  # a protobuf message, whose `ByteSize` is counted
BYTES_PER_S_OF_MBIT = 125_000
STATES_SHARE = 0.5  # maximum fraction of bandwidth for sending states
PASSED_WITHIN = 0.75  # gradients must fit in this fraction of a round's timeout, because measurements are rough
LEAST_STATE_RATE = 1.6 * LEAST_BYTES_PER_S  # sending rate of a state even after many averages; see `at_least_rate`


class Throttle:
    """A byte counter and rate limit for one direction, shared with processes forked later."""

    def __init__(self, bytes_per_s: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._bytes_per_s, self._clock = bytes_per_s, clock
        self._paid_at = multiprocessing.Value("d", 0.0)  # time from which the bytes counted so far are within the limit
        self._total_bytes = multiprocessing.Value("q", 0)

    @property
    def total_bytes(self) -> int:
        """The number of bytes counted so far, including headers."""
        return int(self._total_bytes.value)

    def seconds_for(self, size_bytes: int) -> float:
        """Return the time in seconds to transfer these bytes at the rate limit, or 0 without a limit."""
        return 0.0 if self._bytes_per_s is None else size_bytes * HEADERS / self._bytes_per_s

    def reserve(self, size_bytes: int) -> float:
        """Count bytes; return the seconds to wait before sending or after receiving them."""
        travelling = round(size_bytes * HEADERS)
        with self._total_bytes.get_lock():
            self._total_bytes.value += travelling
            if self._bytes_per_s is None:
                return 0.0
            now = self._clock()
            self._paid_at.value = max(self._paid_at.value, now - BURST_S) + travelling / self._bytes_per_s
            return float(max(0.0, self._paid_at.value - now))


@dataclass(frozen=True)
class Traffic:
    """The throttles of both directions."""

    up: Throttle = field(default_factory=Throttle)
    down: Throttle = field(default_factory=Throttle)
    states: Throttle = field(default_factory=Throttle)  # additional limit for states and missed averages

    @classmethod
    def of_donor(cls, line: float | None, clock: Callable[[], float] = time.monotonic) -> Traffic:
        """Return the throttles of a peer that sends states; `line`: its bandwidth in bytes/s."""
        return cls(states=Throttle(None if line is None else STATES_SHARE * line, clock))

    def passed(self) -> tuple[float, float]:
        """Return the bytes sent and received so far, without headers."""
        return self.up.total_bytes / HEADERS, self.down.total_bytes / HEADERS

    async def sending(self, messages: AsyncIterator[Message]) -> AsyncIterator[Message]:
        """Forward messages within the upload limit."""
        async for message in messages:
            await asyncio.sleep(self.up.reserve(message.ByteSize()))
            yield message

    async def sending_state(self, messages: AsyncIterator[Message]) -> AsyncIterator[Message]:
        """Forward messages of a state, within the upload limit and the limit for states."""
        async for message in self.sending(messages):
            size = message.ByteSize()
            await asyncio.sleep(min(size / LEAST_STATE_RATE, self.states.reserve(size)))
            yield message

    async def sending_average(self, messages: AsyncIterator[Message]) -> AsyncIterator[Message]:
        """Forward messages of a missed step's average, also counted towards the limit for states."""
        async for message in self.sending(messages):
            self.states.reserve(message.ByteSize())
            yield message

    async def receiving(self, messages: AsyncIterator[Message]) -> AsyncIterator[Message]:
        """Forward messages within the download limit."""
        async for message in messages:
            await asyncio.sleep(self.down.reserve(message.ByteSize()))
            yield message


def passes_in_time(gradient_bytes: int, rate: float | None, longest_s: float) -> bool:
    """Return whether a connection can transfer the gradients in a round of `longest_s` seconds.

    The slowest connection determines a round's duration, so a peer that is too slow makes every
    round fail. `rate` is in bytes per second; for an unknown rate (None or 0), the result is True.
    """
    return not rate or gradient_bytes <= PASSED_WITHIN * longest_s * rate


def require_rate(option: str, bytes_per_s: float | None, gradient_bytes: int, timeout_s: float) -> None:
    """Raise `ConfigError` if a volunteer's rate limit is too low for averaging."""
    if bytes_per_s is not None and not passes_in_time(gradient_bytes, bytes_per_s / HEADERS, timeout_s):
        least = gradient_bytes * HEADERS / (PASSED_WITHIN * timeout_s)
        raise ConfigError(
            f"`{option}` ({bytes_per_s / BYTES_PER_S_OF_MBIT:g} Mbit/s) is too slow for this run: a step's "
            f"gradients are {gradient_bytes / 1e6:.1f} MB, and a round of averaging lasts {timeout_s:g} s at most. "
            f"Allow {least / BYTES_PER_S_OF_MBIT + 0.05:.1f} Mbit/s, or help a run with a smaller model."
        )
