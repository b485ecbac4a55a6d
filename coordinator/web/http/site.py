"""The files of a static site (the guide), and the site's Content-Security-Policy.

The policy allows the theme's inline scripts by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cached_property
from pathlib import Path

from coordinator.web.http.answers import Encoded, encode
from coordinator.web.http.headers import PLOTLY_STYLES
from dashboards import CONTENT_TYPES

TYPES = CONTENT_TYPES | {
    ".html": "text/html; charset=utf-8",
    ".parquet": "application/vnd.apache.parquet",
    ".png": "image/png",
}
START = "index.html"
_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)  # inline scripts, whose tags have no attributes


class Guide:
    """The files of the guide; there are none if the guide has not been built."""

    def __init__(self, folder: Path) -> None:
        """Index the files by their paths below `folder`; only indexed files are served."""
        found = (file for file in folder.rglob("*") if file.suffix in TYPES and file.is_file())
        self._files = {file.relative_to(folder).as_posix(): file for file in found}
        self._encoded: dict[str, Encoded] = {}

    @property
    def is_built(self) -> bool:
        """True if the guide has been built."""
        return START in self._files

    def file(self, name: str) -> Encoded | None:
        """Return a file's content, compressed on the first request."""
        if name in self._files and name not in self._encoded:
            self._encoded[name] = encode(self._files[name].read_bytes(), TYPES[self._files[name].suffix])
        return self._encoded.get(name)

    @cached_property
    def policy(self) -> str:
        """The Content-Security-Policy of all pages; icons may be `data:` images."""
        pages = (file.read_bytes() for name, file in self._files.items() if name.endswith(".html"))
        scripts = sorted({script for page in pages for script in _SCRIPT.findall(page)})
        hashes = "".join(
            f" 'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'" for script in scripts
        )
        return (
            f"default-src 'none'; script-src 'self'{hashes}; style-src 'self' {PLOTLY_STYLES}; img-src 'self' data:; "
            "connect-src 'self'; worker-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
        )
