"""Handling of parts of a source that cannot be read: they are tried again, left out, or waited for.

A unit is tried several times, always from the record at which it failed, and is then left out until the source begins
anew. Where several in a row fail, the fault is the network's or the source's rather than theirs: the source rests, and
goes back to the first of them, once.
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
FIRST_WAIT_S = 1.0  # at most, and twice as long each time
LONGEST_WAIT_S = 30.0
REST_S = 120.0
UNITS_IN_A_ROW = 3


class StreamClosed(Exception):  # noqa: N818 - no error: whoever reads is not wanted any more
    """The stream was closed while it was waited for."""


class Pauses:
    """A wait that ends, with `StreamClosed`, as soon as the stream is closed."""

    def __init__(self) -> None:
        self._closed = threading.Event()

    def __call__(self, seconds: float) -> None:
        if self._closed.wait(seconds):
            raise StreamClosed

    def close(self) -> None:
        self._closed.set()


@dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class SourcePlace:
    """A device's place in a source."""

    epoch: NonNegativeInt = 0
    block: NonNegativeInt = 0  # in the epoch
    turn: NonNegativeInt = 0  # of the device's units
    state: State | None = None  # in the unit; None at its beginning

    def next_unit(self, units: int) -> SourcePlace:
        """Return the beginning of the unit that follows, if need be in the next epoch."""
        if self.turn + 1 < units:
            return replace(self, turn=self.turn + 1, state=None)
        return SourcePlace(self.epoch + 1)


class Setbacks:
    """A memory of the units that failed since something was read last, which decides where to go on."""

    def __init__(self) -> None:
        self._failed: list[SourcePlace] = []
        self._went_back = False

    def read_something(self) -> None:
        """Forget the failed units: something was read since, so the faults were their own."""
        self._failed.clear()
        self._went_back = False

    def failed(self, place: SourcePlace, units: int) -> tuple[SourcePlace, bool]:
        """Return the place to go on at after all attempts failed at `place`, and whether to rest before."""
        self._failed.append(place)
        if len(self._failed) < min(UNITS_IN_A_ROW, units):
            return place.next_unit(units), False
        first = self._failed[0]
        self._failed.clear()
        self._went_back = not self._went_back
        return (first if self._went_back else place.next_unit(units)), True


def retrying(pause: Callable[[float], None], before_wait: Callable[[BaseException], None]) -> Retrying:
    """Make a caller that tries until it succeeds or has failed ATTEMPTS times, then raises the last error."""

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
    """Write an error of some library as part of a sentence, by its cause where fsspec makes it a missing file."""
    if isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text:.300}" if text else type(error).__name__
