"""Logs of spawned processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from peer.process_output import last_lines

PRINTS = """
import os, subprocess, sys
from pathlib import Path
from peer.process_output import write_output_to
print("before", flush=True)
write_output_to(Path(sys.argv[1]), 100)
print("python", flush=True)
subprocess.run(["echo", "child"], check=True)
"""


def run_printing(path: Path) -> str:
    """A process that writes to the log; returns what still came out."""
    command = [sys.executable, "-c", PRINTS, str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_everything_goes_to_the_file(tmp_path: Path) -> None:
    """What the process and its children print is in the file, which only its owner may read, and nowhere else."""
    log = tmp_path / "data" / "worker.log"
    assert run_printing(log) == "before\n"
    assert log.read_text() == "python\nchild\n"
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_log_goes_on_until_it_is_too_long(tmp_path: Path) -> None:
    """The next process appends; one that finds too much begins anew."""
    log = tmp_path / "worker.log"
    for _ in range(2):
        run_printing(log)
    assert log.read_text() == "python\nchild\n" * 2
    log.write_text("x" * 101)
    run_printing(log)
    assert log.read_text() == "python\nchild\n"


def test_last_lines_are_few_and_short(tmp_path: Path) -> None:
    """Empty lines are left out, long ones cut; a log that is missing has none."""
    log = tmp_path / "worker.log"
    log.write_bytes(b"one\n\n" + b"y" * 50 + b"\xff\nlast\n")
    assert last_lines(log, 2, max_line_chars=5) == ["yyyyy", "last"]
    assert last_lines(tmp_path / "none", 2) == []
