"""Handling of unreadable units by retrying, skipping, or waiting.

A unit is retried several times from the record at which it failed, and then skipped until the next
epoch. If several units in a row fail, the cause is probably the network or the source: the source
pauses, and then returns to the first failed unit, once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from pydantic import ConfigDict, NonNegativeInt
from pydantic.dataclasses import dataclass
from tenacity import RetryCallState, Retrying, retry_if_not_exception_type, stop_after_attempt, wait_random_exponential

from auth.errors import ConfigError
from peer.data.sources.units import State

ATTEMPTS = 5
FIRST_WAIT_S = 1.0  # upper limit of the first wait, doubled on each retry
LONGEST_WAIT_S = 30.0
REST_S = 120.0
UNITS_IN_A_ROW = 3


class StreamClosed(Exception):  # noqa: N818 - not an error: the reader is no longer needed
    """Raised when a stream is closed while a caller waits for it."""


class Pauses:
    """A wait that raises `StreamClosed` as soon as the stream is closed."""

    def __init__(self) -> None:
        self._closed = threading.Event()

    def __call__(self, seconds: float) -> None:
        if self._closed.wait(seconds):
            raise StreamClosed

    def close(self) -> None:
        self._closed.set()


@dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class SourcePlace:
    """A device's position in a source."""

    epoch: NonNegativeInt = 0
    block: NonNegativeInt = 0  # number of the block within the epoch
    turn: NonNegativeInt = 0  # index in the device's order of units
    state: State | None = None  # position in the unit; None: at its beginning

    def next_unit(self, units: int) -> SourcePlace:
        """Return the beginning of the next unit, which may be in the next epoch."""
        if self.turn + 1 < units:
            return replace(self, turn=self.turn + 1, state=None)
        return SourcePlace(self.epoch + 1)


class Setbacks:
    """A tracker of units that failed since the last successful read, to select the next unit."""

    def __init__(self) -> None:
        self._failed: list[SourcePlace] = []
        self._went_back = False

    def read_something(self) -> None:
        """Clear the failed units, because a successful read shows that the source works."""
        self._failed.clear()
        self._went_back = False

    def failed(self, place: SourcePlace, units: int) -> tuple[SourcePlace, bool]:
        """Return the next position after all attempts at `place` failed, and whether to pause."""
        self._failed.append(place)
        if len(self._failed) < min(UNITS_IN_A_ROW, units):
            return place.next_unit(units), False
        first = self._failed[0]
        self._failed.clear()
        self._went_back = not self._went_back
        return (first if self._went_back else place.next_unit(units)), True


def retrying(pause: Callable[[float], None], before_wait: Callable[[BaseException], None]) -> Retrying:
    """Return a `Retrying` that makes up to `ATTEMPTS` attempts, then raises the last error."""

    def tell(call: RetryCallState) -> None:
        error = call.outcome.exception() if call.outcome else None
        if error is not None:
            before_wait(error)

    return Retrying(
        retry=retry_if_not_exception_type((StreamClosed, ConfigError)),
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_random_exponential(multiplier=FIRST_WAIT_S, max=LONGEST_WAIT_S),
        sleep=pause,
        before_sleep=tell,
        reraise=True,
    )


def describe(error: BaseException) -> str:
    """Describe an error for use in a sentence; for fsspec's missing files, describe the cause."""
    if isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text:.300}" if text else type(error).__name__
