"""The handle on a part of the coordinator, with really spawned processes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from auth.errors import DatabaseError, PortTakenError
from coordinator.run.logs import LogFormat, LogStyle
from coordinator.service.parts import FAILED, Part, PartProcess
from tests.support import part_mains
from tests.support.titles import title_of
from tests.support.waiting import is_gone, wait_until

TEXT = LogStyle()


@contextmanager
def started(directory: Path, main: Callable[..., None], style: LogStyle = TEXT) -> Iterator[PartProcess]:
    """A running part, ended with the test."""
    process = PartProcess(Part("stand-in", main), directory, style)
    process.start()
    try:
        yield process
    finally:
        process.end()


def is_ready(process: PartProcess) -> bool:
    """Whether it has said so by now."""
    process.read()
    return process.ready


def test_part_says_ready_and_ends_when_asked(tmp_path: Path) -> None:
    """A part that serves is known to be ready, and SIGTERM ends it."""
    with started(tmp_path, part_mains.runs) as process:
        wait_until("the part is ready", lambda: is_ready(process))
        assert not process.has_ended()
        process.ask_to_stop()
        wait_until("the part has ended", process.has_ended)
        assert process.end() == -signal.SIGTERM


def test_part_is_shown_by_its_name(tmp_path: Path) -> None:
    """Its title is its own name and the run's."""
    with started(tmp_path, part_mains.runs, LogStyle(run="small")) as process:
        wait_until("the part is ready", lambda: is_ready(process))
        titles = [title_of(child.pid) for child in psutil.Process().children()]
        assert "manyhands: stand-in small" in titles


def test_part_tells_why_it_cannot_start(tmp_path: Path) -> None:
    """An error that a person can act on arrives as itself, and its exit code with it."""
    with started(tmp_path, part_mains.fails) as process:
        wait_until("the part has ended", process.has_ended)
        assert process.end() == PortTakenError.exit_code
        assert isinstance(process.error, PortTakenError)
        assert str(process.error) == "Port 7443 is taken."
        assert not process.ready


def test_part_whose_database_is_damaged_says_what_to_do(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """In one sentence, for the supervisor to tell; there is no trace to read."""
    (tmp_path / "manyhands.db").write_bytes(b"no database at all" * 100)
    with started(tmp_path, part_mains.reads_its_database) as process:
        wait_until("the part has ended", process.has_ended)
        assert process.end() == DatabaseError.exit_code
        assert "restore the run from a backup" in str(process.error)
    assert capfd.readouterr().err == ""


def test_part_that_crashes_ends_at_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its log has the trace, and neither its threads nor its processes keep it from ending."""
    with started(tmp_path, part_mains.crashes) as process:
        wait_until("the part has ended", process.has_ended)
        assert process.end() == FAILED
    assert "KeyError: 'a peer that nobody knows'" in capfd.readouterr().err


def test_what_nobody_foresaw_is_logged_like_all_else(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Warnings, a thread's failure and the process's own are an object each, where objects are asked for."""
    with started(tmp_path, part_mains.complains, LogStyle(LogFormat.JSON, "small")) as process:
        wait_until("the part has ended", process.has_ended)
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line["logger"] for line in lines] == ["py.warnings", "coordinator.run.logs", "coordinator.service.parts"]
    assert {(line["process"], line["run"]) for line in lines} == {("stand-in", "small")}
    assert "a thread's mistake" in lines[1]["exception"]


def test_killed_part_is_noticed_though_its_fork_holds_its_pipes(tmp_path: Path) -> None:
    """`kill -9` of a part is seen at once, and a process that it had forked goes with it."""
    with started(tmp_path, part_mains.forks) as process:
        wait_until("the part is ready", lambda: is_ready(process))
        fork = psutil.Process(int((tmp_path / part_mains.FORK_FILE).read_text()))
        os.kill(fork.ppid(), signal.SIGKILL)
        wait_until("the part has ended", process.has_ended)
        wait_until("the fork is gone", lambda: is_gone(fork.pid))


def test_end_takes_the_whole_group(tmp_path: Path) -> None:
    """Ending a part ends what it has started, and it can be started again."""
    with started(tmp_path, part_mains.forks) as process:
        wait_until("the part is ready", lambda: is_ready(process))
        fork = int((tmp_path / part_mains.FORK_FILE).read_text())
        assert process.end() == -signal.SIGKILL
        wait_until("the fork is gone", lambda: is_gone(fork))
        process.start()
        assert not process.ready
        wait_until("the part is ready again", lambda: is_ready(process))


def test_ending_what_does_not_run_is_fine(tmp_path: Path) -> None:
    """A part that was never started, or has been ended, has nothing to end."""
    process = PartProcess(Part("stand-in", part_mains.runs), tmp_path)
    assert process.end() is None
    assert process.has_ended()
