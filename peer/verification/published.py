"""Receipts published by a dashboard: downloaded page by page or read from a file, and validated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from auth.errors import ConfigError, RequestError, StorageError
from auth.receipts import MAX_COUNT, MAX_RECEIPT_CHARS
from peer.network.http import fetch

_Count = Annotated[int, Field(ge=0, le=2**53)]
_Samples = Annotated[int, Field(ge=0, le=MAX_COUNT)]
_Name = Annotated[str, Field(max_length=256)]
MAX_FILE_BYTES = 4 * 2**30
MAX_PAGES = 100_000
FRESH_ATTEMPTS, FRESH_PAUSE_S = 30, 1.0  # retries, and their interval, until an overview is newer than the last page
Get = Callable[[str], bytes]
_FIRST_FORMAT = b'{"format":"manyhands-receipts-v1"'  # receipts in this format contain libp2p identities


class _Published(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class PublishedClaim(_Published):
    """A device's claim for a step, and its credited samples."""

    device: _Name  # the device's pseudonym, or its number if it has none yet
    claimed: _Samples
    counted: _Samples | None  # credited samples; None if not yet confirmed


class SignedWord(_Published):
    """A receipt: its signed bytes and the base64 signature."""

    device: _Name  # pseudonym of the signing device, which is its public key
    body: Annotated[str, Field(max_length=MAX_RECEIPT_CHARS)]
    signature: Annotated[str, Field(max_length=1024)]


class PublishedStep(_Published):
    """Claims and receipts of one global step."""

    step: _Samples
    claims: tuple[PublishedClaim, ...] = Field(strict=False)
    withheld: bool  # whether the step has unpublished receipts, which contain libp2p identities
    receipts: tuple[SignedWord, ...] = Field(strict=False)


class PublishedDevice(_Published):
    """A device's owner, and whether the device is the keeper."""

    member: _Name
    keeper: bool


class Page(_Published):
    """A response from /api/v1/receipts: one page of receipts."""

    run: _Name
    era: _Samples
    next: _Samples | None
    steps: tuple[PublishedStep, ...] = Field(strict=False)
    devices: Mapping[_Name, PublishedDevice]


class PublishedContribution(_Published):
    """A row of the leaderboard."""

    member: _Name
    samples: _Count


class PublishedOverview(_Published):
    """The fields of /api/v1/overview that verification needs."""

    contributions: tuple[PublishedContribution, ...] = Field(strict=False)
    taken_at: float  # Unix seconds


class PublishedAuthority(_Published):
    """The fields of /api/v1/authority that verification needs."""

    key: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Published(_Published):
    """Data saved by `manyhands verify --save`: receipts, and earlier and later leaderboards."""

    format: Literal["manyhands-receipts-v2"] = "manyhands-receipts-v2"
    before: PublishedOverview
    pages: tuple[Page, ...] = Field(strict=False)
    after: PublishedOverview


_AnyPublished = TypeVar("_AnyPublished", bound=_Published)


def parse(kind: type[_AnyPublished], content: bytes, where: str) -> _AnyPublished:
    """Parse and validate JSON. Raises `RequestError`, which names the source `where`."""
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise RequestError(
            f"{where} is not the data of a dashboard with receipts: {place or 'it'} is invalid."
        ) from error


def read_published(where: str, wait: Callable[[float], None], get: Get | None = None) -> Published:
    """Download or read receipts. Raises `UnreachableError`, `StorageError` or `RequestError`."""
    if urlsplit(where).scheme in ("http", "https"):
        return download(where.rstrip("/"), get or fetch, wait)
    if "://" in where:
        raise ConfigError(f"{where!r} is neither a dashboard's address (http:// or https://) nor a file.")
    path = Path(where)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise StorageError(f"{path} is larger than {MAX_FILE_BYTES // 2**30} GiB.")
        content = path.read_bytes()
    except OSError as error:
        raise StorageError(f"Cannot read {path} ({error.strerror}): name a dashboard or a saved file.") from error
    if content.startswith(_FIRST_FORMAT):
        raise RequestError(f"{path} was saved by an older manyhands, which is needed to verify it: save it again.")
    return parse(Published, content, str(path))


def download(base: str, get: Get, wait: Callable[[float], None]) -> Published:
    """Download the leaderboard, all receipts, then a leaderboard newer than the last receipt."""
    before, pages, after = _overview(base, get), list[Page](), 0
    while len(pages) < MAX_PAGES:
        url = f"{base}/api/v1/receipts?after={after}"
        page = parse(Page, get(url), url)
        pages.append(page)
        if page.next is None or page.next <= after:
            break
        after = page.next
    return Published(before=before, pages=tuple(pages), after=_newer_overview(base, get, wait))


def _newer_overview(base: str, get: Get, wait: Callable[[float], None]) -> PublishedOverview:
    """Poll until a second new overview appears, because the first may predate this call."""
    seen = [_overview(base, get)]
    for _ in range(FRESH_ATTEMPTS):
        if len({overview.taken_at for overview in seen}) > 2:
            break
        wait(FRESH_PAUSE_S)
        seen.append(_overview(base, get))
    return seen[-1]


def _overview(base: str, get: Get) -> PublishedOverview:
    url = f"{base}/api/v1/overview"
    return parse(PublishedOverview, get(url), url)
