"""Records with fields as documents: the text of a line of JSON or a row, if it is in one of the wanted languages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peer.config.data import Source
from peer.data.sources.units import Record


class DocumentFields:
    """The fields of a source's records that make documents."""

    def __init__(self, source: Source) -> None:
        self._text, self._filters = source.text_field, source.filters

    def document(self, record: Any) -> Record:
        """Return a record's text: empty if it is in another language, None if it has none."""
        text = value_of(record, self._text)
        if not isinstance(text, str):
            return None
        language = self._filters.language_field
        if language is not None and value_of(record, language) not in self._filters.languages:
            return ""
        return text


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
