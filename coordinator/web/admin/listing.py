"""Searchable, paginated lists for the administrators' pages, controlled by URL parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from fastapi import Request

PAGE_ROWS = 50
MAX_SEARCH_CHARS, MAX_PAGE = 100, 10_000


@dataclass(frozen=True)
class Listing:
    """One page of a list, restricted to rows that contain the search text."""

    search: str = ""
    page: int = 1
    member: str = ""  # name of the member whose rows are shown; "" for all members

    @classmethod
    def asked_for(cls, request: Request) -> Listing:
        """Parse the URL's parameters; an invalid page number selects the first page."""
        query = request.query_params
        page = query.get("page", "")
        number = int(page) if page.isascii() and page.isdecimal() and len(page) < 6 else 1
        search = query.get("search", "").replace("\0", "").strip()[:MAX_SEARCH_CHARS]
        return cls(search, min(max(1, number), MAX_PAGE), query.get("member", "").replace("\0", ""))

    @property
    def offset(self) -> int:
        """The number of rows before this page."""
        return (self.page - 1) * PAGE_ROWS

    @property
    def limit(self) -> int:
        """The number of rows to read: one more than shown, to detect a next page."""
        return PAGE_ROWS + 1

    def shown(self, rows: Sequence[Any]) -> dict[str, Any]:
        """Return the template variables for rows read with `limit` and `offset`."""
        return {"listing": self, "rows": rows[:PAGE_ROWS], "has_more": len(rows) > PAGE_ROWS}

    def address(self, page: int) -> str:
        """Return the URL query for another page of the list."""
        named = {"member": self.member, "search": self.search, "page": page if page > 1 else ""}
        return "?" + urlencode({name: value for name, value in named.items() if value})
