"""Child processes that end when their parent ends, and are killed with their whole process group.

A peer forks its node, which starts the p2p daemon; both may outlive a killed parent and keep its
identity and port. Each child with such forks therefore leads a process group, which is killed as a
whole. A child's output goes to a file, and `ps` shows the task of each process.
"""

from __future__ import annotations

import ctypes
import logging
import os
import queue
import resource
import signal
import sys
import threading
import time
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import psutil
from setproctitle import getproctitle, setproctitle

FILE = "alive"  # name of the file that `beat` touches in the device's directory
VARIABLES = {  # environment variables of child processes on macOS
    "PYTORCH_ENABLE_MPS_FALLBACK": "1",  # run unsupported operations on the CPU
    "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES",  # otherwise Apple's runtime kills forks
}
LOG_FILE = "worker.log"  # name of the file in the device's data directory
PARENT_POLL_S = 1.0
_PR_SET_PDEATHSIG = 1


def name_process(what: str) -> None:
    """Show this process as `manyhands: WHAT` in `ps` and `top`.

    By default, `ps` shows `python -c ... spawn_main` for a spawned process, and a command's
    arguments, which may include an invite code. `what` must not be secret.
    """
    setproctitle(f"manyhands: {what}")


def name_fork(what: str) -> None:
    """Add `what` to the process title, in a forked process."""
    setproctitle(f"{getproctitle()}: {what}")


def stop_at_sigterm() -> threading.Event:
    """Return an event that is set on SIGTERM; call in the main thread, after forking.

    A thread sets it, because a handler interrupts the main thread, which may hold the event's lock.
    """
    stop, asked = threading.Event(), queue.SimpleQueue[None]()  # `put` is safe in a signal handler

    def listen() -> None:
        asked.get()
        stop.set()

    threading.Thread(target=listen, name="stop", daemon=True).start()
    signal.signal(signal.SIGTERM, lambda _number, _frame: asked.put(None))
    return stop


def exit_at_sigterm() -> None:
    """Make SIGTERM exit this process normally, so that its temporary files are removed."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))


def lead_own_group() -> None:
    """Start a new session and process group, so that Ctrl-C in a terminal reaches only the parent."""
    with suppress(PermissionError):  # this process already leads a group
        os.setsid()


def die_with_parent(parent_pid: int) -> None:
    """Make the kernel (on macOS, a thread) send SIGTERM to this process when its parent ends."""
    _signal_at_parents_end(signal.SIGTERM, parent_pid)
    if os.getppid() != parent_pid:  # the parent has already ended
        os.kill(os.getpid(), signal.SIGTERM)


def kill_forks_at_end() -> None:
    """Kill all later forks of this process when this process ends, even by SIGKILL.

    The thread that forks must live as long as the process: the kernel treats it as the parent.
    """
    parent_pid = os.getpid()

    def remember_parent() -> None:
        nonlocal parent_pid
        parent_pid = os.getpid()

    def die_with_it() -> None:
        _signal_at_parents_end(signal.SIGKILL, parent_pid)
        if os.getppid() != parent_pid:  # the parent ended before the line above
            os.kill(os.getpid(), signal.SIGKILL)

    os.register_at_fork(before=remember_parent, after_in_child=die_with_it)


def has_ended(child_pid: int) -> bool:
    """Return whether a child has ended, without reaping it, so that its id cannot be reused.

    The sentinel of `multiprocessing` is unsuitable, because the child's forks keep it open.
    """
    try:
        if hasattr(os, "waitid"):
            return os.waitid(os.P_PID, child_pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return psutil.Process(child_pid).status() == psutil.STATUS_ZOMBIE  # macOS before Python 3.13
    except (ChildProcessError, psutil.NoSuchProcess):  # already reaped
        return True


def end_group(group_id: int) -> None:
    """Kill a child's process group; call before reaping the leader, after which its id may be reused."""
    if group_id <= 1 or group_id == os.getpgrp():
        raise ValueError(f"process group {group_id} is not a child's")
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group_id, signal.SIGKILL)


def exit_now(code: int) -> NoReturn:
    """Exit at once, without waiting for other threads and processes."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _signal_at_parents_end(number: signal.Signals, parent_pid: int) -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    else:
        threading.Thread(target=_watch, args=(number, parent_pid), name="parent watch", daemon=True).start()


def _watch(number: signal.Signals, parent_pid: int) -> None:
    """Signal this process when it becomes an orphan, that is, when its parent's id changes."""
    while os.getppid() == parent_pid:
        time.sleep(PARENT_POLL_S)
    os.kill(os.getpid(), number)


def write_output_to(path: Path, max_bytes: int) -> None:
    """Append the output of this process and its children to a private file, emptied first if large."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.exists() and path.stat().st_size > max_bytes
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if fresh else os.O_APPEND), 0o600)
    sys.stdout.flush()
    sys.stderr.flush()
    for stream in 1, 2:
        os.dup2(descriptor, stream)
    os.close(descriptor)


def last_lines(path: Path, count: int, max_line_chars: int = 300, after_bytes: int = 0) -> list[str]:
    """Return the last `count` non-empty lines of a log, skipping `after_bytes` bytes; [] without a log."""
    try:
        text = path.read_bytes()[after_bytes:].decode(errors="replace")
    except OSError:
        return []
    return [line[:max_line_chars] for line in text.splitlines() if line.strip()][-count:]


def prepare_children(environ: MutableMapping[str, str], platform: str = sys.platform) -> None:
    """Set default environment variables for child processes on macOS; call before spawning."""
    if platform == "darwin":
        for name, value in VARIABLES.items():
            environ.setdefault(name, value)


def beat(state_dir: Path) -> None:
    """Touch a file in the device's directory, as a sign that the agent and the worker are healthy.

    The peer image's health check reads the file's age, so a full disk fails the check, too.
    """
    with suppress(OSError):
        (state_dir / FILE).touch(mode=0o600)


def raise_descriptor_limit(needed: int) -> None:
    """Raise this process's limit on open files to `needed`, or to the hard limit if lower."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = needed if most == resource.RLIM_INFINITY else min(needed, most)
    if 0 <= allowed < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
