"""The server-drawn curve keeps its shape when it is reduced, and close milestones share a mark."""

from __future__ import annotations

import math
from xml.etree import ElementTree as ET

import pytest

from coordinator.statistics.curve import (
    HEIGHT,
    MAX_POINTS,
    draw_curve,
    groups,
    kept_places,
    moving_average,
    smoothing_of,
    told,
    usual_range,
)
from coordinator.statistics.milestones import Milestone, MilestoneKind
from coordinator.web.pages.translations import texts_of


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (MilestoneKind.FIRST_STEP, 1, "The first global step"),
        (MilestoneKind.SAMPLES, 10_000_000, "10,000,000 samples"),
        (MilestoneKind.DEVICES, 20, "Record: 20 devices in one step"),
        (MilestoneKind.LOSS, 4.5, "Record: loss on held-out text below 4.5"),
    ],
)
def test_each_kind_has_its_words(kind: MilestoneKind, value: float, words: str) -> None:
    """Without a language they are those of the English pages."""
    milestone = Milestone(kind, value, 7, 0.0)
    assert told(milestone) == told(milestone, texts_of("en")) == (7, words)
    assert told(milestone, texts_of("es"))[1] != words


def test_close_ones_share_a_mark() -> None:
    """Those at most so many steps after a group's first; a long row of close ones is more than one group."""
    reached = [(step, str(step)) for step in (1, 1, 4, 10, 13, 16, 19, 22)]
    steps = [[step for step, _ in group] for group in groups(reached, 10)]
    assert steps == [[1, 1, 4, 10], [13, 16, 19, 22]]
    assert groups([], 10) == []
    assert [len(group) for group in groups(reached[:2], 0)] == [2]
    assert [len(group) for group in groups(reached, 0.5)] == [2, 1, 1, 1, 1, 1, 1]


WAVE = [(float(x), math.sin(x / 30) + (5.0 if x == 700 else 0.0)) for x in range(2000)]


def test_drawing_is_valid_and_bounded() -> None:
    """The SVG parses, holds the line and the smoothed one, of bounded length, and a title that says what it shows."""
    drawn = draw_curve(WAVE, "loss & <more>")
    root = ET.fromstring(drawn)  # noqa: S314 - our own text
    lines = {line.get("class"): line.get("points", "") for line in root.iter("{http://www.w3.org/2000/svg}polyline")}
    title = root.find("{http://www.w3.org/2000/svg}title")
    assert title is not None
    assert title.text == "loss & <more>"
    assert {name: len(points.split()) for name, points in lines.items()} == {"raw": MAX_POINTS, "curve": MAX_POINTS}


def test_boundaries_stand_between_two_steps() -> None:
    """A phase's line is half a step after the last step of the one before; what is not on the curve has no line."""
    drawn = draw_curve([(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)], "loss", {1: "phase 2", 3: "<phase 3>", 9: "phase 4"})
    root = ET.fromstring(drawn)  # noqa: S314 - our own text
    lines = [line for line in root.iter("{http://www.w3.org/2000/svg}line") if line.get("class") == "phase"]
    assert [line.get("x1") for line in lines] == [line.get("x2") for line in lines]
    first, second = (float(place.split(",")[0]) for place in root[-1].get("points", "").split()[:2])
    assert [float(line.get("x1", "")) for line in lines] == [pytest.approx((first + second) / 2, abs=0.1)]
    assert "phase 2" in drawn
    assert "phase 3" not in drawn


def test_held_out_text_has_a_line_of_its_own_for_each_set() -> None:
    """Its lines are named, keep apart where the samples are others, and both losses fit the picture."""
    drawn = draw_curve([(1.0, 3.0), (4.0, 1.0)], "loss", held_out=[[(2.0, 4.0)], [(3.0, 2.0), (4.0, 0.5)], []])
    root = ET.fromstring(drawn)  # noqa: S314 - our own text
    lines = [line for line in root.iter("{http://www.w3.org/2000/svg}polyline") if line.get("class") == "held-out"]
    assert [len(line.get("points", "").split()) for line in lines] == [1, 2]
    heights = [float(dot.get("cy", "")) for dot in root.iter("{http://www.w3.org/2000/svg}circle")]
    assert len(heights) == 3
    assert all(0 < height < HEIGHT for height in heights)
    assert heights == sorted(heights)  # downwards
    assert "held-out text" in drawn
    assert "held-out text" not in draw_curve([(1.0, 3.0)], "loss")


