"""What is done about a part of a source that cannot be read."""

from __future__ import annotations

import threading

import pytest

from auth.errors import ConfigError
from peer.data.sources.faults import ATTEMPTS, Pauses, Setbacks, SourcePlace, StreamClosed, describe, retrying

UNITS = 10


def test_units_come_one_after_another_and_begin_anew() -> None:
    """Behind the last one is the next epoch's first."""
    assert SourcePlace(2, 5, 3, {"number": 1}).next_unit(UNITS) == SourcePlace(2, 5, 4)
    assert SourcePlace(2, 5, 9, {"number": 1}).next_unit(UNITS) == SourcePlace(3)


def test_single_units_are_left_out_without_a_rest() -> None:
    """As long as something is read in between."""
    setbacks = Setbacks()
    for turn in range(5):
        assert setbacks.failed(SourcePlace(turn=turn), UNITS) == (SourcePlace(turn=turn + 1), False)
        setbacks.read_something()


def test_after_several_in_a_row_the_source_rests_and_goes_back_to_the_first_once() -> None:
    """The second time it goes on: those units are really bad, and the others have a right to be read."""
    setbacks = Setbacks()
    failures = [setbacks.failed(SourcePlace(turn=turn), UNITS) for turn in (4, 5, 6)]
    assert failures == [(SourcePlace(turn=5), False), (SourcePlace(turn=6), False), (SourcePlace(turn=4), True)]
    again = [setbacks.failed(SourcePlace(turn=turn), UNITS) for turn in (4, 5, 6)]
    assert again[-1] == (SourcePlace(turn=7), True)


def test_a_source_of_one_unit_rests_at_once() -> None:
    """There is nothing else to read."""
    assert Setbacks().failed(SourcePlace(), 1) == (SourcePlace(), True)


def test_what_fails_is_tried_again_and_told_before_each_wait() -> None:
    """The last error is raised when all attempts have failed."""
    waits: list[float] = []
    told: list[str] = []
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise OSError("away")

    with pytest.raises(OSError, match="away"):
        retrying(waits.append, lambda error: told.append(str(error)))(fail)
    assert (len(calls), len(waits), told) == (ATTEMPTS, ATTEMPTS - 1, ["away"] * (ATTEMPTS - 1))


@pytest.mark.parametrize("error", [ConfigError("wrong path"), StreamClosed()])
def test_what_no_waiting_mends_is_not_tried_again(error: Exception) -> None:
    """A wrong address stays wrong, and a closed stream closed."""
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise error

    with pytest.raises(type(error)):
        retrying(lambda _: None, lambda _: None)(fail)
    assert len(calls) == 1


def test_a_pause_ends_when_the_stream_is_closed() -> None:
    """Whoever waits is let go at once, and so is whoever comes later."""
    pauses = Pauses()
    pauses(0)
    threading.Timer(0.05, pauses.close).start()
    with pytest.raises(StreamClosed):
        pauses(3600)
    with pytest.raises(StreamClosed):
        pauses(0)


def test_an_error_becomes_part_of_a_sentence() -> None:
    """One line, with its kind, not without end."""
    assert describe(OSError("no\n route")) == "OSError: no route"
    assert describe(EOFError()) == "EOFError"
    assert len(describe(OSError("x" * 1000))) < 320
