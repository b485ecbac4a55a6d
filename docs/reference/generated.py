"""The generated parts of the guide's pages: `<!-- generated: NAME -->` stands where each belongs."""

from __future__ import annotations

import re
from functools import cache

from docs.reference.commands import commands_by_panel
from docs.reference.keys import key_lists

_MARKER = re.compile(r"<!-- generated: (.+?) -->")


def fill(markdown: str) -> str:
    """Return a page with its generated parts in place of the markers; raises `KeyError` for an unknown name."""
    return _MARKER.sub(lambda marker: parts()[marker.group(1)], markdown)


@cache
def parts() -> dict[str, str]:
    """Everything that is generated, as Markdown, by the names in the markers."""
    return {"commands": commands_by_panel(), **key_lists()}
