"""Parquet files as units, which are their row groups; of the web and storage only the wanted columns are fetched."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from auth.errors import ConfigError
from peer.config.data import Source
from peer.data.sources.fields import DocumentFields
from peer.data.sources.units import MANY_FILES, Record, State, UnitReader, ask_each, parts_of_each
from peer.network.remote_files import FileLocation, find_files

BATCH_ROWS = 1000  # unpacked at a time


@dataclass(frozen=True)
class RowGroups:
    """The row groups of a file, or one of them."""

    address: FileLocation
    group: int | None = None

    @property
    def name(self) -> str:
        """The file's name for people."""
        return f"`{self.address.url}`"

    def behind(self, columns: list[str], begin: int) -> Iterator[Any]:
        """Yield the rows behind the first `begin` ones, with these columns; raises `ConfigError` as `opened` does."""
        with self.opened(columns) as file:
            groups = range(file.num_row_groups) if self.group is None else [self.group]
            for group in groups:
                rows = file.metadata.row_group(group).num_rows
                if begin < rows:
                    for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns):
                        yield from batch.to_pylist()[begin:]
                        begin = max(0, begin - batch.num_rows)
                else:
                    begin -= rows

    @contextmanager
    def opened(self, columns: list[str]) -> Iterator[pq.ParquetFile]:
        """Open the file; raises `ConfigError` if it is no whole Parquet file, or has no such columns of text."""
        with self.address.filesystem.open(self.address.path, cache_type="none") as raw:  # ranges, as they are asked for
            try:
                file = pq.ParquetFile(raw, pre_buffer=True)
            except pa.ArrowInvalid as error:
                text = " ".join(str(error).split())
                raise ConfigError(f"The file {self.name} is no whole Parquet file ({text:.200}).") from error
            for column in columns:
                _require_text(file.schema_arrow, column, self.name)
            yield file


class ParquetUnits:
    """The row groups of one source's files, or the files if they are many."""

    def __init__(self, source: Source, *, whole: bool = False) -> None:
        self._fields = DocumentFields(source)
        self._columns = [name for name in (source.text_field, source.filters.language_field) if name is not None]
        files = [RowGroups(file) for file in find_files(source)]
        counts = [None] * len(files) if len(files) >= MANY_FILES else ask_each(files, self._groups)
        self._rows = [
            RowGroups(file.address, group)
            for file, count in zip(files, counts, strict=True)
            for group in (range(count) if count else [None])
        ]
        self._parts = parts_of_each(len(self._rows), whole=whole)

    def __len__(self) -> int:
        return len(self._rows) * self._parts

    def name(self, unit: int) -> str:
        return self._rows[unit // self._parts].name

    def open(self, unit: int, state: State | None) -> UnitReader:
        number, part = divmod(unit, self._parts)
        return ParquetReader(self._rows[number], self._columns, self._fields, (part, self._parts), state)

    def _groups(self, rows: RowGroups) -> int:
        with rows.opened(self._columns) as file:
            return int(file.num_row_groups)


class ParquetReader:
    """Some of these rows as documents: those whose number is `part` modulo `parts`."""

    def __init__(
        self, rows: RowGroups, columns: list[str], fields: DocumentFields, dealt: tuple[int, int], state: State | None
    ) -> None:
        self._row = 0 if state is None else int(state["row"])
        self._records = self._read(rows.behind(columns, self._row), fields, *dealt)

    def __iter__(self) -> Iterator[Record]:
        return self._records

    def state(self) -> State:
        return {"row": self._row}

    def close(self) -> None:
        self._records.close()

    def _read(
        self, rows: Iterator[Any], fields: DocumentFields, part: int, parts: int
    ) -> Generator[Record, None, None]:
        for number, row in enumerate(rows, self._row):
            self._row = number + 1
            if number % parts == part:
                yield fields.document(row)


def _require_text(schema: pa.Schema, name: str, file: str) -> None:
    """Raise `ConfigError` unless there is a column of this name, or with dots a field in a column, that holds text."""
    found: pa.DataType = pa.struct(schema)
    for part in [name] if name in schema.names else name.split("."):
        number = found.get_field_index(part) if pa.types.is_struct(found) else -1
        if number < 0:
            known = ", ".join(schema.names)
            raise ConfigError(f"The file {file} has no column `{name}` (it has {known:.1000}): check `text_field`.")
        found = found.field(number).type
    if pa.types.is_dictionary(found):
        found = found.value_type
    if not (pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_string_view(found)):
        raise ConfigError(f"The column `{name}` of the file {file} holds {found}, no text: check `text_field`.")
