"""Processes: a parent ends a child with all that the child started, and a child ends when its parent is gone.

hivemind forks processes and starts the p2p daemon; all of them outlive a parent that is killed, keep its identity and
its port, and go on answering. So each child that uses hivemind leads a group of its own, which is ended as a whole.
A child's output goes to a file; the agent's last sign of life is a file, too. Each process shows in `ps` what it is.
"""

from __future__ import annotations

import ctypes
import logging
import os
import queue
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

FILE = "alive"  # in the device's directory
VARIABLES = {  # for children on a Mac
    "PYTORCH_ENABLE_MPS_FALLBACK": "1",  # what Apple's GPUs cannot compute is computed by the CPU
    "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES",  # hivemind forks; else Apple's runtime ends what is forked
}
LOG_FILE = "worker.log"  # in the device's data directory
PARENT_POLL_S = 1.0
_PR_SET_PDEATHSIG = 1


def name_process(what: str) -> None:
    """Show this process as `manyhands: WHAT` in `ps` and `top`.

    By itself a spawned process shows no more than `python -c ... spawn_main`, and a command its arguments, among which
    may be an invite code. So `what` must hold no secret.
    """
    setproctitle(f"manyhands: {what}")


def name_fork(what: str) -> None:
    """Show a process that hivemind has forked as its parent's title with `what` behind it."""
    setproctitle(f"{getproctitle()}: {what} (hivemind)")


def stop_at_sigterm() -> threading.Event:
    """Return an event that SIGTERM sets; for the main thread, after it has forked what is to keep the default action.

    A thread sets it: a handler runs in the main thread, which may hold the event's lock, and would wait for itself.
    """
    stop, asked = threading.Event(), queue.SimpleQueue[None]()  # whose `put` may interrupt anything

    def listen() -> None:
        asked.get()
        stop.set()

    threading.Thread(target=listen, name="stop", daemon=True).start()
    signal.signal(signal.SIGTERM, lambda _number, _frame: asked.put(None))
    return stop


def lead_own_group() -> None:
    """Make this process the leader of a new session and group: a terminal's Ctrl-C goes to its parent only."""
    with suppress(PermissionError):  # it leads one already
        os.setsid()


def die_with_parent(parent_pid: int) -> None:
    """Have SIGTERM sent to this process when its parent ends, however it ends; by a thread where no kernel does it."""
    _signal_at_parents_end(signal.SIGTERM, parent_pid)
    if os.getppid() != parent_pid:  # it was gone already
        os.kill(os.getpid(), signal.SIGTERM)


def kill_forks_at_end() -> None:
    """Have the processes that this one forks from now on killed when it ends, however it ends.

    They must be forked by a thread that lives as long as the process: to the kernel that thread is the parent.
    """
    parent_pid = os.getpid()

    def remember_parent() -> None:
        nonlocal parent_pid
        parent_pid = os.getpid()

    def die_with_it() -> None:
        _signal_at_parents_end(signal.SIGKILL, parent_pid)
        if os.getppid() != parent_pid:  # it ended before the kernel was told
            os.kill(os.getpid(), signal.SIGKILL)

    os.register_at_fork(before=remember_parent, after_in_child=die_with_it)


def has_ended(child_pid: int) -> bool:
    """Return whether a child has ended, without reaping it, so that its id and its group's are still nobody else's.

    `multiprocessing`'s sentinel cannot tell: it is a pipe, which the child's own forks inherit and keep open.
    """
    try:
        if hasattr(os, "waitid"):
            return os.waitid(os.P_PID, child_pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return psutil.Process(child_pid).status() == psutil.STATUS_ZOMBIE  # macOS before Python 3.13
    except (ChildProcessError, psutil.NoSuchProcess):  # reaped already
        return True


def end_group(group_id: int) -> None:
    """Kill every process of a child's group, at once; one that has none left is fine.

    Call it before the leader is reaped: until then the kernel gives its id to nobody else.
    """
    if group_id <= 1 or group_id == os.getpgrp():
        raise ValueError(f"process group {group_id} is not a child's")
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group_id, signal.SIGKILL)


def exit_now(code: int) -> NoReturn:
    """End this process at once: in order, hivemind's threads and processes would keep it for ever."""
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
    """Signal this process when it gets another parent, as an orphan does; for systems whose kernel cannot be asked."""
    while os.getppid() == parent_pid:
        time.sleep(PARENT_POLL_S)
    os.kill(os.getpid(), number)


def write_output_to(path: Path, max_bytes: int) -> None:
    """Send this process's output to the end of a private file, which begins anew if it has grown beyond `max_bytes`.

    Not only Python's: what libraries write in C, and forked and started processes, goes there too.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.exists() and path.stat().st_size > max_bytes
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if fresh else os.O_APPEND), 0o600)
    sys.stdout.flush()
    sys.stderr.flush()
    for stream in 1, 2:
        os.dup2(descriptor, stream)
    os.close(descriptor)


def last_lines(path: Path, count: int, max_line_chars: int = 300) -> list[str]:
    """The end of a log, without empty lines; nothing where there is no log."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [line[:max_line_chars] for line in text.splitlines() if line.strip()][-count:]


def prepare_children(environ: MutableMapping[str, str], platform: str = sys.platform) -> None:
    """On a Mac, set variables in the environment, which children inherit, unless somebody has set them.

    The agent and the doctor call it before they spawn a child that uses PyTorch and hivemind: both variables are read
    when a process or a library is loaded, so the child itself would be too late.
    """
    if platform == "darwin":
        for name, value in VARIABLES.items():
            environ.setdefault(name, value)


def beat(state_dir: Path) -> None:
    """Touch a file in the device's directory, so that it is as old as the last moment when agent and worker were well.

    The peer's image has a health check that looks at it; so may a service manager. On a disk that takes nothing they
    see an old file, and rightly so.
    """
    with suppress(OSError):
        (state_dir / FILE).touch(mode=0o600)
