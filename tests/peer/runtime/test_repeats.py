"""Repeated lines: a storm becomes few lines with right counts, and an ordinary log loses nothing."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator

import pytest

from peer.runtime.repeats import (
    MAX_MESSAGE_CHARS,
    MAX_TRACE_CHARS,
    MOST_CAUSES,
    MOST_NEWS,
    MOST_WARNINGS,
    TRACE_S,
    WINDOW_S,
    RepeatFilter,
    Repeats,
)
from tests.support.clocks import Clock


@pytest.fixture
def stepped() -> Clock:
    return Clock(0.0)


@pytest.fixture
def log(written: io.StringIO, stepped: Clock) -> Iterator[logging.Logger]:
    """A logger whose lines are their texts."""
    handler = logging.StreamHandler(written)
    handler.addFilter(RepeatFilter(stepped))
    logger = logging.Logger("swarm", logging.INFO)
    logger.addHandler(handler)
    yield logger
    handler.close()


def lines(written: io.StringIO) -> list[str]:
    return written.getvalue().splitlines()


def test_a_storm_of_several_causes_is_few_lines_with_right_counts(
    log: logging.Logger, written: io.StringIO, stepped: Clock
) -> None:
    """Of 20 000 in ten minutes each cause has its first lines, then one a minute, which counts the others."""
    for number in range(20_000):
        stepped.now = number * 600 / 20_000
        if number % 2:
            log.warning("the disk is full")
        else:
            log.warning("peer %d is lost", number)
    said = lines(written)
    assert len(said) == 2 * (MOST_WARNINGS + 9)
    assert said[:3] == ["peer 0 is lost", "the disk is full", "peer 2 is lost"]
    for cause in "disk", "lost":
        counts = [int(count) for line in said for count in re.findall(rf"{cause}.*the last of (\d+) more", line)]
        assert sum(counts) + MOST_WARNINGS == pytest.approx(10_000 * 9 / 10, abs=2)  # the last minute is not over


def test_an_ordinary_log_loses_nothing_and_keeps_its_order(
    log: logging.Logger, written: io.StringIO, stepped: Clock
) -> None:
    """Steps of half a minute, a warning with each."""
    expected = []
    for step in range(500):
        stepped.now = step * 30.0
        log.info("step %d: group of 3", step)
        log.warning("step %d: a round failed", step)
        expected += [f"step {step}: group of 3", f"step {step}: a round failed"]
    assert lines(written) == expected


def test_information_is_left_out_later_than_trouble(log: logging.Logger, written: io.StringIO) -> None:
    """A fast run's steps are news; as many warnings from one place are a storm."""
    for number in range(100):
        log.info("step %d", number)
        log.warning("peer %d is lost", number)
    assert sum(line.startswith("step") for line in lines(written)) == MOST_NEWS
    assert sum(line.startswith("peer") for line in lines(written)) == MOST_WARNINGS


def test_a_failure_is_known_by_its_place_and_class(log: logging.Logger, written: io.StringIO) -> None:
    """Another class at the same place is another cause, with its trace."""
    for number in range(20):
        for kind in ConnectionError, ValueError:
            try:
                raise kind(f"attempt {number}")
            except Exception:
                log.exception("a poll failed")
    assert written.getvalue().count("ConnectionError: attempt") == MOST_WARNINGS
    assert written.getvalue().count("ValueError: attempt") == MOST_WARNINGS


def test_a_trace_is_written_once_an_hour(log: logging.Logger, written: io.StringIO, stepped: Clock) -> None:
    """The lines between have the exception alone: four traces a minute would fill a volunteer's disk within weeks."""
    for second in range(0, round(TRACE_S), 15):
        stepped.now = float(second)
        try:
            raise ConnectionError("refused")
        except ConnectionError:
            log.exception("a poll failed")
    assert written.getvalue().count("ConnectionError: refused") == TRACE_S / 15
    assert written.getvalue().count("Traceback") == 1
    assert lines(written)[-2:] == ["a poll failed", "ConnectionError: refused"]


def test_what_fails_again_after_a_storm_is_told_as_new(
    log: logging.Logger, written: io.StringIO, stepped: Clock
) -> None:
    """With its trace, and without the count of lines that were left out days before."""
    for moment in (*[0.0] * (MOST_WARNINGS + 3), *[48 * TRACE_S] * 2):
        stepped.now = moment
        try:
            raise ConnectionError(f"refused at {moment:.0f}")
        except ConnectionError:
            log.exception("a poll failed")
    storm, _, later = written.getvalue().rpartition("a poll failed\nTraceback")
    assert storm.count("Traceback") == 1
    assert later.count("ConnectionError: refused at 172800") == 2
    assert "more like it" not in written.getvalue()


def test_a_failure_that_cannot_be_shown_is_logged(log: logging.Logger, written: io.StringIO) -> None:
    """An exception whose `repr` raises does not fail the caller."""

    class HiddenError(Exception):
        def __repr__(self) -> str:
            raise ValueError("no text")

        __str__ = __repr__

    try:
        raise HiddenError
    except HiddenError:
        log.exception("a poll failed")
    assert "a poll failed" in written.getvalue()
    assert "HiddenError" in written.getvalue()


@pytest.mark.parametrize("name", ["__cause__", "__notes__", "text"])
def test_a_failure_whose_attributes_raise_is_logged(
    log: logging.Logger, written: io.StringIO, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its class, without failing the caller."""

    def refuse(_: object) -> str:
        raise ValueError("no text")

    failure = type("HiddenError", (SyntaxError,), {name: property(refuse)})("hidden")
    log.error("a poll failed", exc_info=failure)
    assert lines(written)[0] == "a poll failed"
    assert "HiddenError" in lines(written)[-1]
    assert capsys.readouterr().err == ""


def test_long_texts_are_cut(log: logging.Logger, written: io.StringIO) -> None:
    """A message at its end, a trace in its middle."""
    try:
        raise ValueError("y" * 100_000)
    except ValueError:
        log.exception("x" * 100_000)
    assert len(written.getvalue()) < MAX_MESSAGE_CHARS + MAX_TRACE_CHARS + 100


def test_a_cause_is_told_as_often_as_wanted_and_once_in_each_window_of_a_storm() -> None:
    """With the number left out before; after a quiet window all of them are told again."""
    clock = Clock(0.0)
    repeats = Repeats(clock, most=2)
    assert [repeats.take("fault") for _ in range(4)] == [0, 0, None, None]
    assert repeats.take("another") == 0
    clock.now = WINDOW_S
    assert [repeats.take("fault") for _ in range(2)] == [2, None]
    clock.now = 2 * WINDOW_S
    assert repeats.take("fault") == 1
    clock.now = 3 * WINDOW_S
    assert [repeats.take("fault") for _ in range(3)] == [0, 0, None]


def test_remembered_causes_are_bounded() -> None:
    """Whatever peers name as causes; what is forgotten is told again."""
    repeats = Repeats(Clock(0.0))
    for number in range(MOST_CAUSES):
        assert repeats.take(number) == 0
    assert repeats.take(0) is None
    assert repeats.take(MOST_CAUSES) == 0
    assert repeats.take(0) == 0
