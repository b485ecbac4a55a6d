"""Traffic of a peer: counted, and held below the volunteer's rates.

Gradients, states, files of the run and text of remote sources are counted, each with the headers that it travels under.
The traffic of DHT and session, some ten kilobytes a second, is not. A rate for received bytes works by taking them off
the stream late, so that the sender is held up by the transport's own flow control.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from auth.errors import ConfigError

HEADERS = 1.05  # Ethernet, IP, TCP, Noise and yamux, measured against what they carry
# Fitted to real swarms on shaped lines, by `benchmarks/swarm/rehearsal.py` at commit f9c99822:
ON_THE_LINE = 1.06  # bytes for each byte of a part or state: frames of IP, TCP and libp2p, and what is sent twice
BOTH_WAYS = 0.25  # of its speed that a direction loses to acknowledgements that queue behind the data of the other one
BURST_S = 0.25  # so much may pass at once after a silence, in seconds of the rate
Message = TypeVar("Message", bound=Any)  # a protobuf message, which has a `ByteSize`
BYTES_PER_S_OF_MBIT = 125_000
STATES_SHARE = 0.5  # of a donor's line
PASSED_WITHIN = 0.75  # of a round's longest limit: lines are measured roughly, and carry other traffic
LONGEST_PAUSE_S = 5.0  # in a state, for the sake of averages: its parts come faster than the least rate even so


class Throttle:
    """A count and limit of bytes in one direction, for this process and all that it forks afterwards."""

    def __init__(self, bytes_per_s: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._bytes_per_s, self._clock = bytes_per_s, clock
        self._paid_at = multiprocessing.Value("d", 0.0)  # when the rate has made up for all that has passed
        self._total_bytes = multiprocessing.Value("q", 0)

    @property
    def total_bytes(self) -> int:
        """The bytes that have passed, with their headers."""
        return int(self._total_bytes.value)

    def seconds_for(self, size_bytes: int) -> float:
        """Return the seconds that so many bytes take because of the rate."""
        return 0.0 if self._bytes_per_s is None else size_bytes * HEADERS / self._bytes_per_s

    def reserve(self, size_bytes: int) -> float:
        """Count so many bytes; returns how many seconds to wait before they are sent, or after they were received."""
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
    states: Throttle = field(default_factory=Throttle)  # of `up`, what states and averages of missed steps take

    @classmethod
    def of_donor(cls, line: float | None, clock: Callable[[], float] = time.monotonic) -> Traffic:
        """Return the traffic of a peer that gives states over a line of so many bytes a second; None: not known."""
        return cls(states=Throttle(None if line is None else STATES_SHARE * line, clock))

    def passed(self) -> tuple[float, float]:
        """Return the bytes sent and received so far, without their headers."""
        return self.up.total_bytes / HEADERS, self.down.total_bytes / HEADERS

    async def sending(self, messages: AsyncIterator[Message]) -> AsyncIterator[Message]:
        """Pass on messages, each when it may be sent."""
        async for message in messages:
            await asyncio.sleep(self.up.reserve(message.ByteSize()))
            yield message

    async def sending_state(self, messages: AsyncIterator[Message]) -> AsyncIterator[Message]:
        """Pass on messages of a state, each when it may be sent and the share for states has room."""
        async for message in self.sending(messages):
            await asyncio.sleep(min(LONGEST_PAUSE_S, self.states.reserve(message.ByteSize())))
            yield message

    async def sending_average(self, messages: AsyncIterator[Message]) -> AsyncIterator[Message]:
        """Pass on messages of a missed step's average: states make room for them, afterwards."""
        async for message in self.sending(messages):
            self.states.reserve(message.ByteSize())
            yield message

    async def receiving(self, messages: AsyncIterator[Message]) -> AsyncIterator[Message]:
        """Pass on messages so slowly that no more than the rate are received."""
        async for message in messages:
            await asyncio.sleep(self.down.reserve(message.ByteSize()))
            yield message


def passes_in_time(gradient_bytes: int, rate: float | None, longest_s: float) -> bool:
    """Return whether a line passes its own peer's gradients within a round that lasts `longest_s` at most.

    A round is as fast as its slowest line, so a peer whose line does not would fail each round for all. `rate`: bytes
    per second of the line; a line of unknown rate passes.
    """
    return not rate or gradient_bytes <= PASSED_WITHIN * longest_s * rate


def require_rate(option: str, bytes_per_s: float | None, gradient_bytes: int, timeout_s: float) -> None:
    """Raise `ConfigError` for a rate, set by the volunteer, at which this peer would only stand by."""
    if bytes_per_s is not None and not passes_in_time(gradient_bytes, bytes_per_s / HEADERS, timeout_s):
        least = gradient_bytes * HEADERS / (PASSED_WITHIN * timeout_s)
        raise ConfigError(
            f"`{option}` ({bytes_per_s / BYTES_PER_S_OF_MBIT:g} Mbit/s) is too slow for this run: a step's "
            f"gradients are {gradient_bytes / 1e6:.1f} MB, and a round of averaging lasts {timeout_s:g} s at most. "
            f"Allow {least / BYTES_PER_S_OF_MBIT + 0.05:.1f} Mbit/s, or help a run with a smaller model."
        )
