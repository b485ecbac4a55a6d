"""The watch over a node's processes, with real processes in their places."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from auth.errors import SwarmError
from peer.swarm import node_watch
from peer.swarm.node_watch import NodeWatch
from tests.support.waiting import wait_until


class Watched:
    """Two sleeping processes under a watch, which tells what it has lost."""

    def __init__(self) -> None:
        sleep = [sys.executable, "-c", "import time; time.sleep(3600)"]
        self.processes = {name: subprocess.Popen(sleep) for name in ("process", "p2p daemon")}
        self.lost = list[SwarmError]()
        moments = itertools.count()
        process_ids = {name: process.pid for name, process in self.processes.items()}
        self.watch = NodeWatch(process_ids, self.lost.append, lambda: next(moments))


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """Two processes, which end with the test."""
    monkeypatch.setattr(node_watch, "LOOK_S", 0.01)
    monkeypatch.setattr(node_watch, "SILENT_LOOKS", 10**6)
    made = Watched()
    yield made
    made.watch.stop()
    for process in made.processes.values():
        process.kill()
        process.wait()


@pytest.mark.parametrize("victim", ["process", "p2p daemon"])
def test_a_process_that_dies_is_told_once(watched: Watched, victim: str) -> None:
    """By its name, as soon as it is gone, though nobody has reaped it."""
    watched.processes[victim].kill()
    wait_until("the watch has told of the end", lambda: watched.lost)
    watched.watch.stop()
    assert [victim in str(lost) for lost in watched.lost] == [True]


def test_a_process_that_dies_while_it_is_looked_at_is_told(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was there, and a moment later it is not: the watch must not end over it."""

    def status(process: psutil.Process) -> str:
        raise psutil.NoSuchProcess(process.pid)

    monkeypatch.setattr(psutil.Process, "status", status)
    wait_until("the watch has told of the end", lambda: watched.lost or not watched.watch._watching.is_alive())
    watched.watch.stop()
    assert len(watched.lost) == 1


def test_a_process_that_has_ended_before_is_told() -> None:
    """The daemon may have died since the node told of it."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    watch = NodeWatch({"p2p daemon": ended.pid}, lambda _: None, time.time)
    watch.stop()
    assert "p2p daemon of this peer's swarm node has died" in str(watch.look())


def test_an_answer_of_the_daemon_is_a_sign_of_life(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that lives and answers nothing is lost, too, after a while; until then nobody calls it alive."""
    watch = watched.watch
    first = watch.heard_at
    watch.heard()
    assert watch.heard_at > first
    heard_at = watch.heard_at
    wait_until("the daemon is silent for a while", lambda: watch._silent_looks >= 20)
    assert (watch.heard_at, watched.lost) == (heard_at, [])
    monkeypatch.setattr(node_watch, "SILENT_LOOKS", 40)
    wait_until("the watch has told of the silent daemon", lambda: watched.lost)
    assert "has not answered for 40 s" in str(watched.lost[0])


def test_a_node_that_is_shut_down_is_not_missed(watched: Watched) -> None:
    """A peer that leaves stops looking first."""
    watched.watch.stop()
    watched.processes["process"].kill()
    watched.processes["process"].wait()
    assert watched.lost == []
