"""The common parts of benchmarks: two options, the end at a signal, one way to show a figure beside its baseline.

A benchmark never asserts; it prints a table for people or, with `--json`, one object for machines.
"""

from __future__ import annotations

import argparse
import json
import platform
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Figure:
    """One measured quantity, with the same quantity of what it is compared with, if there is such a thing."""

    name: str
    value: float
    unit: str
    baseline: float | None = None
    baseline_name: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours divided by the baseline's; whether more is better depends on the unit."""
        return self.value / self.baseline if self.baseline else None


def argument_parser(description: str) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a smaller measurement that ends within 60 seconds")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    return parser


def exit_at_sigterm() -> None:
    """Let SIGTERM end this process as `sys.exit` does: what it started, and the hosts that it made, end with it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


def report(title: str, figures: Sequence[Figure], as_json: bool) -> None:
    """Print the figures as a table or as JSON."""
    print(as_json_text(title, figures) if as_json else as_table(title, figures))


def as_json_text(title: str, figures: Sequence[Figure]) -> str:
    """One object: each figure with its unit, its baseline and the ratio, and the machine they were measured on."""
    machine = {"platform": platform.platform(), "python": platform.python_version()}
    rows = [{**asdict(figure), "ratio": figure.ratio} for figure in figures]
    return json.dumps({"benchmark": title, "machine": machine, "figures": rows}, indent=2)


def as_table(title: str, figures: Sequence[Figure]) -> str:
    """Aligned columns: figure, value with its unit, baseline, ratio."""
    return "\n".join([title, *aligned([("figure", "value", "baseline", "ratio"), *map(_row, figures)])])


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table; the first row is its head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]


def _row(figure: Figure) -> tuple[str, str, str, str]:
    baseline = "" if figure.baseline is None else f"{_number(figure.baseline)} ({figure.baseline_name})"
    ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
    return figure.name, f"{_number(figure.value)} {figure.unit}", baseline, ratio


def _number(value: float) -> str:
    """Thousands grouped where large, four significant digits where small."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
