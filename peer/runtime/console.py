"""Output of commands: tables for people, JSON for scripts.

Names and reasons come from users, so they are printed as plain text, never parsed as markup.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def say(text: str = "") -> None:
    """Print a line to stdout and flush, because other programs may be waiting for the line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def say_json(content: Any) -> None:
    """Print a command's result as JSON, for scripts."""
    say(json.dumps(content, ensure_ascii=False, allow_nan=False))


def say_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table with headings; right-align numeric columns."""
    from rich.console import Console  # imported here because long-lived processes print no tables
    from rich.table import Table
    from rich.text import Text

    rows = list(rows)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[number], (int, float)) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(format_value(value)) for value in row))
    Console().print(table)


def say_facts(facts: Mapping[str, object]) -> None:
    """Print one fact per line without wrapping, so that links can be copied."""
    width = max(map(len, facts))
    for name, value in facts.items():
        say(f"{name:<{width}}  {format_value(value)}")


def format_value(value: object) -> str:
    """Format a value for people: grouped thousands, two decimals for floats, and "-" for None."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


def format_age(then: float | None, now: float) -> str | None:
    """Format the time since `then` in its largest unit, such as `3 h ago`; None if `then` is None."""
    if then is None:
        return None
    age_s = max(0, int(now - then))
    size_s, unit = next(((size, unit) for size, unit in _UNITS if age_s >= size), _UNITS[-1])
    return f"{age_s // size_s} {unit} ago"
