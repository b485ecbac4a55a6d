"""The software that a run serves to volunteers: a wheel of the running code, identified by SHA-256.

The wheel is built reproducibly from the installed files. The build needs no tools or network, works
for checkouts, images and ordinary installations, and gives the same file on all replicas.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from string import Template

from auth.errors import ConfigError
from auth.join_link import JoinLink
from dashboards import NOTEBOOK, SKILL
from peer.runtime.software import CONSTRAINTS, DISTRIBUTION, install_commands
from peer.runtime.version import COMMIT_FILE, own_commit

ROOT = Path(__file__).resolve().parents[2]
PACKED = ("auth", "coordinator", "dashboards", "peer", "manyhands.py")  # same as `only-include` in pyproject.toml
CONSTRAINTS_NAME, NOTEBOOK_NAME, SKILL_NAME = "constraints.txt", "join.ipynb", "SKILL.md"
UNPACKED = ("dashboards", "guide")  # building the guide must not change the wheel's digest
METADATA = ("METADATA", "WHEEL", "entry_points.txt")
EARLIEST = (1980, 1, 1, 0, 0, 0)  # earliest time that a zip file can store


@dataclass(frozen=True)
class Software:
    """A version of the software as a wheel."""

    name: str  # file name of the wheel
    version: str
    wheel: bytes = field(repr=False)
    constraints: bytes = field(repr=False)  # content of constraints.txt, which is also in the wheel

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the wheel, 64 hexadecimal digits."""
        return hashlib.sha256(self.wheel).hexdigest()

    def address(self, web_address: str) -> str:
        """Return the URL of the wheel, with a digest that pip and uv verify."""
        return f"{web_address}/software/{self.name}#sha256={self.sha256}"

    def constraints_address(self, web_address: str) -> str:
        """Return the URL of the constraints file, which is needed to install the wheel."""
        return f"{web_address}/software/{CONSTRAINTS_NAME}#sha256={hashlib.sha256(self.constraints).hexdigest()}"


@cache  # cached, because the running code does not change
def own_software() -> Software:
    """Build the wheel of the running software. Raises `ConfigError` if it is not installed."""
    try:
        installed = distribution(DISTRIBUTION)
    except PackageNotFoundError as error:
        raise ConfigError(
            f"{ROOT} is not installed, so it cannot be handed to volunteers: pip install -c constraints.txt -e ."
        ) from error
    stem = f"{DISTRIBUTION.replace('-', '_')}-{installed.version}"
    files = {**dict(_packages()), **dict(_metadata(installed, f"{stem}.dist-info"))}
    wheel = pack(files, f"{stem}.dist-info/RECORD")
    return Software(f"{stem}-py3-none-any.whl", installed.version, wheel, CONSTRAINTS.read_bytes())


def pack(files: dict[str, bytes], record: str) -> bytes:
    """Return a wheel of these files, uncompressed, so that all zlib versions give the same digest."""
    lines = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()},{len(content)}"
        for name, content in sorted(files.items())
    ]
    whole = {**dict(sorted(files.items())), record: "\n".join([*lines, f"{record},,", ""]).encode()}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name, content in whole.items():
            entry = zipfile.ZipInfo(name, EARLIEST)
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, content)
    return packed.getvalue()


def _packages() -> Iterator[tuple[str, bytes]]:
    """Yield all files of the packages, except hidden files, Python caches and the built guide."""
    for name in PACKED:
        place = ROOT / name
        for path in place.rglob("*") if place.is_dir() else (place,):
            parts = path.relative_to(ROOT).parts
            is_ours = parts[:2] != UNPACKED and not any(part.startswith((".", "__pycache__")) for part in parts)
            if path.is_file() and is_ours:
                yield "/".join(parts), path.read_bytes()


def _metadata(installed: Distribution, folder: str) -> Iterator[tuple[str, bytes]]:
    """Yield the metadata files that installers need, the commit, and the licences."""
    for name in METADATA:
        yield f"{folder}/{name}", (installed.read_text(name) or "").encode()
    if commit := own_commit():
        yield f"{folder}/{COMMIT_FILE}", commit.encode()
    for path in installed.files or ():
        if path.parts[:2] == (folder, "licenses"):
            yield path.as_posix(), path.read_binary()


def notebook_for(software: str, link: str) -> bytes:
    """Return the volunteers' notebook, filled in with the run's join link and software URL."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    known = {"SOFTWARE": software, "LINK": link}
    for cell in notebook["cells"]:
        for name, value in known.items():
            cell["source"] = [line.replace(f'{name} = ""', f"{name} = {json.dumps(value)}") for line in cell["source"]]
    return json.dumps(notebook, indent=1, ensure_ascii=False).encode()


def skill_for(software: str, link: JoinLink, page: str) -> bytes:
    """Return instructions for a coding agent to join this run with the owner's consent."""
    template = Template(SKILL.read_text(encoding="utf-8"))
    return template.substitute(
        run=link.run,
        page=page,
        link=link,
        install="\n".join(install_commands(software)),
        device=f"~/.local/share/manyhands/{link.run}-{link.fingerprint[:16]}",
    ).encode()
