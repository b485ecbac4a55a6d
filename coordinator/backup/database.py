"""Verified row-by-row copies of a whole database, including between SQLite and PostgreSQL."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, func, insert, select
from sqlalchemy.exc import DBAPIError

from auth.errors import StorageError
from coordinator.store.engine import migrate, open_engine
from coordinator.store.locks import is_postgresql
from coordinator.store.models import Base

_STREAMED = {"yield_per": 1000}  # at most 1000 rows in memory


def sqlite_address(path: Path) -> str:
    """Return the database URL of a SQLite file, whose name may contain any characters."""
    return URL.create("sqlite", database=str(path)).render_as_string()


def contents(connection: Connection) -> dict[str, tuple[int, int]]:
    """Return each table's number of rows and the sum of its rows' SHA-256 digests.

    Equal rows give equal results, regardless of row order and kind of database.
    """
    found = {}
    for table in Base.metadata.sorted_tables:
        count = total = 0
        for row in connection.execute(select(table), execution_options=_STREAMED):
            count += 1
            total += int.from_bytes(hashlib.sha256(repr(tuple(row)).encode()).digest(), "big")
        found[table.name] = count, total
    return found


def copy_rows(source: Connection, target: Connection) -> None:
    """Copy rows to empty tables and set sequences; raises `StorageError` if the copy differs."""
    for table in Base.metadata.sorted_tables:
        for rows in source.execute(select(table), execution_options=_STREAMED).partitions():
            target.execute(insert(table), [dict(row._mapping) for row in rows])
        column = table.autoincrement_column
        if column is not None and is_postgresql(target):
            newest = target.scalar(select(func.max(column))) or 0
            sequence = func.pg_get_serial_sequence(table.name, column.name)
            target.execute(select(func.setval(sequence, newest + 1, False)))
    if contents(source) != contents(target):
        raise StorageError("The database that the run is copied to does not keep what is written to it.")


def save_as_file(engine: Engine, path: Path) -> None:
    """Write a snapshot of the database to a new SQLite file of mode 0600, without blocking writers.

    SQLite is copied with its backup API. PostgreSQL's tables are copied in one transaction and
    verified. Raises `StorageError` on failure.
    """
    path.touch(0o600, exist_ok=False)
    try:
        if engine.dialect.name == "sqlite":
            with closing(engine.raw_connection()) as source, closing(sqlite3.connect(path)) as target:
                assert isinstance(source.driver_connection, sqlite3.Connection)
                source.driver_connection.backup(target)
        else:
            _copy_tables(engine, path)
        with closing(sqlite3.connect(path)) as file:
            file.execute("PRAGMA journal_mode = DELETE")  # moves all data from the journal into this file
    except (sqlite3.Error, DBAPIError) as error:
        reason = " ".join(str(getattr(error, "orig", error)).split()).rstrip(".")[:300]
        raise StorageError(f"The database cannot be copied to {path.parent} ({reason}): is the disk full?") from error


def _copy_tables(engine: Engine, path: Path) -> None:
    """Copy a snapshot of PostgreSQL's tables without blocking writers."""
    reading = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    file = open_engine(sqlite_address(path), create=True)
    try:
        migrate(file)
        with reading.begin() as source, file.begin() as target:
            copy_rows(source, target)
    finally:
        file.dispose()


def read_only(path: Path) -> closing[sqlite3.Connection]:
    """Open a SQLite file read-only; no process may be writing to it."""
    return closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True))


def count_rows(path: Path) -> dict[str, int]:
    """Return the number of rows of each table in a SQLite file; raises `StorageError` if it is damaged."""
    try:
        with read_only(path) as connection:
            [verdict] = connection.execute("PRAGMA integrity_check").fetchone()
            if verdict != "ok" or connection.execute("PRAGMA foreign_key_check").fetchone() is not None:
                raise StorageError(f"The database {path} is damaged: {verdict[:200]}.")
            names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
            count = 'SELECT count(*) FROM "{}"'
            return {name: connection.execute(count.format(name)).fetchone()[0] for [name] in names}
    except sqlite3.Error as error:
        raise StorageError(f"The database {path} is damaged: {error}.") from error
