"""The shared dashboard's page: HTML, CSS and ES modules, served by the coordinator without any build step."""

from __future__ import annotations

from pathlib import Path

WEB = Path(__file__).parent / "web"
ADMIN = Path(__file__).parent / "admin"  # templates of the administrators' pages
CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def page_files() -> dict[str, Path]:
    """Every file of the page by name."""
    return {file.name: file for file in WEB.iterdir() if file.suffix in CONTENT_TYPES}


def content_type(name: str) -> str:
    """The media type of one of the page's files."""
    return CONTENT_TYPES[Path(name).suffix]
