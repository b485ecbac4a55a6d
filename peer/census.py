"""Who takes part in the swarm, in numbers: for the operator's metrics, and light enough for the service to import."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

Census = tuple[tuple[str, bool, int], ...]  # peers that take part: role, whether others can connect to them, how many


def census_of(peers: Iterable[tuple[str, bool]]) -> Census:
    """How many peers there are of each role (known from their tokens) and reachability."""
    return tuple((role, reachable, count) for (role, reachable), count in sorted(Counter(peers).items()))
