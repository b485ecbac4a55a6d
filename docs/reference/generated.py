"""Generated parts of the documentation, between `<!-- generated: NAME -->` and `<!-- end -->`.

They are committed, so code hosts show them. `make reference` updates them; a test compares them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from auth.errors import ManyhandsError
from docs.reference.commands import commands_by_panel
from docs.reference.keys import definition, key_lists
from docs.reference.memory import memory_table
from docs.reference.names import names_by_topic
from peer.rehearsal.population import SourcedFigure, population_tables, provenance

DOCS = Path(__file__).resolve().parents[1]
PART = re.compile(r"(<!-- generated: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(markdown: str) -> str:
    """Return a page with its generated parts updated. Raises `KeyError` for an unknown part."""
    return PART.sub(lambda part: f"{part[1]}\n{parts()[part[2]].strip()}\n\n{part[3]}", markdown)


@cache
def parts() -> dict[str, str]:
    """Return all generated parts as Markdown, by their names in the markers."""
    return {
        "commands": commands_by_panel(),
        "exit codes": _exit_codes(),
        "rehearsal inputs": _inputs(),
        "memory": memory_table(),
        "names": names_by_topic(),
        **key_lists(),
    }


def _exit_codes() -> str:
    """Return the exit codes of errors that a user can fix, with their causes and remedies."""
    errors = sorted(_errors_below(ManyhandsError), key=lambda error: error.exit_code)
    told = [(f"{error.exit_code}", f"`{error.code}`", " ".join((error.__doc__ or "").split())) for error in errors]
    return "\n\n".join(definition([code], name, "", meaning) for code, name, meaning in told)


def _inputs() -> str:
    """Return a table of the inputs for simulated volunteers in rehearsals, one row per source."""
    rows = [
        f"| {', '.join(map(_input, origin.entries))} | {origin.kind} | {' '.join(origin.source.split())} |"
        for origin in provenance()
    ]
    return "\n".join(["| figures | kind | source, or reason |", "|---|---|---|", *rows])


def _input(entry: str) -> str:
    """Return the name of a table entry, with the value if it is a single number."""
    found: Any = population_tables()
    for name in entry.split("."):
        found = found[name] if isinstance(found, dict) else getattr(found, name)
    return f"`{entry}`" + (f" = {found.value:g}" if isinstance(found, SourcedFigure) else "")


def _errors_below(error: type[ManyhandsError]) -> Iterator[type[ManyhandsError]]:
    for child in error.__subclasses__():
        yield child
        yield from _errors_below(child)


if __name__ == "__main__":
    for page in DOCS.rglob("*.md"):
        page.write_text(fill(page.read_text(encoding="utf-8")), encoding="utf-8")
