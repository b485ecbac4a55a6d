"""The loss curve as an SVG image, shown without JavaScript and until the charts have loaded.

In a page the image uses the page's style (`dashboards/web/style.css`), including dark mode; a
standalone image has its own style. Long curves are downsampled with largest-triangle-three-buckets
(Steinarsson 2013). Nearby milestones share a mark, as in `dashboards/web/milestone_marks.js`. The
API uses the same smoothing and range for charts of long curves.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate, chain
from types import MappingProxyType

from coordinator.statistics.milestones import Milestone, MilestoneKind
from dashboards import english

Told = tuple[int, str]  # (step, text) of a milestone
Point = tuple[float, float]
WIDTH, HEIGHT = 720, 280
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 14, 34
MAX_POINTS = 400
TICKS = 5
LONG = 200  # minimum number of steps for smoothing and for omitting the initial drop
SMOOTHING = ((10_000, 500), (2_000, 100), (LONG, 20))  # (minimum number of steps in the curve, smoothing window)
FIRST_DROP = 0.03  # fraction of the steps in which the loss drops from its initial log(vocabulary size)
OUTLIERS = 0.005  # fraction of losses to exclude from the range, at each end

STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#6b7280}.grid{stroke:#9ca3af;stroke-opacity:.3}"
    ".phase{stroke:#6b7280;stroke-dasharray:3 3}.curve,.raw,.held-out{fill:none;stroke:#2f6fed;stroke-width:2}"
    ".raw{stroke-width:1;stroke-opacity:.3}.curve-dot,.curve-name{fill:#2f6fed}.held-out{stroke:#c2570c}.held-out-dot,.held-out-name{fill:#c2570c}"
    ".milestone,.milestone-name{fill:#17744a}"
)

STYLE_SHA256 = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()  # hash for CSP headers
STAR = "M0-7L2-2.2H7L3 1L4.4 6L0 3L-4.4 6L-3 1L-7-2.2H-2Z"
CLIP = (  # clip path that hides the initial drop and outliers
    f'<clipPath id="curve-area"><rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" '
    f'height="{HEIGHT - TOP - BOTTOM}"/></clipPath><g clip-path="url(#curve-area)">'
)
APART = 14  # minimum distance between milestone marks, in pixels
NO_PHASES: Mapping[int, str] = MappingProxyType({})


Texts = Callable[..., str]  # function that returns the text for a key, such as `curve.step`
_WORDS = {
    MilestoneKind.FIRST_STEP: "history.first-step",
    MilestoneKind.SAMPLES: "history.milestone_samples",
    MilestoneKind.DEVICES: "history.milestone_devices",
    MilestoneKind.LOSS: "history.milestone_loss",
}


def told(milestone: Milestone, texts: Texts = english) -> Told:
    """Return the step and the text of a milestone."""
    return milestone.step, texts(_WORDS[milestone.kind], n=f"{milestone.value:,.15g}")


def draw_curve(
    points: Sequence[Point],
    title: str,
    boundaries: Mapping[int, str] = NO_PHASES,
    held_out: Sequence[Sequence[Point]] = (),
    texts: Texts = english,
    alone: bool = True,
    milestones: Sequence[Told] = (),
) -> str:
    """Draw the loss over steps as SVG; a long curve is drawn faintly behind its moving average.

    `boundaries` maps a phase's last step to the next phase's name. `held_out` has one validation
    curve per set of samples. `milestones`, ordered by step, are drawn as stars above the axis.
    """
    drawn = decimate(points, MAX_POINTS)
    smooth = decimate(_smoothed(points), MAX_POINTS)
    lines = [decimate(line, MAX_POINTS) for line in held_out if line]
    if not drawn and not lines:
        waiting = f'<text class="waiting" x="50%" y="50%" text-anchor="middle">{escape(texts("curve.waiting"))}</text>'
        return _frame(title, waiting, alone)
    shown = usual_range(points, list(chain.from_iterable(held_out)))
    area = _Area.around([*drawn, *chain.from_iterable(lines)], shown)
    reached = [each for each in milestones if area.low_x <= each[0] <= area.high_x]
    parts = [*_axes(area, texts), *_phases(area, boundaries), CLIP if shown else ""]
    if drawn:
        parts += _line(area, drawn, "raw" if smooth else "curve", dots=len(drawn) == 1)
    if smooth:
        parts += _line(area, smooth, "curve", dots=False)
    for line in lines:
        parts += _line(area, line, "held-out", dots=True)
    parts += ["</g>" if shown else ""]
    parts += _milestones(area, reached, texts)
    names = {"curve": texts("curve.training"), "held-out": texts("curve.held_out")} if lines else {}
    parts += _legend(names | ({"milestone": f"★ {texts('curve.milestone')}"} if reached else {}))
    return _frame(title, "".join(parts), alone)


@dataclass(frozen=True)
class _Area:
    """The plot area, which maps steps and losses to pixels."""

    low_x: float
    high_x: float
    low_y: float
    high_y: float

    @classmethod
    def around(cls, points: Sequence[Point], shown: tuple[float, float] | None) -> _Area:
        """Return the plot area for all points; `shown` overrides the range of losses."""
        steps = [x for x, _ in points]
        return cls(min(steps), max(*steps, min(steps) + 1), *(shown or _range([y for _, y in points])))

    def x(self, step: float) -> str:
        return f"{LEFT + (step - self.low_x) / (self.high_x - self.low_x) * (WIDTH - LEFT - RIGHT):.1f}"

    def y(self, loss: float) -> str:
        return f"{TOP + (self.high_y - loss) / (self.high_y - self.low_y) * (HEIGHT - TOP - BOTTOM):.1f}"


def _axes(area: _Area, texts: Texts) -> Iterator[str]:
    for tick in range(TICKS):
        value = area.low_y + (area.high_y - area.low_y) * tick / (TICKS - 1)
        y = area.y(value)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        yield f'<text x="{LEFT - 8}" y="{y}" dy="4" text-anchor="end">{value:.2f}</text>'
    yield f'<text x="{LEFT}" y="{HEIGHT - 10}">{area.low_x:g}</text>'
    last = escape(texts("curve.step", step=f"{area.high_x:g}"))
    yield f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 10}" text-anchor="end">{last}</text>'


def _phases(area: _Area, boundaries: Mapping[int, str]) -> Iterator[str]:
    for step, name in boundaries.items():
        if area.low_x <= step < area.high_x:
            x = area.x(step + 0.5)  # a line halfway between two steps
            yield f'<line class="phase" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
            yield f'<text x="{x}" y="{TOP}" dx="4" dy="10">{escape(name)}</text>'


def _milestones(area: _Area, milestones: Sequence[Told], texts: Texts) -> Iterator[str]:
    """Draw a star for each group of milestones, with a tooltip that lists them."""
    for group in groups(milestones, APART * (area.high_x - area.low_x) / (WIDTH - LEFT - RIGHT)):
        words = "\n".join(f"{text} · {texts('curve.step', step=f'{step:,}')}" for step, text in group)
        place = f"translate({area.x(group[0][0])} {HEIGHT - BOTTOM - 8})"
        yield f'<path class="milestone" d="{STAR}" transform="{place}"><title>{escape(words)}</title></path>'


def _legend(names: Mapping[str, str]) -> Iterator[str]:
    spans = [f'<tspan class="{kind}-name" dx="12">{escape(name)}</tspan>' for kind, name in names.items()]
    if spans:
        yield f'<text x="50%" y="{HEIGHT - 10}" text-anchor="middle">{"".join(spans)}</text>'


def _line(area: _Area, points: Sequence[Point], name: str, *, dots: bool) -> Iterator[str]:
    places = [(area.x(step), area.y(loss)) for step, loss in points]
    yield f'<polyline class="{name}" points="{" ".join(f"{x},{y}" for x, y in places)}"/>'
    if dots:
        yield from (f'<circle class="{name}-dot" cx="{x}" cy="{y}" r="3"/>' for x, y in places)


def smoothing_of(steps: int) -> int:
    """Return the default smoothing window for a number of steps, or 0 for a short curve."""
    return next((window for least, window in SMOOTHING if steps >= least), 0)


def moving_average(values: Sequence[float], steps: int) -> list[float]:
    """Compute the exponential moving average (weight 2 / (steps + 1)) from the first value on."""
    weight = 2 / (steps + 1)
    return list(accumulate(values, lambda average, value: average + weight * (value - average)))


def usual_range(points: Sequence[Point], held_out: Sequence[Point] = ()) -> tuple[float, float] | None:
    """Return the range of losses without the initial drop and outliers; None for too few steps."""
    if len(points) < LONG:
        return None
    begin = points[int(FIRST_DROP * len(points))][0]
    losses = sorted(loss for step, loss in points if step >= begin)
    rare = int(OUTLIERS * len(losses))
    return _range([losses[rare], losses[-1 - rare], *(loss for step, loss in held_out if step >= begin)])


def _smoothed(points: Sequence[Point]) -> list[Point]:
    """Return the moving average of a long curve as points; an empty list for a short curve."""
    window = smoothing_of(len(points))
    if not window:
        return []
    averages = moving_average([loss for _, loss in points], window)
    return [(step, average) for (step, _), average in zip(points, averages, strict=True)]


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    margin = max(0.05 * (high - low), 0.01 * abs(high), 1e-3)
    return low - margin, math.fsum((high, margin))


def _frame(title: str, content: str, alone: bool) -> str:
    style = f"<style>{STYLE}</style>" if alone else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="loss-curve" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
        f"<title>{escape(title)}</title>{style}{content}</svg>"
    )


def groups(milestones: Sequence[Told], least_steps: float) -> list[list[Told]]:
    """Group milestones, ordered by step, so that each group spans at most `least_steps`."""
    found: list[list[Told]] = []
    for each in milestones:
        if found and each[0] - found[-1][0][0] <= least_steps:
            found[-1].append(each)
        else:
            found.append([each])
    return found


def decimate(points: Sequence[Point], most: int) -> list[Point]:
    """Downsample a curve to at most `most` points, preserving its shape."""
    return [points[place] for place in kept_places([x for x, _ in points], [y for _, y in points], most)]


def kept_places(xs: Sequence[float], ys: Sequence[float], most: int) -> list[int]:
    """Return the indices of `most` points that preserve the shape, or of all if there are fewer.

    Both ends are kept, and in each bucket of neighbours the point that forms the largest triangle
    with the previously kept point and the mean of the next bucket. All are kept if `most` < 3.
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
