"""The volunteer's panel in a notebook, rendered as HTML and plain text.

The notebook cell runs in the host's Python, without our packages, so it receives rendered panels,
one JSON object per line: `{"panel": {"text/html": ..., "text/plain": ...}}`. All text is escaped
because some of it comes from the network. Only `NotebookDisplay` has side effects.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import TextIO

from peer.agent.terminal import (
    DisplayEvent,
    PanelState,
    batch_line,
    describe,
    megabytes,
    reduce_state,
    run_pace,
)
from peer.control.events import Connected, Standing
from peer.reporting.messages import Progress, StepReport

MAX_POINTS = 240
WIDTH, HEIGHT = 640, 150  # size of the loss curve in SVG units
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 10, 24
Point = tuple[float, float]  # (global step, loss)
PANEL_EVERY_S = 1.0
MAX_NOTICES = 5
MAX_NOTICE_LETTERS = 400
_MUTED = "opacity:.7;font-size:.85em"
_TRACK = "height:.6em;border-radius:.3em;background:rgba(128,128,128,.25);overflow:hidden;margin:.35em 0 .9em"


@dataclass(frozen=True)
class LossCurve:
    """The loss of this device's samples over global steps.

    It has at most `MAX_POINTS` points, each the mean over `stride` steps.
    """

    stride: int = 1  # number of steps averaged into each point
    settled: tuple[Point, ...] = ()
    newest: tuple[Point, ...] = ()  # steps not yet averaged into a point

    @property
    def points(self) -> tuple[Point, ...]:
        """The points to draw, including the unfinished last one."""
        return (*self.settled, _mean(self.newest)) if self.newest else self.settled

    def with_point(self, step: int, loss: float) -> LossCurve:
        """Return the curve with a new point; drop points of rolled-back steps (`step` or later)."""
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


@dataclass(frozen=True)
class Told:
    """A message for the volunteer, with its time."""

    at: float  # Unix time in seconds
    text: str


@dataclass(frozen=True)
class NotebookState:
    """The state shown by the notebook panel."""

    panel: PanelState
    curve: LossCurve = field(default_factory=LossCurve)
    told: tuple[Told, ...] = ()  # newest last


def reduce_notebook(state: NotebookState, event: DisplayEvent, now: float) -> NotebookState:
    """Return the state after applying an event at `now` (Unix time)."""
    known = Connected(state.panel.connected)
    state = replace(state, panel=reduce_state(state.panel, event))
    if isinstance(event, Progress | StepReport) and event.loss is not None:
        step = event.step + 1 if isinstance(event, Progress) else event.step  # `Progress` reports the next step's loss
        state = replace(state, curve=state.curve.with_point(step, event.loss))
    text = None if event == known else _worth_telling(event)
    return state if text is None else replace(state, told=_tell(state.told, Told(now, text)))


def _worth_telling(event: DisplayEvent) -> str | None:
    usual = isinstance(event, Progress) or (isinstance(event, StepReport) and not event.lost_samples)
    text = None if usual else describe(event)
    return None if text is None else text[:MAX_NOTICE_LETTERS]


def _tell(told: tuple[Told, ...], new: Told) -> tuple[Told, ...]:
    """Append a message, replacing an earlier one with the same text; keep the last `MAX_NOTICES`."""
    return (*(old for old in told if old.text != new.text), new)[-MAX_NOTICES:]


def figures(state: PanelState) -> Iterator[tuple[str, str]]:
    """Yield (name, value) pairs for the panel's main figures."""
    assisting = state.activity == "assisting"
    if not assisting:
        yield "loss here", "–" if state.loss is None else f"{state.loss:.3f}"
        yield "samples from you", f"{state.contributed:,}"
    standing = state.standing or Standing(0, 0, 0)
    yield "counted in all", f"{standing.own_samples:,}" if state.standing else "–"
    yield "your rank", f"{standing.rank} of {standing.members}" if standing.own_samples else "–"
    if assisting:
        yield "averaged here", megabytes(state.averaged_bytes)
    else:
        yield "samples a second", f"{state.samples_per_second:,.1f}"
    yield "peers", f"{state.peers:,}"


