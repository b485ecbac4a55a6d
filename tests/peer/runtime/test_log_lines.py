"""Folding of log lines: storms become few lines with right counts, and ordinary logs lose nothing."""

from __future__ import annotations

import io
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from peer.runtime.log_lines import (
    BURST_BYTES,
    BYTES_AN_HOUR,
    MAX_MESSAGE_CHARS,
    MAX_TRACE_CHARS,
    MOST_CAUSES,
    MOST_NEWS,
    MOST_TEXTS,
    WINDOW_S,
    Budget,
    Folding,
    FoldingHandler,
    Telling,
    template_of,
)
from tests.support.clocks import Clock


class Later:
    """Keeps what is to be called later, for the test to call it."""

    def __init__(self) -> None:
        self.wanted: list[object] = []

    def __call__(self, delay_s: float, action: object) -> None:
        assert delay_s == WINDOW_S
        self.wanted.append(action)

    def now(self) -> None:
        wanted, self.wanted = self.wanted, []
        for action in wanted:
            action()  # type: ignore[operator]


@pytest.fixture
def stepped() -> Clock:
    return Clock(0.0)


@pytest.fixture
def later() -> Later:
    return Later()


@pytest.fixture
def log(written: io.StringIO, stepped: Clock, later: Later) -> Iterator[logging.Logger]:
    """A logger whose lines are their texts."""
    handler = FoldingHandler(written, stepped, later)
    logger = logging.Logger("swarm", logging.INFO)
    logger.addHandler(handler)
    yield logger
    handler.close()


def lines(written: io.StringIO) -> list[str]:
    return written.getvalue().splitlines()


def end(log: logging.Logger) -> None:
    """End the process, as far as its log is concerned."""
    log.handlers[0].close()


def told_in_all(said: list[str], pattern: str) -> int:
    """Lines of this kind, those that were counted included."""
    found = [line for line in said if re.search(pattern, line)]
    counts = [int(count[1]) for line in found if (count := re.search(r"the last of (\d+) more", line))]
    return len(found) - len(counts) + sum(counts)


def test_a_storm_of_several_causes_is_few_lines_with_right_counts(
    log: logging.Logger, written: io.StringIO, stepped: Clock
) -> None:
    """Of 100 000 in ten minutes each cause has its first lines, then one a minute, and none is missed."""
    causes = ("the disk is full", "peer %s is lost", "a call of %d took too long")
    for number in range(100_000):
        stepped.now = number * 600 / 100_000
        template = causes[number % 3]
        log.warning(template, *((number,) if "%" in template else ()))
    end(log)
    said = lines(written)
    assert len(said) <= 3 * (MOST_TEXTS + 10 + 1)
    for pattern, count in (("disk", 33_334), ("lost", 33_333), ("too long", 33_333)):
        assert told_in_all(said, pattern) == count
    assert said[:4] == ["the disk is full", "peer 1 is lost", "a call of 2 took too long", "peer 4 is lost"]


def test_an_ordinary_log_loses_nothing_and_keeps_its_order(
    log: logging.Logger, written: io.StringIO, stepped: Clock
) -> None:
    """Steps of ten seconds, a warning with each, and now and then another text of the same template."""
    expected = []
    for step in range(500):
        stepped.now = step * 30.0
        log.info("step %d: group of 3", step)
        log.warning("step %d: a round failed", step)
        expected += [f"step {step}: group of 3", f"step {step}: a round failed"]
    end(log)
    assert lines(written) == expected


def test_information_is_folded_later_than_trouble(log: logging.Logger, written: io.StringIO) -> None:
    """A fast run's steps are news; the same number of warnings of one template is a storm."""
    for number in range(100):
        log.info("step %d", number)
        log.warning("peer %d is lost", number)
    assert sum(line.startswith("step") for line in lines(written)) == MOST_NEWS
    assert sum(line.startswith("peer") for line in lines(written)) == MOST_TEXTS


def test_counts_are_told_each_minute_though_nothing_else_is_logged(
    log: logging.Logger, written: io.StringIO, stepped: Clock, later: Later
) -> None:
    """A storm that ends leaves no number untold, and a cause that comes again after a silence is told at once."""
    for _ in range(10):
        log.error("no answer")
    stepped.now = WINDOW_S
    later.now()
    assert lines(written) == ["no answer", "no answer (the last of 9 more like it)"]
    assert later.wanted == []
    stepped.now = 3 * WINDOW_S
    log.error("no answer")
    assert lines(written)[2:] == ["no answer"]


