"""Runs of virtual workers, their bands over the seeds, and the picture of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import fmean, stdev

from matplotlib import figure
from matplotlib.lines import Line2D

from benchmarks.training.virtual_ways import WAYS

PANELS: Mapping[str, Sequence[str]] = {  # title -> the ways with exact averages
    "Common steps of LAMB": ("exact", "1-bit LAMB, exact"),
    "Local steps of AdamW (DiLoCo, SparseLoCo)": ("AdamW, exact",),
    "Local steps of Muon (MuLoCo)": ("Muon, exact",),
}
COLOURS = {
    "exact": "#222222",
    "float16": "#2563a8",
    "float16, outer momentum": "#5fb3e6",
    "8bit-blockwise": "#2e8b57",
    "PowerSGD rank 16": "#8e6bb8",
    "PowerSGD rank 8": "#b0479b",
    "PowerSGD rank 4": "#e377c2",
    "topk-2bit": "#d9822b",
    "1-bit LAMB, exact": "#8a93a0",
    "1-bit LAMB": "#c0392b",
}
SHAPES = "osD^v"
TICKS = (0.5, 1, 2, 4, 8)
ASIDE = 1.03  # between neighbours with the same bytes


@dataclass(frozen=True)
class Run:
    """One run of a way."""

    way: str
    workers: int
    seed: int
    samples: int
    rounds: int
    loss: float  # of the held-out samples at the end
    sent_bytes: float  # of a worker, for each parameter and round
    received_bytes: float
    encode_ns: float  # of processor time, for each parameter and round
    decode_ns: float


@dataclass(frozen=True)
class Band:
    """A way's losses over the seeds, with so many workers."""

    way: str
    workers: int
    seeds: int
    loss: float
    exact_loss: float  # of the same seeds
    ratio: float  # mean of each seed's loss in terms of that of exact averages
    spread: float  # standard deviation of the ratio, 0 of one seed
    round_bytes: float  # sent and received, for each parameter


def bands_of(runs: Sequence[Run]) -> list[Band]:
    """Return the bands of all ways; a run counts if there is one with exact averages to compare it with.

    That has the same seed and, with local steps, as many workers: with common steps exact averages of the same batches
    are the same for any number of workers, but for the order of sums.
    """
    exact_losses: dict[tuple[str, int, int], float] = {}
    for run in runs:
        if run.way == WAYS[run.way].baseline:
            exact_losses[_exact_run(run)] = run.loss
    bands = []
    for way, workers in dict.fromkeys((run.way, run.workers) for run in runs):
        same = [run for run in runs if (run.way, run.workers) == (way, workers) and _exact_run(run) in exact_losses]
        exact = [exact_losses[_exact_run(run)] for run in same]
        ratios = [run.loss / loss for run, loss in zip(same, exact, strict=True)]
        if ratios:
            bands.append(
                Band(
                    way=way,
                    workers=workers,
                    seeds=len(ratios),
                    loss=fmean(run.loss for run in same),
                    exact_loss=fmean(exact),
                    ratio=fmean(ratios),
                    spread=stdev(ratios) if len(ratios) > 1 else 0.0,
                    round_bytes=fmean(run.sent_bytes + run.received_bytes for run in same),
                )
            )
    return bands


def _exact_run(run: Run) -> tuple[str, int, int]:
    """Return the way, workers and seed that a run is compared with; 0 workers are any number."""
    way = WAYS[run.way]
    return way.baseline, run.workers if way.is_local else 0, run.seed


def draw(bands: Sequence[Band], path: Path) -> None:
    """Draw a panel for each optimizer: ratios over bytes, coloured by code, shaped by workers, hollow with delay."""
    picture = figure.Figure(figsize=(16, 6.5), layout="constrained", facecolor="white")
    numbers = sorted({band.workers for band in bands})
    shape_of = dict(zip(numbers, cycle(SHAPES)))
    panels = picture.subplots(1, len(PANELS), sharey=True)
    for axis, (title, names) in zip(panels, PANELS.items(), strict=True):
        for band in [band for band in bands if WAYS[band.way].baseline in names]:
            code, is_delayed = code_of(band.way), WAYS[band.way].averaging.get("delay", False)
            place = numbers.index(band.workers) - (len(numbers) - 1) / 2 + (len(numbers) + 1 if is_delayed else 0)
            axis.errorbar(
                band.round_bytes * ASIDE**place,
                band.ratio,
                band.spread,
                marker=shape_of[band.workers],
                color=COLOURS[code],
                markerfacecolor="white" if is_delayed else COLOURS[code],
                markersize=6,
                elinewidth=1.2,
                capsize=2,
                linestyle="none",
            )
        codes = dict.fromkeys(code_of(band.way) for band in bands if WAYS[band.way].baseline in names)
        keys = [Line2D([], [], color=COLOURS[code], marker="o", linestyle="none", label=code) for code in codes]
        axis.legend(handles=keys, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, frameon=False)
        axis.axhline(1, color="#8a93a0", linewidth=0.8, zorder=0)
        axis.set_title(title)
        axis.set_xscale("log")
        axis.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
        axis.set_xlim(0.45, 12)
        axis.minorticks_off()
        axis.set_xlabel("bytes a parameter and round, sent and received")
        axis.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("held-out loss in terms of exact averages'")
    shapes = [Line2D([], [], color="#444", marker=shape_of[n], linestyle="none", label=f"{n} workers") for n in numbers]
    hollow = Line2D([], [], color="#444", marker="o", markerfacecolor="white", linestyle="none", label="with delay")
    picture.legend(handles=[*shapes, hollow], loc="outside upper center", ncols=len(shapes) + 1, frameon=False)
    picture.savefig(path, dpi=110)


def code_of(way: str) -> str:
    """Return the name of the code of a way, without its optimizer and delay."""
    return way.removesuffix(", delayed").removeprefix("AdamW, ").removeprefix("Muon, ")
