"""Copying of a whole database, row by row and proved equal: between SQLite and PostgreSQL, too."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict
from sqlalchemy import URL, Connection, Engine, Table, func, insert, select
from sqlalchemy.exc import DBAPIError

from auth.errors import StorageError
from coordinator.store.engine import migrate, open_engine
from coordinator.store.locks import is_postgresql
from coordinator.store.models import Base

_STREAMED = {"yield_per": 1000}  # rows in memory at once


class TableContent(BaseModel):
    """The content of a table, whatever the order of its rows and the kind of its database."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    rows: int
    sha256_sum: str  # of all rows' SHA-256, modulo 2^256


def sqlite_address(path: Path) -> str:
    """The address of a SQLite file, whatever its name."""
    return URL.create("sqlite", database=str(path)).render_as_string()


def contents(connection: Connection) -> dict[str, TableContent]:
    """Read the content of each of our tables."""
    return {
        table.name: _sum_up(connection.execute(select(table), execution_options=_STREAMED))
        for table in Base.metadata.sorted_tables
    }


def copy_rows(source: Connection, target: Connection) -> None:
    """Copy all rows into empty tables, and let the target's own numbering go on after them."""
    for table in Base.metadata.sorted_tables:
        for rows in source.execute(select(table), execution_options=_STREAMED).partitions():
            target.execute(insert(table), [dict(row._mapping) for row in rows])
        _go_on_numbering(target, table)


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """All that is read in the block is of one moment, and nobody waits for it."""
    with engine.connect() as connection:
        if is_postgresql(connection):
            connection = connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        with connection.begin():
            yield connection


def save_as_file(engine: Engine, path: Path) -> None:
    """Write the database as it is at this moment into a new SQLite file of mode 0600, while others go on writing.

    SQLite does so by its backup API; PostgreSQL's tables are copied in one transaction, and compared. Raises
    `StorageError`.
    """
    path.touch(0o600, exist_ok=False)
    try:
        if engine.dialect.name == "sqlite":
            _copy_pages(engine, path)
        else:
            _copy_tables(engine, path)
    except (sqlite3.Error, DBAPIError) as error:
        reason = " ".join(str(getattr(error, "orig", error)).split()).rstrip(".")[:300]
        raise StorageError(f"The database cannot be copied to {path.parent} ({reason}): is the disk full?") from error


def read_only(path: Path) -> sqlite3.Connection:
    """Open a SQLite file that nobody writes, and leave it unchanged."""
    return sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True)


def file_contents(path: Path) -> dict[str, TableContent]:
    """Read the tables of any version's SQLite file, unchanged. Raises `StorageError` if the file is damaged."""
    try:
        with closing(read_only(path)) as connection:
            [verdict] = connection.execute("PRAGMA integrity_check").fetchone()
            if verdict != "ok" or connection.execute("PRAGMA foreign_key_check").fetchone() is not None:
                raise StorageError(f"The database {path} is damaged: {verdict[:200]}.")
            names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
            return {name: _sum_up(connection.execute(f'SELECT * FROM "{name}"')) for [name] in names}  # noqa: S608
    except sqlite3.Error as error:
        raise StorageError(f"The database {path} is damaged: {error}.") from error


def _copy_pages(engine: Engine, path: Path) -> None:
    with closing(engine.raw_connection()) as source, closing(sqlite3.connect(path)) as target:
        assert isinstance(source.driver_connection, sqlite3.Connection)
        source.driver_connection.backup(target)
        target.execute("PRAGMA journal_mode = DELETE")  # the file alone is all of it


def _copy_tables(engine: Engine, path: Path) -> None:
    target_engine = open_engine(sqlite_address(path), create=True)
    try:
        migrate(target_engine)
        with reading(engine) as source, target_engine.begin() as target:
            copy_rows(source, target)
            if contents(source) != contents(target):
                raise StorageError(f"The copy of the database in {path} is not what was read.")
    finally:
        target_engine.dispose()
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA journal_mode = DELETE")  # the file alone is all of it


def _sum_up(rows: Iterable[Sequence[object]]) -> TableContent:
    count = total = 0
    for row in rows:
        count += 1
        total += int.from_bytes(hashlib.sha256(repr(tuple(row)).encode()).digest(), "big")
    return TableContent(rows=count, sha256_sum=f"{total % 2**256:064x}")


def _go_on_numbering(target: Connection, table: Table) -> None:
    column = table.autoincrement_column
    if column is not None and is_postgresql(target):
        newest = target.scalar(select(func.max(column))) or 0
        sequence = func.pg_get_serial_sequence(table.name, column.name)
        target.execute(select(func.setval(sequence, newest + 1, False)))
