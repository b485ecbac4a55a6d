"""Pages of a long list: a cursor says where the next one begins, and holds when rows are added meanwhile."""

from __future__ import annotations

import base64
import json
from typing import Annotated

from fastapi import Query

from auth.errors import RequestError

MAX_CURSOR_CHARS = 256
Key = tuple[str | int | float, ...]  # what rows are ordered by, with their id last
Cursor = Annotated[str, Query(max_length=MAX_CURSOR_CHARS, description="Where the page begins: another page's `next`.")]


def cursor_of(key: Key) -> str:
    """The cursor of the page after the row with this key."""
    return base64.urlsafe_b64encode(json.dumps(key, separators=(",", ":")).encode()).decode().rstrip("=")


def key_of(cursor: str, kinds: tuple[type, ...]) -> Key | None:
    """The key that a cursor stands for, None for the first page; raises `RequestError` for what is no such cursor."""
    if not cursor:
        return None
    try:
        key = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except ValueError as error:
        raise RequestError("`cursor` is no page's `next`.") from error
    fits = isinstance(key, list) and len(key) == len(kinds)
    if not fits or any(type(part) is not kind for part, kind in zip(key, kinds, strict=True)):
        raise RequestError("`cursor` is no page's `next`.")
    return tuple(key)
