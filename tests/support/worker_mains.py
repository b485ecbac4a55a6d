"""Stand-ins for the worker's main function, each run in a really spawned process by the tests of agent and handle."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from peer.reporting.messages import (
    CheckpointWanted,
    ClockRead,
    Failed,
    KeeperSought,
    LineInDoubt,
    Lost,
    Progress,
    Ready,
    Stopped,
    WorkerPlan,
)
from peer.runtime.processes import lead_own_group
from tests.support.reports import report

GRANDCHILD_FILE = "grandchild.pid"


def heard(pipe: Connection) -> object:
    """Return what the agent tells next, but for the clock: it does so whenever it likes."""
    while isinstance(message := pipe.recv(), ClockRead):
        continue
    return message


def trains_until_stopped(plan: WorkerPlan, pipe: Connection, _parent_pid: int) -> None:
    """Two steps, then waits for the agent's `Stop` and leaves in order."""
    lead_own_group()
    pipe.send(Ready("Qm", 0, f"device {plan.device_number}"))
    for step in (1, 2):
        pipe.send(report(step))
    heard(pipe)
    pipe.send(Stopped("told to stop"))


def tells_the_answer_to(question: object, pipe: Connection) -> None:
    """Asks its agent, tells the answer as its device, leaves when told to."""
    lead_own_group()
    pipe.send(question)
    tells(repr(heard(pipe)), pipe)


def tells(device: str, pipe: Connection) -> None:
    """Trains on this device, leaves when told to."""
    lead_own_group()
    pipe.send(Ready("Qm", 0, device))
    heard(pipe)
    pipe.send(Stopped("told to stop"))


def doubts_its_line(_plan: WorkerPlan, pipe: Connection, _parent_pid: int) -> None:
    """Has the line measured again, tells the answer as its device, leaves when told to."""
    tells_the_answer_to(LineInDoubt(), pipe)


def asks_for_a_checkpoint(_plan: WorkerPlan, pipe: Connection, _parent_pid: int) -> None:
    """Would start from one, tells the answer as its device, leaves when told to."""
    tells_the_answer_to(CheckpointWanted(10**9, 3), pipe)


def tells_its_keeper(plan: WorkerPlan, pipe: Connection, _parent_pid: int) -> None:
    """Tells as its device where it was told that the keeper is, leaves when told to."""
    tells(repr(plan.initial_peers), pipe)


def seeks_the_keeper(_plan: WorkerPlan, pipe: Connection, _parent_pid: int) -> None:
    """Does not find the keeper, tells the answer as its device, leaves when told to."""
    tells_the_answer_to(KeeperSought(), pipe)


def dies_with_samples(plan: WorkerPlan, pipe: Connection, _parent_pid: int) -> None:
    """Ends without a word in the middle of a step, the first time; the second one leaves in order, and tells so."""
    lead_own_group()
    marker = Path(plan.data_dir) / "died"
    pipe.send(Ready("Qm", 0, "cpu"))
    if not marker.exists():
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
        pipe.send(Progress(0, 7, 7, 100, 1, 1.0, None, None))
        os._exit(9)
    heard(pipe)
    pipe.send(Lost(1, {"left": 5}))
    pipe.send(Stopped("told to stop"))


def dies_at_once(_plan: WorkerPlan, _pipe: Connection, _parent_pid: int) -> None:
    """Ends without a word, as an out-of-memory kill does."""
    lead_own_group()
    os._exit(9)


def fails_with_swarm_error(_plan: WorkerPlan, pipe: Connection, _parent_pid: int) -> None:
    """Cannot reach the swarm."""
    lead_own_group()
    pipe.send(Failed("swarm", 16, "The swarm cannot be joined."))


def loses_its_node(_plan: WorkerPlan, pipe: Connection, _parent_pid: int) -> None:
    """Is in the swarm, until its p2p daemon dies."""
    lead_own_group()
    pipe.send(Ready("Qm", 0, "cpu"))
    pipe.send(Failed("swarm", 16, "The p2p daemon of this peer's swarm node has died."))


def joins_at_last(plan: WorkerPlan, pipe: Connection, parent_pid: int) -> None:
    """Cannot reach the swarm five times, and then trains."""
    tries = Path(plan.data_dir) / "tries"
    tries.parent.mkdir(parents=True, exist_ok=True)
    tried = len(tries.read_text()) if tries.exists() else 0
    tries.write_text("x" * (tried + 1))
    (trains_until_stopped if tried == 5 else fails_with_swarm_error)(plan, pipe, parent_pid)


def ignores_stop(plan: WorkerPlan, pipe: Connection, _parent_pid: int) -> None:
    """Hangs, with a child of its own, whatever it is told."""
    lead_own_group()
    child = subprocess.Popen(["sleep", "3600"])  # no Python, which the tests may fork from outside of our group
    directory = Path(plan.data_dir)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / GRANDCHILD_FILE).write_text(str(child.pid))
    pipe.send(Ready("Qm", 0, "cpu (1 thread)"))
    while True:
        time.sleep(60)


def needs_memory(plan: WorkerPlan, pipe: Connection, parent_pid: int) -> None:
    """200 megabytes for each sample that is computed at once."""
    block = b"x" * (200_000_000 * (plan.microbatch_size or 4))
    trains_until_stopped(replace(plan, device_number=plan.microbatch_size or 4), pipe, parent_pid)
    del block


def is_killed(plan: WorkerPlan, pipe: Connection, parent_pid: int) -> None:
    """The system kills it while it computes more than two samples at once, of which it finds eight to fit."""
    lead_own_group()
    size = plan.microbatch_size or 8
    if size > 2:
        pipe.send(Ready("Qm", 0, f"device {size}", size))
        os.kill(os.getpid(), signal.SIGKILL)
    trains_until_stopped(replace(plan, device_number=size), pipe, parent_pid)


def is_always_killed(plan: WorkerPlan, pipe: Connection, parent_pid: int) -> None:
    """However few samples it computes at once."""
    lead_own_group()
    os.kill(os.getpid(), signal.SIGKILL)


def runs_out_of_memory(plan: WorkerPlan, pipe: Connection, parent_pid: int) -> None:
    """Its device has no memory for four samples at once, which its backend cannot mend by itself."""
    lead_own_group()
    if plan.microbatch_size is None:
        pipe.send(Failed("worker", 18, "The training process failed (RESOURCE_EXHAUSTED).", short_of_memory=True))
    else:
        trains_until_stopped(replace(plan, device_number=plan.microbatch_size), pipe, parent_pid)


def tells_its_device(plan: WorkerPlan, pipe: Connection, _parent_pid: int) -> None:
    """Trains on the device that its plan names."""
    tells(plan.device, pipe)
