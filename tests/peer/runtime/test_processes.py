"""Child processes, with real ones: groups and parents, logs, the agent's sign of life, and settings for Macs."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from peer.runtime.processes import FILE, beat, end_group, has_ended, last_lines, prepare_children
from tests.support.waiting import PATIENCE_S, is_gone, wait_until

ROOT = Path(__file__).parents[3]


def test_a_mac_lets_children_fork_and_fall_back_to_its_cpu() -> None:
    """Both variables are set, what a person has set stays, and Linux needs none of it."""
    environ = {"PYTORCH_ENABLE_MPS_FALLBACK": "0"}
    prepare_children(environ, "darwin")
    assert environ == {"PYTORCH_ENABLE_MPS_FALLBACK": "0", "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES"}
    environ.clear()
    prepare_children(environ, "linux")
    assert environ == {}
    prepare_children(environ, "darwin")
    assert environ["PYTORCH_ENABLE_MPS_FALLBACK"] == "1"


STOPS = """
import os, signal
from peer.runtime.processes import stop_at_sigterm
stop = stop_at_sigterm()
with stop._cond:  # as the main thread has it for moments while it waits
    os.kill(os.getpid(), signal.SIGTERM)
stop.wait()
print("stopped", flush=True)
"""


def test_sigterm_sets_the_event_whatever_the_main_thread_does() -> None:
    """A handler that set it itself would wait for the lock of its own thread for ever."""
    ran = subprocess.run(
        [sys.executable, "-c", STOPS], check=True, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S
    )
    assert ran.stdout == "stopped\n"


PRINTS = """
import os, subprocess, sys
from pathlib import Path
from peer.runtime.processes import write_output_to
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
    assert last_lines(log, 2, after_bytes=log.stat().st_size) == []
    assert last_lines(tmp_path / "none", 2) == []


NAMED = """
import multiprocessing, sys
from peer.runtime.processes import name_fork, name_process
from tests.support.titles import title_of

def fork():
    name_fork("swarm node")
    print(title_of(multiprocessing.current_process().pid))

name_process("worker")
print(title_of(multiprocessing.current_process().pid), flush=True)
child = multiprocessing.get_context("fork").Process(target=fork)
child.start()
child.join()
"""


def test_processes_are_shown_by_their_names() -> None:
    """A title takes the place of the arguments, which may hold a code; a fork's says whose it is."""
    command = [sys.executable, "-c", NAMED, "--invite", "XKCD-1234"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    assert shown.splitlines() == ["manyhands: worker", "manyhands: worker: swarm node"]


SLEEP = "import time; time.sleep(3600)"
# A child that leads its group and dies with its parent; it prints its own pid and that of a fork.
CHILD = """
import os, sys, time
from peer.runtime.processes import die_with_parent, kill_forks_at_end, lead_own_group
sys.platform = os.environ.get("TEST_PLATFORM", sys.platform)
lead_own_group(); die_with_parent(int(sys.argv[1])); kill_forks_at_end()
fork = os.fork()
if fork: print(os.getpid(), fork, os.getpgid(fork), flush=True)
time.sleep(3600)
"""
# Without the kernel's help, as on macOS, a thread watches for the parent's end.
EVERYWHERE = pytest.mark.parametrize("platform", ["linux", "darwin"])

PARENT = "import os, subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1], str(os.getpid())])"


@EVERYWHERE
def test_child_and_its_forks_end_with_a_killed_parent(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`kill -9` of a parent ends its child, which leads a group of its own, and what the child has forked."""
    monkeypatch.setenv("TEST_PLATFORM", platform)
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child, fork, group = map(int, parent.stdout.readline().split())
    assert group == child
    parent.kill()
    parent.wait()
    wait_until("the child and its fork are gone", lambda: is_gone(child) and is_gone(fork))
    parent.stdout.close()


@EVERYWHERE
def test_fork_ends_with_its_killed_parent(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`kill -9` of the child alone takes its fork along."""
    monkeypatch.setenv("TEST_PLATFORM", platform)
    command = [sys.executable, "-c", CHILD, str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        _, fork, _ = map(int, process.stdout.readline().split())
        process.kill()
        wait_until("the fork is gone", lambda: is_gone(fork))


def test_child_whose_parent_is_gone_already_ends_at_once() -> None:
    """A child that comes too late to be told of its parent's end notices it by itself."""
    result = subprocess.run([sys.executable, "-c", CHILD, "1"], check=False, timeout=PATIENCE_S)
    assert result.returncode == -signal.SIGTERM


@pytest.mark.parametrize("kernel_tells", [True, False])
def test_end_of_a_child_is_seen_without_reaping_it(kernel_tells: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that has ended still holds its id until somebody reaps it; afterwards it is known to be gone.

    So it is without `os.waitid`, which Python has on macOS since 3.13 only.
    """
    if not kernel_tells:
        monkeypatch.delattr(os, "waitid")
    with subprocess.Popen([sys.executable, "-c", SLEEP]) as process:
        assert not has_ended(process.pid)
        process.kill()
        wait_until("the process has ended", lambda: has_ended(process.pid))
        assert psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE
    assert has_ended(process.pid)


def test_group_is_ended_as_a_whole() -> None:
    """All processes of a child's group are killed; ending an empty group is fine."""
    command = [sys.executable, "-c", CHILD, str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child, fork, _ = map(int, process.stdout.readline().split())
        end_group(child)
        wait_until("the child and its fork are gone", lambda: is_gone(child) and is_gone(fork))
    end_group(child)


@pytest.mark.parametrize("group", [0, 1, pytest.param(os.getpgrp(), id="own")])
def test_own_group_is_never_ended(group: int) -> None:
    """Numbers that would mean ourselves or everybody are refused."""
    with pytest.raises(ValueError, match="not a child's"):
        end_group(group)


def test_each_beat_makes_the_file_young_again(tmp_path: Path) -> None:
    """The file is as old as the last beat, and nobody else's to read."""
    beat(tmp_path)
    os.utime(tmp_path / FILE, (0, 0))
    beat(tmp_path)
    status = (tmp_path / FILE).stat()
    assert status.st_mtime > 0
    assert stat.S_IMODE(status.st_mode) & 0o077 == 0


def test_directory_that_is_gone_harms_nobody(tmp_path: Path) -> None:
    """The agent goes on where the sign cannot be given."""
    beat(tmp_path / "gone")
    assert not (tmp_path / "gone").exists()
