"""The intervals between a peer's reads and reports of records, which shrink as the batch fills.

These pure decisions are used by `peer.progress.tracker`. All times are in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

LOOKS_AHEAD = 4  # minimum number of reads before a batch is full at the reported rates
UNKNOWN_S = 1.0  # interval between reads before any rate is known
REPORTS_PER_S = 16.0  # maximum number of reports by all peers together, because every peer reads all reports
LOOKS_PER_S = 60.0  # maximum number of reads by all peers together, because every read lists all records
SLOWEST = 20  # ratio of the longest interval to the shortest; a missing keeper must be noticed soon


@dataclass(frozen=True)
class Refresh:
    """The periods of a run's records."""

    shortest_s: float  # shortest interval between reads
    expiration_s: float  # lifetime of a record

    @property
    def longest_s(self) -> float:
        """The longest interval between reads."""
        return min(SLOWEST * self.shortest_s, self.expiration_s / SLOWEST)

    @property
    def heartbeat_s(self) -> float:
        """The interval after which a record is published even if it has not changed."""
        return self.expiration_s / 4


def look_interval_s(live: int, remaining_s: float, shortest_s: float, longest_s: float) -> float:
    """Return the interval between one peer's reads if the batch will be full in `remaining_s`."""
    return _interval_s(remaining_s, max(shortest_s, live / LOOKS_PER_S), longest_s)


def report_interval_s(live: int, remaining_s: float, longest_s: float) -> float:
    """Return the interval between one peer's reports of additional samples."""
    return _interval_s(remaining_s, live / REPORTS_PER_S, longest_s)


def _interval_s(remaining_s: float, least_s: float, most_s: float) -> float:
    """Return a fraction of the remaining time, within the bounds; `least_s` overrides `most_s`."""
    expected_s = UNKNOWN_S if remaining_s == float("inf") else remaining_s / LOOKS_AHEAD
    return min(max(least_s, most_s), max(least_s, expected_s))
