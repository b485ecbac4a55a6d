"""Translations of the pages: language selection, and lookup of texts by key.

A text is a string with placeholders such as `{name}`, or a table with one string per plural form of
the language (`one`, `other`, ...). Only scripts use plural forms, through `Intl.PluralRules`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from dashboards import DEFAULT_LANGUAGE, catalogs

MAX_RANGES = 20
PLURAL_FORMS = {"zero", "one", "two", "few", "many", "other"}  # plural categories of the Unicode CLDR
_RANGE = re.compile(r"([A-Za-z]{1,8}(?:-[A-Za-z0-9]{1,8})*)\s*(?:;\s*q=([01](?:\.\d{0,3})?))?")


@dataclass(frozen=True)
class Translation:
    """All texts of one language; called with a key such as `frame.overview`."""

    language: str
    direction: str  # text direction, "ltr" or "rtl"
    by_key: dict[str, Any]

    def __call__(self, key: str, **values: object) -> str:
        """Return a text with the values filled in. Raises `KeyError` for an unknown key."""
        text = self.by_key[key]
        return str(text).format_map(values) if values else str(text)


@cache
def texts_of(language: str) -> Translation:
    """Return an available language's texts; missing texts are taken from the default language."""
    catalog = catalogs()[language]
    by_key = {**flattened(catalogs()[DEFAULT_LANGUAGE]), **flattened(catalog)}
    return Translation(language, str(catalog["direction"]), by_key)


def flattened(catalog: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten sections into dotted keys; the plural forms of a text remain a table."""
    found: dict[str, Any] = {}
    for name, value in catalog.items():
        if isinstance(value, dict) and not value.keys() <= PLURAL_FORMS:
            found |= flattened(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def choose_language(wanted: str | None, accepted: str) -> str:
    """Return `wanted` if available, else the browser's preference (`Accept-Language`, RFC 9110)."""
    there = catalogs()
    if wanted in there:
        return str(wanted)
    ranges = [match.groups() for part in accepted.split(",")[:MAX_RANGES] if (match := _RANGE.fullmatch(part.strip()))]
    for tag, _ in sorted(ranges, key=lambda found: -float(found[1] or 1)):
        language = tag.lower().split("-")[0]
        if language in there:
            return language
    return DEFAULT_LANGUAGE
