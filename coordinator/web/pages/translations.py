"""The pages' texts in the reader's language: which one that is, and a text by its key.

A text is a string with `{name}` for what varies, or, where that is a number, one for each plural form of the language
(`one`, `other`, ...; only the pages' scripts use those, which have `Intl.PluralRules`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from dashboards import DEFAULT_LANGUAGE, catalogs

MAX_RANGES = 20
PLURAL_FORMS = {"zero", "one", "two", "few", "many", "other"}  # of Unicode's CLDR
_RANGE = re.compile(r"([A-Za-z]{1,8}(?:-[A-Za-z0-9]{1,8})*)\s*(?:;\s*q=([01](?:\.\d{0,3})?))?")


@dataclass(frozen=True)
class Translation:
    """All texts of one language; called with a key such as `frame.overview`."""

    language: str
    direction: str  # ltr or rtl
    by_key: dict[str, Any]

    def __call__(self, key: str, **values: object) -> str:
        """The text, with the values put in; raises `KeyError` for a key that no language has."""
        text = self.by_key[key]
        return str(text).format_map(values) if values else str(text)


@cache
def texts_of(language: str) -> Translation:
    """The texts of a language that is there; what it lacks is in the default one."""
    catalog = catalogs()[language]
    by_key = {**flattened(catalogs()[DEFAULT_LANGUAGE]), **flattened(catalog)}
    return Translation(language, str(catalog["direction"]), by_key)


def flattened(catalog: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Sections become keys with dots; plural forms stay together."""
    found: dict[str, Any] = {}
    for name, value in catalog.items():
        if isinstance(value, dict) and not value.keys() <= PLURAL_FORMS:
            found |= flattened(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def choose_language(wanted: str | None, accepted: str) -> str:
    """What the reader has chosen, if it is there; else what the browser likes best (`Accept-Language`, RFC 9110)."""
    there = catalogs()
    if wanted in there:
        return str(wanted)
    ranges = [match.groups() for part in accepted.split(",")[:MAX_RANGES] if (match := _RANGE.fullmatch(part.strip()))]
    for tag, _ in sorted(ranges, key=lambda found: -float(found[1] or 1)):
        language = tag.lower().split("-")[0]
        if language in there:
            return language
    return DEFAULT_LANGUAGE
