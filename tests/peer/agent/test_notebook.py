"""The display under a notebook's cell, and its loss curve in a bounded number of points."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from peer.agent.notebook import (
    HEIGHT,
    MAX_NOTICE_LETTERS,
    MAX_NOTICES,
    MAX_POINTS,
    PANEL_EVERY_S,
    WIDTH,
    LossCurve,
    NotebookDisplay,
    NotebookState,
    as_html,
    as_text,
    draw_loss,
    reduce_notebook,
)
from peer.agent.terminal import DisplayEvent, PanelState
from peer.config.phases import PhaseFacts
from peer.control.events import Connected, Standing
from peer.reporting.messages import Failed, Notice, PhaseEntered, Progress, Ready, Stopped
from tests.support.reports import report

HOSTILE = "<script>alert(1)</script>&\"'"

NOON = 12 * 3600.0

START = NotebookState(PanelState(run="demo", member="ada", device_number=12))

PROGRESS = Progress(3, 10, 1040, target_batch_size=4160, peers=2, samples_per_second=5.0, loss=7.5)

REPORT = report(4, 1060, 7.25, group_size=3, group_samples=4200)


class Tags(HTMLParser):
    """Collects the elements of a page, and proves that they are closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element begins."""
        self.found.add(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """The newest element ends."""
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element without content."""
        self.found.add(tag)


def after(*events: DisplayEvent, start: NotebookState = START) -> NotebookState:
    """The state after these events at noon."""
    for event in events:
        start = reduce_notebook(start, event, NOON)
    return start


def test_panel_shows_loss_contribution_progress_and_peers() -> None:
    """Everything that the person wants to know stands in both forms of the panel."""
    state = after(Ready("Qm", 3, "cuda:0 (Tesla T4)"), PROGRESS, REPORT, PROGRESS, Standing(5600, 2, 14, 15.6, 7200.0))
    for shown in (as_html(state), as_text(state)):
        for part in (
            "demo",
            "ada",
            "training on cuda:0 (Tesla T4)",
            "Towards global step 4: 1,040 of 4,160 samples, about 3 min left",
            "7.500",
            "1,060",
            "5,600",
            "2 of 14",
            "The whole run: 15.6 samples/s, about 2 h left.",
            "Last averaging: 3 peers, 0.5 s",
            "12:00 UTC",
        ):
            assert part in shown
    assert "width:25.0%" in as_html(state)


def test_who_has_nothing_confirmed_has_no_rank() -> None:
    """The coordinator's place behind all others is none to show."""
    text = as_text(after(Standing(0, 1, 3)))
    assert "counted in all 0" in text
    assert "your rank –" in text


def test_an_assistant_sees_what_it_averaged() -> None:
    """Who does not train has no loss, samples or speed of its own."""
    text = as_text(after(Ready("Qm", 3, ""), replace(REPORT, loss=None, samples=0, averaged_bytes=2_500_000)))
    assert "averaged here 2.5 MB" in text
    for absent in ("loss here", "samples from you", "samples a second"):
        assert absent not in text


def test_the_curve_is_of_the_steps_and_of_the_one_in_progress() -> None:
    """A step's loss takes the place of what was known of it before; steps without a loss have no point."""
    state = after(PROGRESS, REPORT, replace(PROGRESS, step=4, loss=7.0), replace(PROGRESS, step=4, loss=None))
    assert state.curve.points == ((4, 7.25), (5, 7.0))
    assert "<polyline" in as_html(state)


def test_nothing_from_the_network_becomes_markup() -> None:
    """Run, member, device and notices are escaped, and the panel's own elements are well-formed."""
    state = NotebookState(PanelState(run=HOSTILE, member=HOSTILE))
    state = after(
        Ready("Qm", 3, HOSTILE),
        Notice("info", HOSTILE),
        PhaseEntered(PhaseFacts(1, 2, 0, 128, 4096, fresh_optimizer=False)),
        PROGRESS,
        replace(REPORT, lost_samples=3, lost_reason=HOSTILE),
        replace(PROGRESS, step=4),
        Failed("worker", 18, f"again {HOSTILE}"),
        start=state,
    )
    html = as_html(state)
    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= 5
    assert Tags(html).found == {"div", "span", "strong", "bdi", "svg", "path", "text", "polyline"}


