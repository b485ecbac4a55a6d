"""Records with fields as documents: the text of a line of JSON or a row, if it is in one of the wanted languages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peer.config.data import Source
from peer.data.sources.units import Record


def document_of(record: Any, source: Source) -> Record:
    """Return a record's text: empty if it is in another language, None if it has none."""
    text, filters = value_of(record, source.text_field), source.filters
    if not isinstance(text, str):
        return None
    unwanted = filters.language_field and value_of(record, filters.language_field) not in filters.languages
    return "" if unwanted else text


def wanted_fields(source: Source) -> list[str]:
    """Return the names of the fields that are read: the text's, and the language's if it counts."""
    return [name for name in (source.text_field, source.filters.language_field) if name is not None]


def value_of(record: Any, name: str) -> Any:
    """Return the value of a field, or with dots in its name of a field in a field; None if there is none."""
    if not isinstance(record, Mapping):
        return None
    if name in record:
        return record[name]
    outer, _, inner = name.partition(".")
    return value_of(record.get(outer), inner) if inner else None


def column_of(name: str, columns: Mapping[str, Any] | list[str]) -> str:
    """Return the column that holds a field: the one of this name, else the one that the name begins with."""
    return name if name in columns else name.partition(".")[0]
