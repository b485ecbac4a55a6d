"""Which points of a long curve to draw, so that its shape stays: largest triangle three buckets (Steinarsson 2013)."""

from __future__ import annotations

from collections.abc import Sequence


def kept_places(xs: Sequence[float], ys: Sequence[float], most: int) -> list[int]:
    """The places of at most `most` points, first and last among them; all, where there are no more or `most` < 3.

    Of each bucket of neighbours that point stays which makes the largest triangle with the one kept before it and the
    mean of the next bucket.
    """
    count = len(xs)
    if count <= most or most < 3:
        return list(range(count))
    kept = [0]
    width = (count - 2) / (most - 2)
    for bucket in range(most - 2):
        start, end = 1 + int(bucket * width), 1 + int((bucket + 1) * width)
        after = min(count, 1 + int((bucket + 2) * width))
        mean_x, mean_y = sum(xs[end:after]) / (after - end), sum(ys[end:after]) / (after - end)
        last_x, last_y = xs[kept[-1]], ys[kept[-1]]
        across, down = last_x - mean_x, mean_y - last_y
        areas = [
            abs(across * (y - last_y) - (last_x - x) * down) for x, y in zip(xs[start:end], ys[start:end], strict=True)
        ]
        kept.append(start + areas.index(max(areas)))
    return [*kept, count - 1]
