"""Parquet files, with row groups as shards; only the wanted columns of remote files are downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from auth.errors import ConfigError
from peer.config.data import Source
from peer.data.sources.fields import document_of, wanted_fields
from peer.data.sources.units import MANY_FILES, CountedReader, Record, Shard, ask_each
from peer.network.remote_files import FileLocation, find_files

BATCH_ROWS = 1000  # rows decoded at a time


def parquet_shards(source: Source) -> list[Shard]:
    """List the row groups of a source's files, or whole files if there are many."""
    files = [RowGroups(file, source) for file in find_files(source)]
    counts = [None] * len(files) if len(files) >= MANY_FILES else ask_each(files, RowGroups.count)
    return [
        Shard(file.name, partial(CountedReader, replace(file, group=group).documents))
        for file, count in zip(files, counts, strict=True)
        for group in (range(count) if count else [None])
    ]


@dataclass(frozen=True)
class RowGroups:
    """All row groups of a file, or one of them."""

    address: FileLocation
    source: Source
    group: int | None = None

    @property
    def name(self) -> str:
        """The file's name, for use in messages."""
        return f"`{self.address.url}`"

    def count(self) -> int:
        """Return the number of the file's row groups. Raises the same errors as `documents`."""
        with self._opened() as (file, _):
            return int(file.num_row_groups)

    def documents(self, first: int) -> Iterator[Record]:
        """Yield the documents, starting at row `first`.

        Raises `ConfigError` if the file is not a complete Parquet file, or lacks a text column.
        """
        with self._opened() as (file, columns):
            groups = range(file.num_row_groups) if self.group is None else [self.group]
            for group in groups:
                rows = file.metadata.row_group(group).num_rows
                if first < rows:
                    for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns):
                        yield from (document_of(row, self.source) for row in batch.to_pylist()[first:])
                        first = max(0, first - batch.num_rows)
                else:
                    first -= rows

    @contextmanager
    def _opened(self) -> Iterator[tuple[pq.ParquetFile, list[str]]]:
        """Open the file, and yield it with the columns to read."""
        columns = wanted_fields(self.source)
        with self.address.filesystem.open(self.address.path, cache_type="none") as raw:  # Arrow has its own cache
            try:
                file = pq.ParquetFile(raw, pre_buffer=True)
            except pa.ArrowInvalid as error:
                text = " ".join(str(error).split())
                raise ConfigError(f"The file {self.name} is no whole Parquet file ({text:.200}).") from error
            for column in columns:
                _require_text(file.schema_arrow, column, self.name)
            yield file, columns


def _require_text(schema: pa.Schema, name: str, file: str) -> None:
    """Raise `ConfigError` unless the named column, or nested field (`a.b`), contains text."""
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
