"""A plot of rehearsals: steps, samples and peers over time, and the share of each device class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from auth.errors import ConfigError, StorageError
from peer.rehearsal.forecast.report import RehearsalReport, classes
from peer.rehearsal.population import HOUR_S
from peer.rehearsal.scenario import Scenario
from peer.rehearsal.swarm import RehearsedRun
from peer.runtime.software import how_to_add

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREY, INK = "#2563a8", "#d9822b", "#9aa3ad", "#222222"
MOST_WINDOWS, STEPS_A_WINDOW = 24, 3  # maximum number of bars for the samples, and minimum number of steps per bar
SMALL = 9


def require_matplotlib() -> None:
    """Raise `ConfigError` without matplotlib; call it before the rehearsal."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"`--picture` needs the package matplotlib, which is not installed: {how_to_add('corpus')}."
        ) from error


def draw(report: RehearsalReport, path: Path, title: str) -> None:
    """Write the plot as a PNG file with matplotlib. Raises `StorageError` if it cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Figure = Figure(figsize=(12, 8), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=14, color=INK)
    axes: Sequence[Sequence[Any]] = figure.subplots(2, 2)
    run, scenario = _typical(report)
    _draw_steps(axes[0][0], run)
    _draw_peers(axes[0][1], run, scenario)
    _draw_samples(axes[1][0], run)
    _draw_classes(axes[1][1], report)
    for each in (axes[0][0], axes[0][1], axes[1][0], axes[1][1]):
        each.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(path, dpi=120, format="png")
    except OSError as error:
        raise StorageError(f"`--picture` ({path}) cannot be written: {error.strerror}.") from error


def _typical(report: RehearsalReport) -> tuple[RehearsedRun, Scenario]:
    """Return the rehearsal with the median number of samples in steps."""
    pairs = list(zip(report.runs, report.scenarios, strict=True))
    pairs.sort(key=lambda pair: sum(each.work.counted for each in pair[0].devices))
    return pairs[(len(pairs) - 1) // 2]


def _hours_axis(axes: Axes, run: RehearsedRun) -> None:
    axes.set_xlim(0, run.duration_s / HOUR_S)
    axes.set_xlabel("hours since the run's begin")


def _draw_steps(axes: Axes, run: RehearsedRun) -> None:
    axes.set_title("Time from one step to the next")
    times = [step.at_s for step in run.steps]
    gaps = [later - sooner for sooner, later in pairwise(times)]
    averaging = [step.waited_s + step.round_s for step in run.steps[1:]]
    hours = [at / HOUR_S for at in times[1:]]
    axes.plot(hours, gaps, ".", color=BLUE, label="from step to step")
    axes.plot(hours, averaging, ".", color=ORANGE, markersize=4, label="of it, the averaging")
    axes.set_ylabel("seconds")
    if gaps:
        axes.set_ylim(0, 1.35 * max(sorted(gaps)[math.ceil(0.98 * len(gaps)) - 1], *averaging))
        axes.axhline(median(gaps), color=GREY, linewidth=1, linestyle="--", label=f"median {median(gaps):.0f} s")
        axes.legend(frameon=False, fontsize=SMALL, loc="upper right")
    else:
        axes.text(0.5, 0.5, "fewer than two steps", ha="center", transform=axes.transAxes)
    _hours_axis(axes, run)


def _draw_peers(axes: Axes, run: RehearsedRun, scenario: Scenario) -> None:
    axes.set_title("Peers")
    changes = []
    for device in scenario.devices:
        for visit in device.visits:
            changes.append((visit.begin_s, 1))
            if visit.end_s is not None:
                changes.append((visit.end_s, -1))
    hours, there = [0.0], [0]
    for at_s, change in sorted(changes):
        hours.append(at_s / HOUR_S)
        there.append(there[-1] + change)
    hours.append(max(hours[-1], run.duration_s / HOUR_S))
    there.append(there[-1])
    axes.step(hours, there, where="post", color=GREY, label="volunteers with the program running")
    axes.plot(
        [step.at_s / HOUR_S for step in run.steps],
        [step.peers - 1 for step in run.steps],
        ".",
        color=BLUE,
        markersize=4,
        label="volunteers in each step",
    )
    axes.set_ylabel("volunteers")
    axes.set_ylim(0, 1.25 * max(there) + 1)
    axes.legend(frameon=False, fontsize=SMALL, loc="upper right")
    _hours_axis(axes, run)


def _draw_samples(axes: Axes, run: RehearsedRun) -> None:
    axes.set_title("Samples")
    windows = min(MOST_WINDOWS, max(4, len(run.steps) // STEPS_A_WINDOW))
    width_s = run.duration_s / windows
    counted, lost = [0] * windows, [0] * windows
    for at_s, _, what, facts in run.trace:
        window = min(windows - 1, int(at_s / width_s))
        if what == "step":
            counted[window] += facts[1]
        elif what == "lost":
            lost[window] += facts[0]
    begins, width = [window * width_s / HOUR_S for window in range(windows)], width_s / HOUR_S
    per_hour = [[samples / width for samples in part] for part in (counted, lost)]
    axes.bar(begins, per_hour[0], 0.9 * width, align="edge", color=BLUE, label="in steps")
    axes.bar(begins, per_hour[1], 0.9 * width, per_hour[0], align="edge", color=ORANGE, label="lost")
    axes.set_ylabel("samples per hour")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.margins(y=0.2)
    axes.legend(frameon=False, fontsize=SMALL, loc="upper right", ncols=2)
    _hours_axis(axes, run)


def _draw_classes(axes: Axes, report: RehearsalReport) -> None:
    axes.set_title("Classes of devices, all swarms together")
    found = sorted(classes(report).items(), key=lambda item: item[1][1])[-12:]
    devices, samples = (max(1, sum(pair[part] for pair in classes(report).values())) for part in (0, 1))
    places = range(len(found))
    for offset, colour, label, shares in (
        (0.2, GREY, "of the devices", [100 * pair[0] / devices for _, pair in found]),
        (-0.2, BLUE, "of the samples in steps", [100 * pair[1] / samples for _, pair in found]),
    ):
        bars = axes.barh([place + offset for place in places], shares, 0.38, color=colour, label=label)
        axes.bar_label(bars, [f"{share:.0f} %" for share in shares], fontsize=SMALL, padding=3)
    axes.set_yticks(places, [name for name, _ in found])
    axes.set_xlabel("percent")
    axes.margins(x=0.15)
    axes.legend(frameon=False, fontsize=SMALL, loc="lower right")
