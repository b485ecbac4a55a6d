"""Which parts of the curve somebody contributed to: steps, drawn together into few enough ranges. Pure."""

from __future__ import annotations

from collections.abc import Iterable

Range = tuple[int, int]  # the first and the last step, both of them contributed to


def step_ranges(steps: Iterable[int], most: int) -> list[Range]:
    """Consecutive steps as ranges; where these are more than `most`, the narrowest gaps are left out of sight."""
    ranges: list[Range] = []
    for step in steps:  # in ascending order; one may come twice
        if ranges and step <= ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], max(step, ranges[-1][1]))
        else:
            ranges.append((step, step))
    return _joined(ranges, most)


def _joined(ranges: list[Range], most: int) -> list[Range]:
    if len(ranges) <= most:
        return ranges
    gaps = sorted(range(1, len(ranges)), key=lambda place: ranges[place - 1][1] - ranges[place][0])  # the widest first
    begins = sorted([0, *gaps[: most - 1]])
    return [
        (ranges[begin][0], ranges[end - 1][1]) for begin, end in zip(begins, [*begins[1:], len(ranges)], strict=True)
    ]
