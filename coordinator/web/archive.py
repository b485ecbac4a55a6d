"""An archive of a run's dashboard: the same pages as static files, which any web host can serve.

The web application is called in-process, without a network, for each page and for each API request
that the pages' scripts make (`questions`). The archive shows one snapshot; the run may continue.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import shutil
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import httpx2
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, ValidationError

from auth.errors import ConfigError, StorageError
from auth.files import new_directory
from coordinator.checkpoints.manifest import FileEntry
from coordinator.context.services import RunServices, open_run_services
from coordinator.run.directory import RunDirectory
from coordinator.statistics.moments import chunk_of
from coordinator.statistics.people import HardwareClass, LeaderboardPeriod, people
from coordinator.store.engine import Database
from coordinator.store.ledger_models import DAY_S
from coordinator.web.app import create_app
from coordinator.web.pages.translations import choose_language
from coordinator.web.pages.views import MISSING, VIEWS
from coordinator.web.state.frozen import Archive, Parameters, answer_name
from coordinator.web.state.web_state import WebState
from dashboards import catalogs, page_files, page_version

Question = tuple[str, Parameters]

ANSWERS: Sequence[Question] = (
    ("overview", {}),
    ("curve", {"points": 600}),
    ("curve", {"points": 800}),
    *(("curve", {"points": 1000, "smoothing": smoothing}) for smoothing in ("auto", 0, 20, 100, 500)),
    ("checkpoints", {}),
    ("validations", {}),
    ("evaluations", {}),
    ("publications", {}),
    ("milestones", {}),
    ("trials", {}),
)

TIMELINE_DAYS = (1, 7, 14, 60, 3660)  # time spans offered by participants.html, in days
MANIFEST = "archive.json"
FORMAT_VERSION = 1

FILES = (
    *("curve.svg", "card.png", "plotly.min.js", "openapi.json"),
    *(f"api/v1/history/{table}.csv" for table in ("steps", "sessions", "validations")),
    *(f"api/v1/history/{table}.parquet" for table in ("steps", "contributions", "sessions", "validations")),
)


class ArchiveManifest(BaseModel):
    """The manifest of an archive (archive.json): the run, and the size and digest of each file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format_version: int
    run: str
    fingerprint: str  # fingerprint of the run's certificate, because run names are not unique
    step: int
    taken_at: float  # Unix time in seconds
    files: dict[str, FileEntry]

    @property
    def size_bytes(self) -> int:
        """The total size of all files except the manifest."""
        return sum(file.size_bytes for file in self.files.values())


@dataclass(frozen=True)
class Wish:
    """Options for an archive: folder, future URL ("" if unknown), and whether to overwrite."""

    out: Path
    address: str = ""
    overwrite: bool = False


def write_archive(directory: RunDirectory, wish: Wish, now: float) -> ArchiveManifest:
    """Write the run's archive. Raises `ConfigError` for a folder in use, `StorageError` on failure.

    With `overwrite`, a complete new archive replaces an earlier one of the same run.
    """
    earlier = _earlier(directory, wish)
    target = wish.out.absolute()
    aside = target.with_name(f".{target.name}.archive") if earlier else target
    if earlier:
        shutil.rmtree(aside, ignore_errors=True)  # left over from an interrupted attempt
    with open_run_services(directory, lambda: now) as services, new_directory(aside) as folder:
        manifest = asyncio.run(_fill(folder, directory, _without_trials(services), wish.address, now))
        _open_to_all(folder)
    if earlier:
        _replace(target, aside)
    return manifest


async def _fill(
    folder: Path, directory: RunDirectory, services: RunServices, address: str, now: float
) -> ArchiveManifest:
    language = choose_language(services.config.run.language.split("-")[0].lower(), "")
    archive = Archive(now, address.rstrip("/"), language)
    web = WebState(directory, services, archive)
    app = create_app(web)
    async with app.router.lifespan_context(app):
        step = web.snapshot.last_step
        asked_for = questions(services.database, step, now)
        files = {name: _write(folder / name, content) async for name, content in _contents(app, archive, asked_for)}
    manifest = ArchiveManifest(
        format_version=FORMAT_VERSION,
        run=services.config.run.name,
        fingerprint=directory.join_link.fingerprint,
        step=step,
        taken_at=now,
        files=files,
    )
    _write(folder / MANIFEST, manifest.model_dump_json(indent=2).encode())
    return manifest


