"""The loss curve for readers without JavaScript, and before the charts have loaded: a small SVG drawn by the server."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain
from types import MappingProxyType

Point = tuple[float, float]
WIDTH, HEIGHT = 720, 280
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 14, 34
MAX_POINTS = 400
TICKS = 5
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#6b7280}.grid{stroke:#9ca3af;stroke-opacity:.3}"
    ".phase{stroke:#6b7280;stroke-dasharray:3 3}.curve,.held-out{fill:none;stroke:#2f6fed;stroke-width:2}"
    ".curve-dot,.curve-name{fill:#2f6fed}.held-out{stroke:#c2570c}.held-out-dot,.held-out-name{fill:#c2570c}"
)
STYLE_SHA256 = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()  # by which its policy allows it
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


@dataclass(frozen=True)
class _Area:
    """Where a point of the curve stands in the drawing."""

    low_x: float
    high_x: float
    low_y: float
    high_y: float

    @classmethod
    def around(cls, points: Sequence[Point]) -> _Area:
        steps = [x for x, _ in points]
        return cls(min(steps), max(*steps, min(steps) + 1), *_range([y for _, y in points]))

    def x(self, step: float) -> str:
        return f"{LEFT + (step - self.low_x) / (self.high_x - self.low_x) * (WIDTH - LEFT - RIGHT):.1f}"

    def y(self, loss: float) -> str:
        return f"{TOP + (self.high_y - loss) / (self.high_y - self.low_y) * (HEIGHT - TOP - BOTTOM):.1f}"


def draw_curve(
    points: Sequence[Point],
    title: str,
    boundaries: Mapping[int, str] = NO_PHASES,
    held_out: Sequence[Sequence[Point]] = (),
) -> str:
    """An SVG of loss (y) over global steps (x); `boundaries` are the last steps of phases, with the next one's name.

    The loss on held-out text, one line for each set of samples, is drawn beside the training's.
    """
    drawn = decimate(points, MAX_POINTS)
    lines = [decimate(line, MAX_POINTS) for line in held_out if line]
    if not drawn and not lines:
        return _frame(title, '<text x="50%" y="50%" text-anchor="middle">Waiting for the first global step.</text>')
    area = _Area.around([*drawn, *chain.from_iterable(lines)])
    parts = [*_axes(area), *_phases(area, boundaries)]
    if drawn:
        parts += _line(area, drawn, "curve", dots=len(drawn) == 1)
    for line in lines:
        parts += _line(area, line, "held-out", dots=True)
    if lines:
        parts.append(
            f'<text x="50%" y="{HEIGHT - 10}" text-anchor="middle"><tspan class="curve-name">training</tspan>'
            '<tspan class="held-out-name" dx="12">held-out text</tspan></text>'
        )
    return _frame(title, "".join(parts))


def _axes(area: _Area) -> Iterator[str]:
    for tick in range(TICKS):
        value = area.low_y + (area.high_y - area.low_y) * tick / (TICKS - 1)
        y = area.y(value)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        yield f'<text x="{LEFT - 8}" y="{y}" dy="4" text-anchor="end">{value:.2f}</text>'
    yield f'<text x="{LEFT}" y="{HEIGHT - 10}">{area.low_x:g}</text>'
    yield f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 10}" text-anchor="end">step {area.high_x:g}</text>'


def _phases(area: _Area, boundaries: Mapping[int, str]) -> Iterator[str]:
    for step, name in boundaries.items():
        if area.low_x <= step < area.high_x:
            x = area.x(step + 0.5)  # between the old phase's last step and the new one's first
            yield f'<line class="phase" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
            yield f'<text x="{x}" y="{TOP}" dx="4" dy="10">{escape(name)}</text>'


def _line(area: _Area, points: Sequence[Point], name: str, *, dots: bool) -> Iterator[str]:
    places = [(area.x(step), area.y(loss)) for step, loss in points]
    yield f'<polyline class="{name}" points="{" ".join(f"{x},{y}" for x, y in places)}"/>'
    if dots:
        yield from (f'<circle class="{name}-dot" cx="{x}" cy="{y}" r="3"/>' for x, y in places)


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    margin = max(0.05 * (high - low), 0.01 * abs(high), 1e-3)
    return low - margin, math.fsum((high, margin))


def _frame(title: str, content: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
        f"<title>{escape(title)}</title><style>{STYLE}</style>{content}</svg>"
    )
