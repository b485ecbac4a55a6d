"""The generated parts of the guide's pages, between `<!-- generated: NAME -->` and `<!-- end -->`.

They are committed, so that a code host shows them. `make reference` writes them anew; a test holds them.
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
    """Return a page with its generated parts made anew; raises `KeyError` for an unknown name."""
    return PART.sub(lambda part: f"{part[1]}\n{parts()[part[2]].strip()}\n\n{part[3]}", markdown)


@cache
def parts() -> dict[str, str]:
    """Everything that is generated, as Markdown, by the names in the markers."""
    return {
        "commands": commands_by_panel(),
        "exit codes": _exit_codes(),
        "rehearsal inputs": _inputs(),
        "memory": memory_table(),
        "names": names_by_topic(),
        **key_lists(),
    }


def _exit_codes() -> str:
    """Return the exit codes of the errors that a person can mend: what happened, and what to do."""
    errors = sorted(_errors_below(ManyhandsError), key=lambda error: error.exit_code)
    told = [(f"{error.exit_code}", f"`{error.code}`", " ".join((error.__doc__ or "").split())) for error in errors]
    return "\n\n".join(definition([code], name, "", meaning) for code, name, meaning in told)


def _inputs() -> str:
    """Return the figures from which a rehearsal's volunteers are drawn, by their sources."""
    rows = [
        f"| {', '.join(map(_input, origin.entries))} | {origin.kind} | {' '.join(origin.source.split())} |"
        for origin in provenance()
    ]
    return "\n".join(["| figures | kind | source, or reason |", "|---|---|---|", *rows])


def _input(entry: str) -> str:
    """Return an entry of the tables, with its value if it is a number."""
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
