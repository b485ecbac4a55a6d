"""The loss curve for readers without JavaScript, and before the charts have loaded: a small SVG drawn by the server."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from types import MappingProxyType

Point = tuple[float, float]
WIDTH, HEIGHT = 720, 280
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 14, 34
MAX_POINTS = 400
TICKS = 5
NO_PHASES: Mapping[int, str] = MappingProxyType({})


def decimate(points: Sequence[Point], most: int) -> list[Point]:
    """At most `most` points that keep the curve's shape (largest triangle three buckets, Steinarsson 2013)."""
    if len(points) <= most or most < 3:
        return list(points)
    kept = [points[0]]
    width = (len(points) - 2) / (most - 2)
    for bucket in range(most - 2):
        start, end = 1 + int(bucket * width), 1 + int((bucket + 1) * width)
        following = points[end : 1 + int((bucket + 2) * width)] or [points[-1]]
        mean_x = sum(x for x, _ in following) / len(following)
        mean_y = sum(y for _, y in following) / len(following)
        last_x, last_y = kept[-1]
        kept.append(
            max(
                points[start:end],
                key=lambda point: abs(
                    (last_x - mean_x) * (point[1] - last_y) - (last_x - point[0]) * (mean_y - last_y)
                ),
            )
        )
    return [*kept, points[-1]]


def draw_curve(points: Sequence[Point], title: str, boundaries: Mapping[int, str] = NO_PHASES) -> str:
    """An SVG of loss (y) over global steps (x); `boundaries` are the last steps of phases, with the next one's name."""
    if not points:
        return _frame(title, '<text x="50%" y="50%" text-anchor="middle">Waiting for the first global step.</text>')
    drawn = decimate(points, MAX_POINTS)
    low_x, high_x = drawn[0][0], max(drawn[-1][0], drawn[0][0] + 1)
    low_y, high_y = _range([y for _, y in drawn])

    def place(point: Point) -> str:
        x = LEFT + (point[0] - low_x) / (high_x - low_x) * (WIDTH - LEFT - RIGHT)
        y = TOP + (high_y - point[1]) / (high_y - low_y) * (HEIGHT - TOP - BOTTOM)
        return f"{x:.1f},{y:.1f}"

    lines = []
    for tick in range(TICKS):
        value = low_y + (high_y - low_y) * tick / (TICKS - 1)
        _, y = place((low_x, value)).split(",")
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y}" dy="4" text-anchor="end">{value:.2f}</text>')
    lines.append(f'<text x="{LEFT}" y="{HEIGHT - 10}">{low_x:g}</text>')
    lines.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 10}" text-anchor="end">step {high_x:g}</text>')
    for step, name in boundaries.items():
        if low_x <= step < high_x:
            x, _ = place((step + 0.5, low_y)).split(",")  # between the old phase's last step and the new one's first
            lines.append(f'<line class="phase" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
            lines.append(f'<text x="{x}" y="{TOP}" dx="4" dy="10">{escape(name)}</text>')
    lines.append(f'<polyline class="curve" points="{" ".join(map(place, drawn))}"/>')
    if len(drawn) == 1:
        x, y = place(drawn[0]).split(",")
        lines.append(f'<circle class="dot" cx="{x}" cy="{y}" r="3"/>')
    return _frame(title, "".join(lines))


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    margin = max(0.05 * (high - low), 0.01 * abs(high), 1e-3)
    return low - margin, math.fsum((high, margin))


def _frame(title: str, content: str) -> str:
    style = (
        "text{font:12px system-ui,sans-serif;fill:#6b7280}.grid{stroke:#9ca3af;stroke-opacity:.3}"
        ".phase{stroke:#6b7280;stroke-dasharray:3 3}.curve{fill:none;stroke:#2f6fed;stroke-width:2}.dot{fill:#2f6fed}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
        f"<title>{escape(title)}</title><style>{style}</style>{content}</svg>"
    )