def test_notices_are_few_and_not_repeated() -> None:
    """The newest are kept, a repeated one once, and none is endless."""
    state = after(*(Notice("info", f"notice {n}") for n in range(9)), Notice("info", "notice 7"))
    assert [told.text for told in state.told] == [f"notice {n}" for n in (4, 5, 6, 8, 7)]
    assert len(state.told) == MAX_NOTICES
    assert len(after(Notice("info", "x" * 10_000)).told[0].text) == MAX_NOTICE_LETTERS


def test_losses_and_an_absent_coordinator_are_told() -> None:
    """What goes wrong is said in words, in the panel and among the notices; ordinary steps are no notice."""
    state = after(Connected(True), REPORT, replace(REPORT, lost_samples=8, lost_reason="out of sync"), Connected(False))
    text = as_text(state)
    assert "8 samples lost (out of sync)" in text
    assert "Lost before they could be averaged: 8 samples." in text
    assert "The coordinator does not answer" in text
    assert len(state.told) == 2
    back = after(Connected(True), Connected(False), Connected(True))
    assert [told.text for told in back.told][1:] == ["The coordinator answers again."]


def test_lines_are_panels_and_not_too_many() -> None:
    """Each line is one JSON object with both forms; progress is written once a second, the end always."""
    now = [NOON]
    stream = io.StringIO()
    display = NotebookDisplay(START.panel, stream, lambda: now[0])
    for _ in range(3):
        display.show(PROGRESS)
    now[0] += PANEL_EVERY_S
    display.show(PROGRESS)
    display.show(Stopped("enough"))
    display.close()
    panels = [json.loads(line)["panel"] for line in stream.getvalue().splitlines()]
    assert len(panels) == 4
    assert all(set(panel) == {"text/html", "text/plain"} for panel in panels)
    assert "Left the swarm in order: enough." in panels[-1]["text/html"]


def curve_of(steps: int) -> LossCurve:
    """A loss that falls by 0.01 a step."""
    curve = LossCurve()
    for step in range(1, steps + 1):
        curve = curve.with_point(step, 10 - 0.01 * step)
    return curve


def test_a_step_has_one_point() -> None:
    """What is known of a step while it is computed is replaced by what is known at its end."""
    curve = LossCurve().with_point(1, 9.0).with_point(2, 8.5).with_point(2, 8.0)
    assert curve.points == ((1, 9.0), (2, 8.0))


def test_undone_steps_leave_the_curve() -> None:
    """When the swarm returns to an earlier step, what came after it goes."""
    assert curve_of(5).with_point(3, 7.0).points[1:] == ((2, 9.98), (3, 7.0))


@pytest.mark.parametrize("steps", [MAX_POINTS, MAX_POINTS + 1, 10_000])
def test_long_curves_are_bounded_and_true(steps: int) -> None:
    """However many steps there were, the points are few, in order, on the line, and reach from end to end."""
    points = curve_of(steps).points
    assert len(points) <= MAX_POINTS
    assert [step for step, _ in points] == sorted(step for step, _ in points)
    assert all(loss == pytest.approx(10 - 0.01 * step, abs=1e-6) for step, loss in points)
    assert len(points) >= MAX_POINTS / 2
    assert points[0][0] <= steps / 100
    assert points[-1][0] >= steps * 0.99


@pytest.mark.parametrize("losses", [(5.0, 5.0), (9.0, 1.0), (1e-9, 1e9)])
def test_drawing_stays_within_its_frame(losses: tuple[float, float]) -> None:
    """Every point lies inside the picture, also if the loss does not change."""
    svg = draw_loss([(1.0, losses[0]), (2.0, losses[1])])
    places = re.findall(r"([\d.-]+),([\d.-]+)", svg.partition('polyline points="')[2].partition('"')[0])
    assert len(places) == 2
    for x, y in (map(float, place) for place in places):
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT


def test_nothing_is_drawn_of_less_than_two_points() -> None:
    """Before there is a line there is no frame either."""
    assert draw_loss(()) == draw_loss([(1.0, 9.0)]) == ""
