"""Process groups: how a parent ends a child with all that the child started, and a child ends when its parent is gone.

hivemind forks a DHT process and starts the p2p daemon; both outlive their parent when it is killed, keep its identity
and go on answering. So each child that uses hivemind leads a group of its own, which is ended as a whole, by its id.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress

_PR_SET_PDEATHSIG = 1


def lead_own_group() -> None:
    """Make this process the leader of a new session and group: a terminal's Ctrl-C goes to its parent only."""
    with suppress(PermissionError):  # it leads one already
        os.setsid()


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel send SIGTERM to this process when its parent ends, however it ends (Linux only)."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent_pid:  # it was gone already
        os.kill(os.getpid(), signal.SIGTERM)


def end_group(group_id: int) -> None:
    """Kill every process of a group, at once; one that has none left is fine.

    Call it before the leader is reaped: until then the kernel gives its id to nobody else.
    """
    if group_id <= 1 or group_id == os.getpgrp():
        raise ValueError(f"process group {group_id} is not a child's")
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group_id, signal.SIGKILL)
