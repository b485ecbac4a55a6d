"""The dashboard's pages: templates, styles, ES modules and texts, served without a build step."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

WEB = Path(__file__).parent / "web"  # public pages: templates (*.html), styles, modules and texts
ADMIN = Path(__file__).parent / "admin"  # templates of the administrators' pages
GUIDE = Path(__file__).parent / "guide"  # the guide's site, built by `make docs`
NOTEBOOK = Path(__file__).parent / "join.ipynb"  # volunteers' notebook, a template for each run's values
SKILL = Path(__file__).parent / "SKILL.md"  # instructions for coding agents, a template for each run's values
DEFAULT_LANGUAGE = "en"
CONTENT_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}


def page_files() -> dict[str, Path]:
    """Return all files that the pages load, by path below `WEB`."""
    found = (file for file in sorted(WEB.rglob("*")) if file.suffix in CONTENT_TYPES)
    return {file.relative_to(WEB).as_posix(): file for file in found}


def content_type(name: str) -> str:
    """Return the media type for a file name."""
    return CONTENT_TYPES[Path(name).suffix]


@cache
def page_version() -> str:
    """Return a hash of all page files; with the hash in URLs, browsers can cache files forever."""
    digest = hashlib.sha256()
    for name, file in page_files().items():
        digest.update(name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:12]


@cache
def catalogs() -> dict[str, dict[str, Any]]:
    """Return each language's texts, name and direction by BCP 47 tag; the default comes first."""
    names = sorted((WEB / "i18n").glob("*.json"), key=lambda file: (file.stem != DEFAULT_LANGUAGE, file.stem))
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in names}


def english(key: str, **values: object) -> str:
    """Return an English text by its key, such as `curve.step`, with the values filled in."""
    section, _, name = key.partition(".")
    text = str(catalogs()[DEFAULT_LANGUAGE][section][name])
    return text.format_map(values) if values else text