def test_a_failure_is_known_by_its_class_and_place(log: logging.Logger, written: io.StringIO) -> None:
    """The same line from another place, or of another class, is another cause, with its trace."""

    def fail(kind: type[Exception], number: int) -> None:
        try:
            raise kind(f"attempt {number}")
        except Exception:
            log.exception("a poll failed")

    for number in range(20):
        fail(ConnectionError, number)
        fail(ValueError, number)
    assert written.getvalue().count("ConnectionError: attempt") == MOST_TEXTS
    assert written.getvalue().count("ValueError: attempt") == MOST_TEXTS


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


def test_any_fault_fits_into_its_bytes_an_hour(log: logging.Logger, written: io.StringIO, stepped: Clock) -> None:
    """Each line another cause with a long trace: the log says once a minute how many lines it left out."""
    count = 4000
    for number in range(count):
        stepped.now = number * 3600 / count
        letters = "".join(chr(97 + int(digit)) for digit in str(number))
        log.error("%s failed: %s", letters, "x" * 500)
        log.error(f"{letters} failed {'and again ' * 10}")
    said = written.getvalue()
    assert len(said.encode()) <= BYTES_AN_HOUR
    left_out = [int(found[1]) for found in re.finditer(r"^(\d+) lines were left out", said, re.MULTILINE)]
    assert 50 <= len(left_out) <= 61
    end(log)


def test_a_new_cause_is_told_while_another_floods(log: logging.Logger, written: io.StringIO) -> None:
    """A part of the budget is for them alone."""
    for number in range(MOST_NEWS):
        log.info("page %d: %s", number, "x" * 1000)
    log.error("something else broke")
    assert sum(line.startswith("page") for line in lines(written)) < MOST_NEWS
    assert lines(written)[-1] == "something else broke"


def test_a_budget_fills_evenly() -> None:
    """What was spent comes back within the hour; never more than a burst at once."""
    budget = Budget(0.0)
    assert budget.spend(0.0, BURST_BYTES, 0)
    assert not budget.spend(0.0, 1, 0)
    assert budget.spend(60.0, 1000, 0)
    assert not budget.spend(1e6, BURST_BYTES + 1, 0)
    assert budget.left_out == 2


def test_what_is_remembered_is_bounded_and_its_counts_are_not_lost() -> None:
    """The cause that was first is forgotten first, and told before."""
    folding: Folding[str] = Folding()
    for _ in range(3):
        folding.take(0.0, "first", "first", "first")
    for number in range(MOST_CAUSES):
        assert folding.take(1.0, number, "another", "another") is Telling.FIRST
    assert folding.due(1.0) == [("first", 2)]
    assert folding.take(1.0, "first", "first", "first") is Telling.FIRST


def test_long_texts_are_cut(log: logging.Logger, written: io.StringIO) -> None:
    """A message at its end, a trace in its middle."""
    try:
        raise ValueError("y" * 100_000)
    except ValueError:
        log.exception("x" * 100_000)
    assert len(written.getvalue()) < MAX_MESSAGE_CHARS + MAX_TRACE_CHARS + 100


def test_many_threads_lose_no_line(log: logging.Logger, written: io.StringIO) -> None:
    """Eight threads of a thousand lines each: as many are told or counted."""

    def storm() -> None:
        for _ in range(1000):
            log.warning("no place in the queue")

    threads = [threading.Thread(target=storm) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    end(log)
    assert told_in_all(lines(written), "queue") == 8000


def test_counts_are_told_at_the_end_of_a_process_and_a_fork_counts_for_itself() -> None:
    """Also by a process that ends at once, as worker and keeper do, after its log was closed."""
    program = """
import logging, os
from peer.runtime.log_lines import FoldingHandler
from peer.runtime.processes import exit_now
logging.basicConfig(level=logging.INFO, handlers=[FoldingHandler()])
for _ in range(5):
    logging.warning("before")
if (child := os.fork()) == 0:
    for _ in range(3):
        logging.warning("in the fork")
    exit_now(0)
os.waitpid(child, 0)
exit_now(0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == [
        "WARNING:root:before",
        "WARNING:root:in the fork",
        "WARNING:root:in the fork (the last of 2 more like it)",
        "WARNING:root:before (the last of 4 more like it)",
    ]


def test_numbers_identifiers_and_quotations_do_not_tell_causes_apart() -> None:
    """Libraries put these into the text itself."""
    first = template_of("Peer 12D3KooWabc4 at port 31337 said 'no' after 3.5s")
    assert first == template_of('Peer QmXyz99 at port 4 said "yes, but" after 17.25s')
    assert first != template_of("Peer 12D3KooWabc4 at port 31337 was lost")