async def _contents(app: FastAPI, archive: Archive, asked_for: Iterable[Question]) -> AsyncIterator[tuple[str, bytes]]:
    """Yield the path and content of every file in the archive."""
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://archive") as client:
        for view in (view for view in (*VIEWS, MISSING) if view.in_archive):
            for language in catalogs():
                response = await client.get(f"/{view.path}", params={"lang": language}, headers={"Accept": "text/html"})
                yield archive.page_name(view.name, language), _content(response, 404 if view is MISSING else 200)
        for name in FILES:
            yield name, _content(await client.get(f"/{name}"))
        for name in page_files():
            path = f"static/{page_version()}/{name}"
            yield path, _content(await client.get(f"/{path}"))
        async for name, content in _answers(client, asked_for):
            yield f"api/v1/{name}", content


async def _answers(client: httpx2.AsyncClient, asked_for: Iterable[Question]) -> AsyncIterator[tuple[str, bytes]]:
    """Yield the file name and content of each API response, including all pages of long lists."""
    for path, parameters in asked_for:
        asked: Parameters | None = parameters
        while asked is not None:
            response = await client.get(f"/api/v1/{path}", params=dict(asked))
            yield answer_name(path, asked), _content(response)
            following = response.json().get("next")
            asked = None if following is None else {**parameters, "cursor": following}


def _content(response: httpx2.Response, status: int = 200) -> bytes:
    if response.status_code != status:
        raise StorageError(f"The page's {response.url.path} cannot be archived: {response.text[:200]}")
    return bytes(response.content)


def _write(path: Path, content: bytes) -> FileEntry:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o644)
    return FileEntry(size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def _open_to_all(folder: Path) -> None:
    """Make all folders readable by the web server's user, regardless of the umask."""
    for path in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        path.chmod(0o755)


def _without_trials(services: RunServices) -> RunServices:
    """Disable the playground, because an archive cannot answer visitors."""
    dashboard = services.config.dashboard.model_copy(update={"try_it": False})
    return replace(services, config=services.config.model_copy(update={"dashboard": dashboard}))


def _earlier(directory: RunDirectory, wish: Wish) -> bool:
    """Return whether to replace an archive of this run. Raises `ConfigError` for other files."""
    path = wish.out / MANIFEST
    if not (wish.overwrite and wish.out.is_dir() and any(wish.out.iterdir())):
        return False
    try:
        found = ArchiveManifest.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise ConfigError(f"{wish.out} holds no archive that could be replaced: choose another directory.") from error
    if found.fingerprint != directory.join_link.fingerprint:
        raise ConfigError(f"{wish.out} is the archive of another run, `{found.run}`: choose another directory.")
    return True


def _replace(target: Path, new: Path) -> None:
    """Replace the archive at `target` with `new`; a web server may briefly respond with 404."""
    gone = target.with_name(f".{target.name}.replaced")
    shutil.rmtree(gone, ignore_errors=True)
    target.rename(gone)
    new.rename(target)
    shutil.rmtree(gone)


def questions(database: Database, last_step: int, at: float) -> Iterator[Question]:
    """Yield the API requests that the pages' scripts would make at the Unix time `at`.

    `last_step` is 0 before the first step. The database is read lazily. Members come last, so
    every member named in an earlier response has a page, even one who has just joined.
    """
    yield from ANSWERS
    yield from ((f"moments/{number}", {}) for number in range(chunk_of(last_step) + 1 if last_step else 0))
    until = math.ceil(at / 60) * 60  # the next full minute, as in participants.js
    yield from (("stays", {"since": max(0, until - days * DAY_S), "until": until}) for days in TIMELINE_DAYS)
    yield "participants", {}
    for window, kind in product(LeaderboardPeriod, (None, *HardwareClass)):
        yield "participants", {"window": window.value} | ({} if kind is None else {"kind": kind.value})
    yield from ((f"participants/{person.number}", {}) for person in people(database, at))
