"""Reads what a dashboard publishes of receipts, page by page, bounded in size and time."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from auth.errors import ConfigError, StorageError, UnreachableError
from peer.published_receipts import Overview, Page, Published, parse

TIMEOUT_S = 60.0
MAX_ANSWER_BYTES = 64 * 2**20
MAX_FILE_BYTES = 4 * 2**30
MAX_PAGES = 100_000
FRESH_ATTEMPTS, FRESH_PAUSE_S = 30, 1.0  # for an overview that is newer than the last page
Get = Callable[[str], bytes]


def read_published(where: str, wait: Callable[[float], None], get: Get | None = None) -> Published:
    """From a dashboard's address or a saved file; raises `UnreachableError`, `StorageError` or `RequestError`."""
    if urlsplit(where).scheme in ("http", "https"):
        return download(where.rstrip("/"), get or fetch, wait)
    if "://" in where:
        raise ConfigError(f"{where!r} is no dashboard's address (http:// or https://), nor a file.")
    path = Path(where)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise StorageError(f"{path} is larger than {MAX_FILE_BYTES // 2**30} GiB.")
        return parse(Published, path.read_bytes(), str(path))
    except OSError as error:
        raise StorageError(f"Cannot read {path} ({error.strerror}): name a dashboard or a saved file.") from error


def download(base: str, get: Get, wait: Callable[[float], None]) -> Published:
    """The leaderboard, all receipts, and the leaderboard again, which is newer than the last of them."""
    before, pages, after = _overview(base, get), list[Page](), 0
    while len(pages) < MAX_PAGES:
        url = f"{base}/api/v1/receipts?after={after}"
        page = parse(Page, get(url), url)
        pages.append(page)
        if page.next is None or page.next <= after:
            break
        after = page.next
    return Published(before=before, pages=tuple(pages), after=_newer_overview(base, get, wait))


def _newer_overview(base: str, get: Get, wait: Callable[[float], None]) -> Overview:
    """One whose taking began after now: the one shown now may be old, and the next one may be half taken."""
    seen = [_overview(base, get)]
    for _ in range(FRESH_ATTEMPTS):
        if len({overview.taken_at for overview in seen}) > 2:
            break
        wait(FRESH_PAUSE_S)
        seen.append(_overview(base, get))
    return seen[-1]


def fetch(url: str) -> bytes:
    """GET over HTTP or HTTPS; raises `UnreachableError`."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310  the caller has checked the scheme
            content: bytes = answer.read(MAX_ANSWER_BYTES + 1)
    except urllib.error.HTTPError as error:
        raise UnreachableError(f"{url} answers {error.code}: is it a dashboard of this version?") from error
    except (OSError, ValueError) as error:
        raise UnreachableError(f"{url} does not answer ({error}).") from error
    if len(content) > MAX_ANSWER_BYTES:
        raise UnreachableError(f"{url} answers more than {MAX_ANSWER_BYTES // 2**20} MiB.")
    return content


def _overview(base: str, get: Get) -> Overview:
    url = f"{base}/api/v1/overview"
    return parse(Overview, get(url), url)
