"""File names of an archive, in which plain files replace the coordinator's answers. Pure.

The file of an API answer is named by its URL: `curve?points=600` becomes `curve,points=600.json`.
The pages' scripts make the same names (`dashboards/web/api.js`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_PLAIN = re.compile(r"[A-Za-z0-9._-]")
Parameters = Mapping[str, str | int]


@dataclass(frozen=True)
class Archive:
    """An archive of a run's pages at one moment."""

    at: float  # Unix seconds
    address: str  # where they will be served, without a slash at the end; "": not known
    language: str  # of the pages without a language in their names

    def page_name(self, view: str, language: str) -> str:
        """Return the file name of a view, such as `overview`, in a language."""
        stem = "index" if view == "overview" else view
        return f"{stem}.html" if language == self.language else f"{stem}.{language}.html"


def answer_name(path: str, parameters: Parameters) -> str:
    """Return the file name of an answer, below `api/v1/`."""
    parts = [f"{_file_part(name)}={_file_part(str(value))}" for name, value in sorted(parameters.items())]
    return ",".join(["/".join(map(_file_part, path.split("/"))), *parts]) + ".json"


def _file_part(text: str) -> str:
    """Escape a text for a file name, so that no web host treats it specially."""
    return "".join(each if _PLAIN.match(each) else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return "".join(f"~{byte:02x}" for byte in character.encode())
