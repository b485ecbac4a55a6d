"""Shared responses, which are built and compressed once per state of the run and have an ETag.

Each additional viewer costs only the transmission. Long lists are split into pages; a cursor marks
the start of a page, and stays valid if rows are added in the meantime.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from fastapi import Query, Request, Response
from pydantic import AfterValidator, BaseModel
from pydantic_core import to_json

from auth.errors import RequestError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

JSON = "application/json"
REVALIDATE = "no-cache"  # responses may be cached, but must be revalidated on every use
FOR_EVER = "public, max-age=31536000, immutable"  # for URLs that change with the content
MOST_ANSWERS = 128
MOST_KEPT_BYTES = 512 * 1024  # maximum size of a cached response, to bound memory
LEAST_COMPRESSED = 600  # minimum number of bytes to compress; smaller bodies fit into one packet
Made: TypeAlias = "BaseModel | DataclassInstance | bytes"  # content to convert to JSON, or bytes to send unchanged
Make = Callable[[], Made]
_NO_WEIGHT = re.compile(r"\s*q=0(\.0*)?\s*")
MAX_CURSOR_CHARS = 256
Tenths = Annotated[float, AfterValidator(partial(round, ndigits=1))]
Key = tuple[str | int | float, ...]  # sort key of a row, ending with its id
Cursor = Annotated[str, Query(max_length=MAX_CURSOR_CHARS, description="The previous page's `next`; empty: page one.")]


@dataclass(frozen=True)
class Encoded:
    """An encoded response body."""

    content: bytes
    media_type: str
    etag: str  # weak ETag, shared by the compressed and the uncompressed body
    compressed: bytes | None  # gzip-compressed content; None if compression is not worthwhile


def encode(made: Made, media_type: str = JSON) -> Encoded:
    """Encode a model or a dataclass as JSON; leave bytes as they are."""
    content = made if isinstance(made, bytes) else to_json(made, inf_nan_mode="null")
    is_worth_it = len(content) >= LEAST_COMPRESSED and media_type != "image/png"
    compressed = gzip.compress(content, 5, mtime=0) if is_worth_it else None
    return Encoded(content, media_type, f'W/"{hashlib.sha256(content).hexdigest()[:32]}"', compressed)


def answer(request: Request, encoded: Encoded, cache_control: str = REVALIDATE, vary: str = "") -> Response:
    """Return the response, or 304 if the client already has this content."""
    headers = {
        "ETag": encoded.etag,
        "Cache-Control": cache_control,
        "Vary": ", ".join(filter(None, ("Accept-Encoding", vary))),
    }
    if has_already(request, encoded.etag):
        return Response(status_code=304, headers=headers)
    if encoded.compressed is not None and takes_gzip(request):
        headers["Content-Encoding"] = "gzip"
        return Response(encoded.compressed, media_type=encoded.media_type, headers=headers)
    return Response(encoded.content, media_type=encoded.media_type, headers=headers)


def has_already(request: Request, etag: str) -> bool:
    """Return whether `If-None-Match` matches this ETag, by weak comparison (RFC 9110, 13.1.2)."""
    named = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    return etag.removeprefix("W/") in named or "*" in named


def takes_gzip(request: Request) -> bool:
    """Return whether the client accepts gzip, explicitly or by a wildcard (RFC 9110, 12.5.3)."""
    is_taken: dict[str, bool] = {}
    for named in ",".join(request.headers.getlist("accept-encoding")).lower().split(","):
        coding, _, weight = named.partition(";")
        is_taken[coding.strip()] = _NO_WEIGHT.fullmatch(weight) is None
    return is_taken.get("gzip", is_taken.get("*", False))


def columns(rows: Iterable[object], *names: str) -> dict[str, list[Any]]:
    """Convert rows to columns, one per attribute."""
    rows = list(rows)
    return {name: [getattr(row, name) for row in rows] for name in names}


class AnswerCache:
    """A cache of the latest response to each request, built in a thread; for one event loop."""

    def __init__(self, most: int = MOST_ANSWERS) -> None:
        self._most = most
        self._kept: OrderedDict[Hashable, tuple[Hashable, asyncio.Future[Encoded]]] = OrderedDict()

    async def get(self, question: Hashable, version: Hashable, make: Make, media_type: str = JSON) -> Encoded:
        """Return this version's response, built once for all callers; errors are not cached."""
        kept = self._kept.get(question)
        if kept is None or kept[0] != version:
            building = asyncio.ensure_future(asyncio.to_thread(lambda: encode(make(), media_type)))
            building.add_done_callback(partial(self._drop_unfit, question))
            kept = self._kept[question] = (version, building)
        self._kept.move_to_end(question)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return await asyncio.shield(kept[1])  # cancelling one request must not cancel the others

    def _drop_unfit(self, question: Hashable, building: asyncio.Future[Encoded]) -> None:
        failed = building.cancelled() or building.exception() is not None
        unfit = failed or len(building.result().content) > MOST_KEPT_BYTES
        if unfit and self._kept.get(question, (None, None))[1] is building:
            del self._kept[question]


def cursor_of(key: Key) -> str:
    """Return the cursor for the page after the row with this key."""
    return base64.urlsafe_b64encode(json.dumps(key, separators=(",", ":")).encode()).decode().rstrip("=")


def key_of(cursor: str, kinds: tuple[type, ...]) -> Key | None:
    """Return a cursor's key, or None for the first page (""). Raises `RequestError` if invalid."""
    if not cursor:
        return None
    try:
        key = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except ValueError as error:
        raise RequestError("`cursor` must be the `next` of a page.") from error
    fits = isinstance(key, list) and len(key) == len(kinds)
    if not fits or any(type(part) is not kind for part, kind in zip(key, kinds, strict=True)):
        raise RequestError("`cursor` must be the `next` of a page.")
    return tuple(key)
