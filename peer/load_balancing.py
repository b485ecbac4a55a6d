"""Which part of the gradients each peer of a group reduces: more on fast lines, less or nothing on slow ones.

DeDLOC's adaptive averaging (Diskin et al. 2021, arXiv 2106.10207, section 3.2): in a group of n peers that average V
values, a peer that reduces the fraction f sends (and receives) V * (1 + (n - 2) * f) values, its own and those of the
others. The round ends when the slowest line has passed its traffic. Every peer of the group computes the shares for
itself, and they must be the same everywhere: so this is a closed form in plain arithmetic, not a numerical solver.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

PARTS_PER_REDUCER = 32
LEAST_PART_BYTES, MOST_PART_BYTES = 2**14, 2**19
MAX_BANDWIDTH = 12.5e9  # bytes per second (100 Gbit/s); whoever claims more is not believed
FASTEST = (
    25e6  # bytes per second (200 Mbit/s); on faster lines processors set the pace, encrypting, decoding, adding up
)


def believed(claim: object) -> float | None:
    """What a peer claims its line to be (bytes per second), as far as it counts; None where that makes no sense."""
    if isinstance(claim, int | float) and not isinstance(claim, bool) and 0 <= claim <= MAX_BANDWIDTH:
        return min(float(claim), FASTEST)
    return None


def reduction_shares(values: int, bandwidths: Sequence[float | None], reduces: Sequence[bool]) -> tuple[int, ...]:
    """How many of `values` each peer reduces, so that the round ends as soon as it can.

    `bandwidths`: bytes per second of each peer's line, the slower direction of the two; None is unlimited as far as is
    known, which counts like the fastest that is known. `reduces`: which peers may; raises `ValueError` if none may.
    """
    if not any(reduces):
        raise ValueError("nobody in the group accepts connections, so nobody can reduce")
    known = [rate for rate in bandwidths if rate is not None]
    fastest = max(known, default=1.0) or 1.0
    rates = [(fastest if rate is None else rate) if may else 0.0 for rate, may in zip(bandwidths, reduces, strict=True)]
    if not any(rates):  # who may reduce has no line worth naming: they share alike
        rates = [float(may) for may in reduces]
    return _whole_shares(values, _fractions(rates))


def part_size(size_bytes: int, group_size: int) -> int:
    """How many bytes travel at once, for tensors of `size_bytes` in a group of this size.

    The last part of each reducer is averaged and returned when nothing else travels any more: so the parts are small
    beside what a reducer has, but not so small that handling them takes longer than sending them.
    """
    return min(MOST_PART_BYTES, max(LEAST_PART_BYTES, size_bytes // (PARTS_PER_REDUCER * group_size)))


def round_time(values_bytes: int, shares: Sequence[int], bandwidths: Sequence[float | None]) -> float:
    """Seconds that the slowest line needs for its traffic in a round with these shares; 0.0 where no rate is known."""
    total, others = sum(shares), len(shares) - 2
    times = [
        values_bytes * (1 + others * share / total) / rate
        for share, rate in zip(shares, bandwidths, strict=True)
        if rate
    ]
    return max(times, default=0.0)


def _fractions(rates: Sequence[float]) -> list[float]:
    """The fractions that minimize the longest time, by filling up the fastest lines first; they sum to 1.

    With the k fastest reducing, all of them end at T = (n - 2 + k) / (the sum of their rates); the k-th has a share if
    it could pass its own values in less than T.
    """
    others = len(rates) - 2
    if others <= 0:  # two peers pass all their values whoever reduces
        return [rate / math.fsum(rates) for rate in rates]
    total, time = 0.0, math.inf
    for count, rate in enumerate(sorted(rates, reverse=True), 1):
        if count > 1 and rate * time <= 1:
            break
        total += rate
        time = (others + count) / total
    return [max(0.0, rate * time - 1) / others for rate in rates]


def _whole_shares(values: int, fractions: Sequence[float]) -> tuple[int, ...]:
    """Whole numbers in these proportions that sum to `values`; what rounding leaves goes to the largest fraction."""
    shares = [int(values * fraction) for fraction in fractions]
    shares[max(range(len(fractions)), key=lambda index: fractions[index])] += values - sum(shares)
    return tuple(shares)