def test_milestones_are_stars_above_the_axis() -> None:
    """Close ones share one, whose tooltip tells all of them; what is not on the curve has none, nor a legend."""
    reached = [(1, "first"), (3, "<b>1,000</b>"), (1500, "10,000"), (9999, "never")]
    root = ET.fromstring(draw_curve(WAVE, "loss", milestones=reached))  # noqa: S314 - our own text
    stars = list(root.iter("{http://www.w3.org/2000/svg}path"))
    assert [star[0].text for star in stars] == ["first · step 1\n<b>1,000</b> · step 3", "10,000 · step 1,500"]
    places = [star.get("transform", "")[len("translate(") : -1].split() for star in stars]
    assert [float(x) for x, _ in places] == [pytest.approx(52.3, abs=0.1), pytest.approx(544.2, abs=0.5)]
    assert all(0 < float(y) < HEIGHT for _, y in places)
    legend = [span.get("class") for span in root.iter("{http://www.w3.org/2000/svg}tspan")]
    assert legend == ["milestone-name"]
    assert "tspan" not in draw_curve(WAVE, "loss", milestones=reached[-1:])


def test_single_and_equal_points_can_be_drawn() -> None:
    """One step, or a loss that does not move, is no division by zero."""
    for points in ([(1.0, 9.0)], [(1.0, 2.0), (2.0, 2.0)]):
        assert "nan" not in draw_curve(points, "loss")


def test_empty_curve_says_that_it_waits() -> None:
    """Before the first step the picture says so."""
    assert "Waiting" in draw_curve([], "loss")


def test_few_points_all_stay() -> None:
    """Nothing is left out where there is room."""
    assert kept_places([1, 2, 3], [5, 4, 3], 3) == [0, 1, 2]
    assert kept_places([], [], 10) == []
    assert kept_places(range(9), range(9), 2) == list(range(9))


@pytest.mark.parametrize("most", [3, 4, 50, 99, 100])
def test_the_ends_stay_and_the_order(most: int) -> None:
    """As many as wanted, rising, first and last among them."""
    ys = [math.sin(x / 5) for x in range(101)]
    kept = kept_places(range(101), ys, most)
    assert len(kept) == most
    assert kept == sorted(set(kept))
    assert (kept[0], kept[-1]) == (0, 100)


def test_a_spike_stays() -> None:
    """A single point that stands out is the shape: a mean would hide it."""
    ys = [1.0] * 20_000
    ys[12_345] = 9.0
    kept = kept_places(range(20_000), ys, 400)
    assert 12_345 in kept


def test_the_moving_average_follows() -> None:
    """It begins with the first value, and comes nearer to a new one by the same part each step."""
    assert moving_average([4.0, 4.0, 4.0], 9) == [4.0, 4.0, 4.0]
    assert moving_average([0.0, 10.0, 10.0], 3) == [0.0, 5.0, 7.5]
    assert moving_average([], 3) == []


FALLING = [(float(step), 2.0 + 9.0 * math.exp(-step / 10) - step / 10_000) for step in range(1, 2001)]


@pytest.mark.parametrize(("steps", "window"), [(0, 0), (199, 0), (200, 20), (2_000, 100), (20_000, 500)])
def test_the_longer_a_run_the_more_it_is_smoothed(steps: int, window: int) -> None:
    """A short run is not smoothed at all."""
    assert smoothing_of(steps) == window


def test_the_range_begins_after_the_first_drop() -> None:
    """Neither the first steps nor a single outlier widen it; a loss on held-out text does, a short curve is whole."""
    low, high = usual_range(FALLING) or (0.0, 0.0)
    assert low < FALLING[-1][1] < high < 2.5
    assert usual_range([(step, 50.0 if step == 1500 else loss) for step, loss in FALLING]) == pytest.approx(
        (low, high), abs=0.01
    )
    assert (usual_range(FALLING, [(1.0, 11.0), (900.0, 3.0)]) or (0.0, 0.0))[1] == pytest.approx(3.0, abs=0.1)
    assert usual_range(FALLING[:199]) is None


def test_a_long_curve_is_drawn_after_its_first_drop() -> None:
    """The first losses lie above the picture's frame, where nothing is drawn; a short curve has no frame."""
    drawn = draw_curve(FALLING, "loss")
    root = ET.fromstring(drawn)  # noqa: S314 - our own text
    [group] = root.iter("{http://www.w3.org/2000/svg}g")
    raw, smooth = (line.get("points", "").split() for line in group)
    heights = [float(point.split(",")[1]) for point in raw]
    assert heights[0] < 0 < heights[-1] < HEIGHT
    assert group.get("clip-path") == "url(#curve-area)"
    assert len(smooth) == MAX_POINTS
    assert "clip" not in draw_curve(FALLING[:199], "loss")
