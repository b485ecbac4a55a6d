"""Pure functions for the names of an archive's files, which replace API responses.

The file of an API response is named after its URL: `curve?points=600` becomes
`curve,points=600.json`. The pages' scripts construct the same names (`dashboards/web/api.js`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_PLAIN = re.compile(r"[A-Za-z0-9._-]")
Parameters = Mapping[str, str | int]


@dataclass(frozen=True)
class Archive:
    """An archive of a run's pages at one point in time."""

    at: float  # Unix time in seconds
    address: str  # future URL of the pages, without a trailing slash; "" if unknown
    language: str  # language of pages without a language in the file name

    def page_name(self, view: str, language: str) -> str:
        """Return the file name of a view, such as `overview`, in a language."""
        stem = "index" if view == "overview" else view
        return f"{stem}.html" if language == self.language else f"{stem}.{language}.html"


def answer_name(path: str, parameters: Parameters) -> str:
    """Return the file name of an API response, relative to `api/v1/`."""
    parts = [f"{_file_part(name)}={_file_part(str(value))}" for name, value in sorted(parameters.items())]
    return ",".join(["/".join(map(_file_part, path.split("/"))), *parts]) + ".json"


def _file_part(text: str) -> str:
    """Escape all characters that a web server might treat specially in a file name."""
    return "".join(each if _PLAIN.match(each) else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return "".join(f"~{byte:02x}" for byte in character.encode())
