"""A watchdog for a peer's node and its p2p daemon."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import psutil

from auth.errors import SwarmError
from auth.swarm.authorizer import Clock

LOOK_S = 1.0
SILENT_LOOKS = 60  # checks in a row without an answer of the daemon, one per second, after which it counts as hung


class NodeWatch:
    """A thread that checks once per second whether the processes live and the p2p daemon answers.

    Without the watchdog, the peer would remain at its step without an error. `on_lost` is called
    once, on the watchdog's thread, and should end the process at once.
    """

    def __init__(self, process_ids: Mapping[str, int], on_lost: Callable[[SwarmError], object], clock: Clock) -> None:
        """Begin to watch these processes."""
        self._process_ids, self._on_lost, self._clock = process_ids, on_lost, clock
        self.heard_at = clock()  # time of the daemon's last answer
        self._silent_looks = 0  # counts checks, not seconds, because a suspended machine makes no checks
        self._stop = threading.Event()
        self._watching = threading.Thread(target=self._watch, name="node watch", daemon=True)
        self._watching.start()

    def heard(self) -> None:
        """Note an answer of the p2p daemon."""
        self.heard_at, self._silent_looks = self._clock(), 0

    def stop(self) -> None:
        """Stop watching, before the node is shut down."""
        self._stop.set()
        self._watching.join()

    def look(self) -> SwarmError | None:
        """Return an error if a process has died or the daemon does not respond; None otherwise."""
        for name, process_id in self._process_ids.items():
            if _has_died(process_id):
                return SwarmError(
                    f"The {name} of this peer's swarm node has died: without it no other peer is reached."
                )
        self._silent_looks += 1
        if self._silent_looks > SILENT_LOOKS:
            return SwarmError(f"This peer's swarm node, or its p2p daemon, has not answered for {SILENT_LOOKS} s.")
        return None

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_S):
            if lost := self.look():
                self._on_lost(lost)
                return


def _has_died(process_id: int) -> bool:
    try:
        return str(psutil.Process(process_id).status()) == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
