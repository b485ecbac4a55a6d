"""A run's tables as files: CSV, line by line, and Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import IO, Any

from coordinator.history import TABLES, Kind, TableName, read_table
from coordinator.store.engine import Sessions

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # with these a text begins that a spreadsheet would compute


def csv_lines(sessions: Sessions, name: TableName) -> Iterator[bytes]:
    """The table as CSV (RFC 4180, UTF-8), the names of the columns first.

    A text that a spreadsheet would take for a formula has an apostrophe in front: a member may be called anything.
    """
    yield _csv([[column.name for column in TABLES[name].columns]])
    for page in read_table(sessions, name):
        yield _csv([[_plain(value) for value in row] for row in page])


def _csv(rows: list[list[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULA) else value
    return str(value).lower() if isinstance(value, bool) else value


def write_parquet(sessions: Sessions, name: TableName, file: IO[bytes]) -> None:
    """The table as Parquet; each column's meaning is in its field's metadata."""
    import pyarrow  # large, and few ask for it
    from pyarrow import parquet

    types: dict[Kind, Any] = {
        "whole": pyarrow.int64(),
        "number": pyarrow.float64(),
        "text": pyarrow.string(),
        "yes or no": pyarrow.bool_(),
    }
    columns = TABLES[name].columns
    schema = pyarrow.schema(
        [pyarrow.field(column.name, types[column.kind], metadata={"meaning": column.meaning}) for column in columns]
    )
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for page in read_table(sessions, name):
            values = zip(*page, strict=True)
            arrays = [pyarrow.array(column, type_.type) for column, type_ in zip(values, schema, strict=True)]
            writer.write_batch(pyarrow.record_batch(arrays, schema=schema))
