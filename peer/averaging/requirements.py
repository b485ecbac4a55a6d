"""The words between a trainer and its meetings: its requirements for the next group, and the news for it.

Each word is sent whole between the trainer's process and the node's (`peer.swarm.messages`).
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from peer.config.training import Compression
from peer.node.quorum import Quorum

LEAST_FILLED = 0.9  # share of a batch that makes a step: reducers may cut the weights of honest members
REPORT_S, MOST_REPORT_S = 0.2, 4.0  # shortest and longest interval between a peer's reports, and between counts
REPORTS_LEFT = 3  # reports in the time that a batch still takes
DELIVERY_S, MOST_DELIVERY_S = 0.05, 1.0  # shortest and longest interval between deliveries to the trainer's process
MOST_DELIVERED = 16  # reports that are delivered to the trainer's process at once


def least_samples(target: int) -> int:
    """Return the samples with which a round is a step, given those of a batch."""
    return math.ceil(LEAST_FILLED * target)


@dataclass(frozen=True)
class Requirements:
    """A trainer's requirements for its next group, sent whole to its node."""

    era: int = 0
    step: int = 0  # global step after which the group averages
    code: tuple[Compression, int] = ("none", 0)  # compression and PowerSGD rank
    target: int = 0  # the samples of a batch; 0: unknown
    leaders: tuple[str, ...] = ()  # IDs of the candidates for leader, preferred first
    required: int = 2  # smallest group that may begin to average
    expected: int = 0  # size at which the group stops waiting for others; 0: unknown
    quorum: Quorum = field(default_factory=Quorum)  # which groups may take the step
    free_s: float = field(default=0.0, compare=False)  # seconds that the leader may wait for expected peers at no cost
    ready_s: float = field(default=0.0, compare=False)  # longest wait of the leader for peers that still compute
    report: bytes = b""  # this peer's record, for the leader
    samples: int = 0  # samples of the batch that the trainer counts, for followers
    remaining_s: float = field(default=math.inf, compare=False)  # seconds until the batch is full, for followers

    @property
    def position(self) -> tuple[int, int]:
        """The era and the step, equal for all peers of a group."""
        return self.era, self.step

    @property
    def is_full(self) -> bool:
        """The trainer counts a full batch."""
        return 0 < self.target <= self.samples

    @property
    def report_s(self) -> float:
        """The interval between reports, and between counts, which are worth most when the batch is nearly full."""
        is_known = self.remaining_s < math.inf
        return min(MOST_REPORT_S, max(REPORT_S, self.remaining_s / REPORTS_LEFT)) if is_known else REPORT_S


@dataclass(frozen=True)
class Heard:
    """The messages from other peers, merged, that the node passes to the trainer's process."""

    position: tuple[int, int] = (0, 0)  # this peer's era and step
    reports: Mapping[str, bytes] = field(default_factory=dict)  # follower -> its newest record
    count: tuple[int, float] | None = None  # samples that the leader counts; seconds until the batch is full
    gone_on: bool = False  # whether the leader has taken the step

    @property
    def is_news(self) -> bool:
        """A message waits for delivery."""
        return bool(self.reports) or self.count is not None or self.gone_on


class TrainerNews:
    """The news that waits for the trainer's process."""

    def __init__(self, deliver: Callable[[Heard], bool], clock: Callable[[], float]) -> None:
        self._deliver, self._clock = deliver, clock
        self._delivering: asyncio.TimerHandle | None = None  # the next delivery
        self.heard = Heard()  # what has not been delivered

    def tell(self, within_s: float = DELIVERY_S, **news: Any) -> None:
        """Deliver news, fields of `Heard`, soon to the trainer's process; try again later if it is busy."""
        self.heard = replace(self.heard, **news)
        by = self._clock() + within_s
        if self._delivering is None or by < self._delivering.when():
            if self._delivering is not None:
                self._delivering.cancel()
            self._delivering = asyncio.get_running_loop().call_at(by, self._deliver_heard)

    def _deliver_heard(self) -> None:
        heard, self._delivering = self.heard, None
        some = dict(itertools.islice(heard.reports.items(), MOST_DELIVERED))
        if heard.is_news and self._deliver(replace(heard, reports=some)):
            left = {caller: heard.reports[caller] for caller in heard.reports.keys() - some.keys()}
            self.heard = Heard(heard.position, left)
        if self.heard.is_news:
            self.tell()
