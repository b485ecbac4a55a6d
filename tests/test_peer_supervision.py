"""Process groups and parents, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from peer.supervision import end_group, has_ended
from tests.support.waiting import PATIENCE_S, is_gone, wait_until

SLEEP = "import time; time.sleep(3600)"
# A child that leads its group and dies with its parent; it prints its own pid and that of a fork.
CHILD = """
import os, sys, time
from peer.supervision import die_with_parent, kill_forks_at_end, lead_own_group
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
