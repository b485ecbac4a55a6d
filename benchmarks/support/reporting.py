"""Common parts of benchmarks: two options, exit on SIGTERM, and a report of figures with their baselines.

A benchmark makes no assertions; it prints a table for people or, with `--json`, one object for machines.
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
    """A measured quantity, with the baseline's value if there is a baseline."""

    name: str
    value: float
    unit: str
    baseline: float | None = None
    baseline_name: str = ""

    @property
    def ratio(self) -> float | None:
        """Return our value divided by the baseline's; whether more is better depends on the unit."""
        return self.value / self.baseline if self.baseline else None


def argument_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a smaller measurement that ends within 60 seconds")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    return parser


def exit_at_sigterm() -> None:
    """Make SIGTERM end this process like `sys.exit`, so that child processes and hosts are cleaned up."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


def report(title: str, figures: Sequence[Figure], as_json: bool) -> None:
    """Print the figures as a table or as JSON."""
    print(as_json_text(title, figures) if as_json else as_table(title, figures))


def as_json_text(title: str, figures: Sequence[Figure]) -> str:
    """Return one JSON object: each figure with unit, baseline and ratio, and a description of the machine."""
    machine = {"platform": platform.platform(), "python": platform.python_version()}
    rows = [{**asdict(figure), "ratio": figure.ratio} for figure in figures]
    return json.dumps({"benchmark": title, "machine": machine, "figures": rows}, indent=2)


def as_table(title: str, figures: Sequence[Figure]) -> str:
    """Return a table with aligned columns: figure, value with its unit, baseline, ratio."""
    return "\n".join([title, *aligned([("figure", "value", "baseline", "ratio"), *map(_row, figures)])])


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose first row is the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]


def _row(figure: Figure) -> tuple[str, str, str, str]:
    baseline = "" if figure.baseline is None else f"{_number(figure.baseline)} ({figure.baseline_name})"
    ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
    return figure.name, f"{_number(figure.value)} {figure.unit}", baseline, ratio


def _number(value: float) -> str:
    """Format a large number with grouped thousands, a small one with four significant digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
