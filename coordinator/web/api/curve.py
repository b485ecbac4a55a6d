"""The loss curve for charts: as many points as a chart can show, chosen so that the shape stays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from coordinator.statistics.curve import kept_places
from coordinator.web.api.run import cached, live_of
from coordinator.web.state.snapshot import Snapshot

MAX_POINTS = 5000
MAX_SMOOTHING = 10_000
router = APIRouter(prefix="/api/v1", tags=["run"])
Points = Annotated[int, Query(ge=3, le=MAX_POINTS, description="At most so many points.")]
Smoothing = Annotated[int, Query(ge=0, le=MAX_SMOOTHING, description="Steps that the smoothed loss looks back on.")]
Step = Annotated[int, Query(ge=0, le=2**31 - 1)]


class Curve(BaseModel):
    """Points of the loss curve as columns, in the order of steps; those without a loss are left out."""

    era: int
    steps: int  # points there are between `after` and `until`, of which these were chosen
    smoothing: int
    step: list[int]
    loss: list[float]
    smoothed: list[float] | None  # null without smoothing
    samples: list[int]
    samples_total: list[int]  # averaged in up to this step
    completed_at: list[float]


@router.get("/curve", response_model=Curve)
async def curve(
    request: Request, points: Points = 1000, smoothing: Smoothing = 0, after: Step = 0, until: Step = 2**31 - 1
) -> Response:
    """The loss over steps, samples and time, thinned out (largest triangle three buckets).

    `smoothing` adds the exponential moving average of the loss over about so many steps, taken before thinning.
    """
    snapshot = live_of(request).current
    make = partial(curve_points, snapshot, points, smoothing, after, until)
    return await cached(request, ("curve", points, smoothing, after, until), snapshot.steps_version, make)


def curve_points(snapshot: Snapshot, points: int, smoothing: int, after: int, until: int) -> Curve:
    """See `curve`."""
    totals = accumulate(row.samples for row in snapshot.steps)
    known = [(row, total, row.loss) for row, total in zip(snapshot.steps, totals, strict=True) if row.loss is not None]
    averages = moving_average([loss for _, _, loss in known], smoothing) if smoothing else None
    inside = [place for place, (row, _, _) in enumerate(known) if after < row.step <= until]
    xs, ys = [float(known[place][0].step) for place in inside], [known[place][2] for place in inside]
    kept = [inside[place] for place in kept_places(xs, ys, points)]
    chosen = [known[place] for place in kept]
    return Curve(
        era=snapshot.era,
        steps=len(inside),
        smoothing=smoothing,
        step=[row.step for row, _, _ in chosen],
        loss=[round(loss, 5) for _, _, loss in chosen],
        smoothed=None if averages is None else [round(averages[place], 5) for place in kept],
        samples=[row.samples for row, _, _ in chosen],
        samples_total=[total for _, total, _ in chosen],
        completed_at=[round(row.completed_at, 1) for row, _, _ in chosen],
    )


def moving_average(values: Sequence[float], steps: int) -> list[float]:
    """The exponential moving average at each value, the newest weighing 2 / (steps + 1); it begins with the first."""
    weight = 2 / (steps + 1)
    return list(accumulate(values, lambda average, value: average + weight * (value - average)))
