"""The intervals at which a peer looks at all records and reports its own: long while the batch is far from full.

Pure decisions, which `peer.swarm.tracker` asks; times in seconds.
"""

from __future__ import annotations

LOOKS_AHEAD = 4  # looks, at least, before a batch is full that fills as fast as peers say
UNKNOWN_S = 1.0  # between two looks before anybody's rate is known
REPORTS_PER_S = 16.0  # of all peers together at most, for each of them reads all reports
LOOKS_PER_S = 60.0  # likewise, for a look names all records
SLOWEST = 20  # times as slow as the fastest; a keeper that is gone must be missed soon enough all the same


def longest_refresh_s(shortest_s: float, expiration_s: float) -> float:
    """Return the longest interval, where the shortest is `shortest_s` and records count for `expiration_s`."""
    return min(SLOWEST * shortest_s, expiration_s / SLOWEST)


def look_interval_s(live: int, remaining_s: float, shortest_s: float, longest_s: float) -> float:
    """Return the seconds until the next look of one of `live` peers; the batch will be full in `remaining_s`."""
    return _interval_s(remaining_s, max(shortest_s, live / LOOKS_PER_S), longest_s)


def report_interval_s(live: int, remaining_s: float, longest_s: float) -> float:
    """Return the seconds until the next report of mere further samples, of one of `live` peers."""
    return _interval_s(remaining_s, live / REPORTS_PER_S, longest_s)


def _interval_s(remaining_s: float, least_s: float, most_s: float) -> float:
    """Return a part of the remaining time within the bounds; a least interval above the longest counts."""
    expected_s = UNKNOWN_S if remaining_s == float("inf") else remaining_s / LOOKS_AHEAD
    return min(max(least_s, most_s), max(least_s, expected_s))
