"""Peers of a real swarm, each a process of its own that the test talks to through a pipe.

They are forked from a process that has imported torch and hivemind once, so that a swarm of five starts in a few
seconds on a small machine.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.support.waiting import wait_until
from tests.support.zygote import forking_python, fresh_python

MAX_ORDER_BYTES = 40
Said = dict[str, Any]


class Orders:
    """What the test has told a peer so far, and whether it is to stop, as it is when the test's process is gone."""

    def __init__(self, pipe: Connection) -> None:
        self._told = mp.Array("c", MAX_ORDER_BYTES)  # shared with what the peer forks
        self.stop = threading.Event()
        self._pipe = pipe
        self._sending = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def told(self) -> str:
        """The last order; empty for none."""
        return bytes(self._told.value).decode()

    @told.setter
    def told(self, order: str) -> None:
        self._told.value = order.encode()

    def _listen(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while (order := self._pipe.recv()) != "stop":
                self.told = order
        self.stop.set()

    def say(self, event: str, **facts: Any) -> None:
        """Tell the test, with the time (monotonic, which all processes share); from any thread."""
        with self._sending:
            self._pipe.send({"event": event, "at": time.monotonic()} | facts)


def _begin(main: Callable[[Any, Orders], None], plan: Any, pipe: Connection, log: str) -> None:
    """In the new process: lead a group of its own, so that all it forks can be ended with it; write to a log."""
    os.setsid()
    os.set_inheritable(
        pipe.fileno(), False
    )  # else torch's shared-memory manager holds it open for seconds after a kill
    with open(log, "w", buffering=1) as file:  # noqa: PTH123 - file descriptors of the process itself
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    main(plan, Orders(pipe))


class PeerProcess:
    """A started peer and what it has said so far."""

    def __init__(self, main: Callable[[Any, Orders], None], plan: Any, log: Path, fresh: bool = False) -> None:
        """`fresh`: with an interpreter of its own, as in earnest."""
        context = mp.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.log = log
        self.process = context.Process(target=_begin, args=(main, plan, theirs, str(log)))
        with fresh_python() if fresh else forking_python():
            self.process.start()
        theirs.close()
        self.said: list[Said] = []
        self._read = 0
        # What it says is always taken: it says it with its state held, and would hold that while its pipe is full.
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def tell(self, order: str) -> None:
        """Give the peer an order, such as `stop`."""
        self._pipe.send(order)

    def _listen(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                self.said.append(self._pipe.recv())

    def wait_for(self, wanted: Callable[[Said], bool]) -> Said:
        """The next thing said that is `wanted`; fails the test if none comes."""
        found: list[Said] = []

        def has_come() -> bool:
            has_ended = not self._listener.is_alive()
            while not found and self._read < len(self.said):
                said = self.said[self._read]
                self._read += 1
                found.extend([said] if wanted(said) else [])
            assert found or not has_ended, f"the peer said nothing more:\n{self.log.read_text()[-3000:]}"
            return bool(found)

        wait_until("the peer has said what is waited for", has_come, self.log)
        return found[0]

    def wait_for_event(self, event: str) -> Said:
        """The next event of this kind."""
        return self.wait_for(lambda said: said["event"] == event)

    def wait_for_step(self, step: int) -> Said:
        """The outcome that brought the peer to `step` or beyond, or the newest if it is there already."""
        passed = [said for said in self.said[: self._read] if said["event"] == "step"]
        if passed and passed[-1]["step"] >= step:
            return passed[-1]
        return self.wait_for(lambda said: said["event"] == "step" and said["step"] >= step)

    @property
    def step(self) -> int:
        """The highest step that the peer has told of."""
        return max((said["step"] for said in self.said if said["event"] == "step"), default=0)

    def kill(self) -> None:
        """SIGKILL to the peer and all that it forked, as a power cut would."""
        if self.process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()
        self._listener.join()
        self._pipe.close()
