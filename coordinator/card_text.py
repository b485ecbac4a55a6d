"""Small pieces of Markdown that all sections of a model card are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_MARKS = re.compile(r"([\\`*_{}\[\]<>()#+\-.!|~&:@])")


def escaped(text: str) -> str:
    """Somebody's own words as Markdown that shows just these, on one line."""
    return _MARKS.sub(r"\\\1", " ".join(text.split()))


def number(value: float | None) -> str:
    """Four digits after the point, a dash for nothing."""
    return "—" if value is None else f"{value:.4f}"


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Lines of a Markdown table; the cells are escaped by whoever gives them."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
