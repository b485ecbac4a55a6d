"""Extraction of documents from records: the text of a JSON line or row in a wanted language."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peer.config.data import Source
from peer.data.sources.units import Record


def document_of(record: Any, source: Source) -> Record:
    """Return a record's text, "" if its language is excluded, or None if it has no text."""
    text, filters = value_of(record, source.text_field), source.filters
    if not isinstance(text, str):
        return None
    unwanted = filters.language_field and value_of(record, filters.language_field) not in filters.languages
    return "" if unwanted else text


def wanted_fields(source: Source) -> list[str]:
    """Return the fields to read: the text, and the language if languages are filtered."""
    return [name for name in (source.text_field, source.filters.language_field) if name is not None]


def value_of(record: Any, name: str) -> Any:
    """Return a field's value, or None if it is missing; dots in the name denote nested fields."""
    if not isinstance(record, Mapping):
        return None
    if name in record:
        return record[name]
    outer, _, inner = name.partition(".")
    return value_of(record.get(outer), inner) if inner else None


def column_of(name: str, columns: Mapping[str, Any] | list[str]) -> str:
    """Return the column that contains a field: the name, or its part before the first dot."""
    return name if name in columns else name.partition(".")[0]