def facts(state: PanelState) -> Iterator[str]:
    """Yield the sentences shown below the panel's main figures."""
    if state.phase is not None:
        yield f"Phase {state.phase.line}."
    if run_pace(state):
        yield f"The whole run: {run_pace(state)}."
    if state.last_averaging_s is not None:
        averaged = f"{megabytes(state.averaged_bytes)} averaged here so far"
        yield f"Last averaging: {state.last_group} peers, {state.last_averaging_s:.1f} s; {averaged}."
    if state.lost:
        yield f"Lost before they could be averaged: {state.lost:,} samples."
    if not state.connected:
        yield "The coordinator does not answer; training goes on, and your reports are kept."


def as_text(state: NotebookState) -> str:
    """Render the panel as plain text, for notebooks without HTML."""
    panel = state.panel
    lines = [
        f"{panel.run}: {panel.who}, {_doing(panel)}",
        batch_line(panel),
        ", ".join(f"{name} {value}" for name, value in figures(panel)),
        *facts(panel),
        *(f"{_clock_time(told.at)} {told.text}" for told in state.told),
    ]
    return "\n".join(line for line in lines if line)


def as_html(state: NotebookState) -> str:
    """Render the panel as HTML for light and dark pages, without scripts, which pages may block."""
    panel = state.panel
    full = 100 * min(1.0, panel.swarm_samples / max(1, panel.target_batch_size))
    parts = [
        f"<div><strong><bdi>{escape(panel.run)}</bdi></strong> &middot; <bdi>{escape(panel.who)}</bdi> "
        f"&middot; {escape(_doing(panel))}</div>",
        f'<div style="margin-top:.6em">{escape(batch_line(panel))}</div>',
        f'<div style="{_TRACK}"><div style="width:{full:.1f}%;height:100%;background:#3b82f6"></div></div>',
        '<div style="display:flex;flex-wrap:wrap;gap:.5em 1.8em">',
        *(_figure(name, value) for name, value in figures(panel)),
        "</div>",
        draw_loss(state.curve.points),
        *(f'<div style="{_MUTED}">{escape(fact)}</div>' for fact in facts(panel)),
        *map(_notice, reversed(state.told)),
    ]
    style = (
        "max-width:46em;padding:.9em 1.1em;border:1px solid rgba(128,128,128,.4);border-radius:.7em;"
        "font:14px/1.45 system-ui,sans-serif;overflow-wrap:anywhere"
    )
    return f'<div style="{style}">{"".join(parts)}</div>'


def _figure(name: str, value: str) -> str:
    return (
        f'<div><div style="{_MUTED}">{escape(name)}</div>'
        f'<div style="font-size:1.35em;font-variant-numeric:tabular-nums">{escape(value)}</div></div>'
    )


def _notice(told: Told) -> str:
    return (
        f'<div style="margin-top:.3em"><span style="{_MUTED}">{_clock_time(told.at)}</span> {escape(told.text)}</div>'
    )


def _doing(panel: PanelState) -> str:
    return f"{panel.activity} on {panel.device}" if panel.device and panel.activity == "training" else panel.activity


def _clock_time(at: float) -> str:
    return time.strftime("%H:%M UTC", time.gmtime(at))


class NotebookDisplay:
    """A display that redraws the panel after events, at most once a second for frequent events."""

    def __init__(self, panel: PanelState, stream: TextIO, clock: Callable[[], float]) -> None:
        self._state, self._stream, self._clock = NotebookState(panel), stream, clock
        self._written_at = float("-inf")
        self._write()

    def show(self, event: DisplayEvent) -> None:
        """Apply an event and redraw the panel, at most once a second for frequent events."""
        self._state = reduce_notebook(self._state, event, self._clock())
        often = isinstance(event, Progress | StepReport)
        if not often or abs(self._clock() - self._written_at) >= PANEL_EVERY_S:
            self._write()

    def close(self) -> None:
        """Draw the final panel, which remains on the page."""
        self._write()

    def _write(self) -> None:
        bundle = {"text/html": as_html(self._state), "text/plain": as_text(self._state)}
        print(json.dumps({"panel": bundle}), file=self._stream, flush=True)
        self._written_at = self._clock()


def draw_loss(points: Sequence[Point]) -> str:
    """Return the loss curve as SVG in the page's text color, or "" for fewer than two points."""
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
    """Return the range of the loss axis, with a margin so that it is never empty."""
    margin = max(0.05 * (max(losses) - min(losses)), 0.01)
    return min(losses) - margin, max(losses) + margin
