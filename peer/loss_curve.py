"""The loss of this device's samples over global steps: a bounded number of points, and a small drawing of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_POINTS = 240
WIDTH, HEIGHT = 640, 150
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 10, 24
Point = tuple[float, float]  # global step, loss


@dataclass(frozen=True)
class LossCurve:
    """At most `MAX_POINTS` points, each the mean of `stride` steps, which doubles when there are too many."""

    stride: int = 1  # steps
    settled: tuple[Point, ...] = ()
    newest: tuple[Point, ...] = ()  # the steps of the last point, each by itself

    @property
    def points(self) -> tuple[Point, ...]:
        """What to draw."""
        return (*self.settled, _mean(self.newest)) if self.newest else self.settled

    def with_point(self, step: int, loss: float) -> LossCurve:
        """The curve up to `step`; what was known of that step and of later ones (which were undone) goes."""
        settled = tuple(point for point in self.settled if point[0] < step)
        newest = tuple(point for point in self.newest if point[0] < step)
        if newest and newest[0][0] // self.stride != step // self.stride:
            settled, newest = (*settled, _mean(newest)), ()
        curve = LossCurve(self.stride, settled, (*newest, (float(step), loss)))
        return curve if len(curve.points) <= MAX_POINTS else curve._coarser()

    def _coarser(self) -> LossCurve:
        pairs = [self.settled[index : index + 2] for index in range(0, len(self.settled), 2)]
        return LossCurve(2 * self.stride, tuple(map(_mean, pairs)), self.newest)


def _mean(points: Sequence[Point]) -> Point:
    return sum(step for step, _ in points) / len(points), sum(loss for _, loss in points) / len(points)


def draw_loss(points: Sequence[Point]) -> str:
    """An SVG element in the page's own text colour; nothing before there are two points."""
    if len(points) < 2:
        return ""
    first, last = points[0][0], points[-1][0]
    low, high = _range([loss for _, loss in points])

    def place(point: Point) -> str:
        x = LEFT + (point[0] - first) / (last - first) * (WIDTH - LEFT - RIGHT)
        return f"{x:.1f},{TOP + (high - point[1]) / (high - low) * (HEIGHT - TOP - BOTTOM):.1f}"

    right, base = WIDTH - RIGHT, HEIGHT - BOTTOM
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Loss over global steps" '
        'style="display:block;width:100%;margin:.8em 0 .4em;font:12px system-ui,sans-serif" fill="currentColor">'
        f'<path d="M{LEFT} {TOP}H{right}M{LEFT} {base}H{right}" stroke="currentColor" stroke-opacity=".25"/>'
        f'<text x="{LEFT - 6}" y="{TOP + 4}" text-anchor="end">{high:.2f}</text>'
        f'<text x="{LEFT - 6}" y="{base + 4}" text-anchor="end">{low:.2f}</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 6}">step {first:.0f}</text>'
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 6}" text-anchor="middle">loss on this device’s samples</text>'
        f'<text x="{right}" y="{HEIGHT - 6}" text-anchor="end">step {last:.0f}</text>'
        f'<polyline points="{" ".join(map(place, points))}" fill="none" stroke="#3b82f6" stroke-width="2"/></svg>'
    )


def _range(losses: Sequence[float]) -> Point:
    """Lowest and highest with a margin, never equal."""
    margin = max(0.05 * (max(losses) - min(losses)), 0.01)
    return min(losses) - margin, max(losses) + margin
