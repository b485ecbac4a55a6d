"""What the averager's process has found out about other peers, for the trainer's, which knows whose devices they are.

A round that fails has no result to say it with, and hivemind tries again by itself; so it goes through a pipe of its
own. The pipe holds little, and who writes never waits: what does not fit is dropped.
"""

from __future__ import annotations

import multiprocessing as mp
from dataclasses import dataclass
from typing import Literal

MOST_WAITING = 32  # a pipe has room for many more
MOST_DETAIL_CHARS = 200
FindingKind = Literal["reduction", "average", "samples", "parts", "gradient"]  # as in `peer.suspicion`


@dataclass(frozen=True)
class Finding:
    """What one peer was caught at in a round."""

    peer_id: str
    kind: FindingKind
    detail: str


class Findings:
    """From one averager to the process that it was forked from."""

    def __init__(self) -> None:
        self._waiting = mp.Value("i", 0)
        self._pipe: mp.SimpleQueue[Finding] = mp.SimpleQueue()

    def tell(self, finding: Finding) -> None:
        """Say it; never waits."""
        with self._waiting.get_lock():
            if self._waiting.value >= MOST_WAITING:
                return
            self._waiting.value += 1
        self._pipe.put(Finding(finding.peer_id[:100], finding.kind, finding.detail[:MOST_DETAIL_CHARS]))

    def take(self) -> list[Finding]:
        """All that was said since."""
        taken = []
        while not self._pipe.empty():
            taken.append(self._pipe.get())
            with self._waiting.get_lock():
                self._waiting.value -= 1
        return taken
