"""The database engine, for SQLite (default) or PostgreSQL; several processes write concurrently.

SQLAlchemy is used synchronously; the service runs database queries in threads.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, func, inspect, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, OperationalError, ProgrammingError
from sqlalchemy.orm import Session, sessionmaker
from tenacity import Retrying, retry_if_exception_message, stop_after_delay, wait_random

from auth.errors import ConfigError, DatabaseError, StorageError
from coordinator.store.locks import Lock, one_at_a_time
from coordinator.store.models import Base

logger = logging.getLogger(__name__)
BUSY_TIMEOUT_S = 30.0  # maximum wait for a lock; long enough for a migration on a slow disk
CONFLICT_ATTEMPTS = 5
MIGRATIONS = Path(__file__).parent / "migrations"
CONFLICTS = frozenset({"40001", "40P01"})  # SQLSTATEs of serialization failures and deadlocks

_PATIENCE = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}

# Patterns of database messages about files and disks, each with the error to raise.
_TROUBLE: tuple[tuple[re.Pattern[str], type[StorageError], str], ...] = tuple(
    (re.compile(words), family, sentence)
    for words, family, sentence in (
        (
            "is not a database|malformed|unsupported file format|invalid page in block",
            DatabaseError,
            "The run's database is damaged ({}): restore the run from a backup (`manyhands coordinator restore`).",
        ),
        (
            "disk is full|No space left on device",
            StorageError,
            "The disk of the run's database is full ({}): free some space; what was stored before is intact.",
        ),
        (
            "disk I/O error",
            StorageError,
            "The run's database cannot be read or written ({}): free some space where the disk is full and look into "
            "the system's log; where the file is damaged, restore the run from a backup "
            "(`manyhands coordinator restore`).",
        ),
        (
            "unable to open database file|readonly database|permission denied",
            StorageError,
            "The run's database cannot be opened or written ({}): the user who serves the run must be its owner, and "
            "its disk must not be mounted read-only.",
        ),
        (
            "database is locked",
            StorageError,
            "The run's database is in use by another process ({}): try again when that process has ended.",
        ),
    )
)

_MIGRATING = threading.Lock()

_WHILE_LOCKED = Retrying(  # SQLite fails immediately if two processes switch to WAL at the same time
    retry=retry_if_exception_message("database is locked"),
    stop=stop_after_delay(BUSY_TIMEOUT_S),
    wait=wait_random(0.01, 0.1),
    reraise=True,
)

_WRITES = "manyhands_writes"  # execution option that marks writing transactions

Result = TypeVar("Result")


class Database(sessionmaker[Session]):
    """A session factory: `with database() as session` to read, `with database.begin()` to write."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, expire_on_commit=False)
        self.engine = engine
        self._turn = threading.Lock() if engine.dialect.name == "sqlite" else None

    @contextmanager
    def begin(self) -> Iterator[Session]:
        """Open a writing transaction, and commit it on exit.

        On SQLite the write lock is acquired at the start. A transaction that reads first would fail
        instead of waiting for the lock, because its snapshot may be outdated. Threads of a process
        first queue on a mutex, because SQLite's retries could starve a waiting thread.
        """
        with self._in_turn(), super().begin() as session:
            session.connection(execution_options={_WRITES: True})
            yield session

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Hold SQLite's write mutex in the block; after the busy timeout, continue without it."""
        has_turn = self._turn is not None and self._turn.acquire(timeout=BUSY_TIMEOUT_S)
        try:
            yield
        finally:
            if self._turn is not None and has_turn:
                self._turn.release()

    def transact(self, action: Callable[[Session], Result]) -> Result:
        """Run `action` in a writing transaction; retry on a conflict with another process."""
        for _ in range(CONFLICT_ATTEMPTS - 1):
            try:
                with self.begin() as session:
                    return action(session)
            except DBAPIError as error:
                if not _is_conflict(error):
                    raise
        with self.begin() as session:
            return action(session)


def _is_conflict(error: DBAPIError) -> bool:
    return isinstance(error, IntegrityError) or getattr(error.orig, "sqlstate", None) in CONFLICTS


def open_engine(url: str, *, create: bool = False) -> Engine:
    """Create the engine for a database URL. Raises `ConfigError` if the URL is invalid.

    A missing SQLite file is created only with `create`: an empty file would look like a new run.
    """
    try:
        parsed = make_url(url)
        if parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        if parsed.get_backend_name() == "sqlite":
            engine = create_engine(parsed, connect_args={"timeout": BUSY_TIMEOUT_S})
            _prepare_sqlite(engine)
            if not create:
                _refuse_to_create(engine)
            elif parsed.database not in {None, "", ":memory:"}:
                _create_private(engine)
            return engine
        return create_engine(parsed, pool_pre_ping=True, connect_args=patience(parsed))
    except (ArgumentError, ImportError) as error:  # the message omits the URL, which may contain a password
        raise ConfigError(f"`database_url` cannot be used: {' '.join(str(error).split())[:200]}.") from error


def patience(url: URL) -> dict[str, int]:
    """Return the default timeouts of PostgreSQL connections, except those that the URL sets.

    A dead server is thus detected in half a minute instead of two hours, the system's default.
    """
    return {name: value for name, value in _PATIENCE.items() if name not in url.query}


def _prepare_sqlite(engine: Engine) -> None:
    """Configure SQLite: WAL, foreign keys, secure deletion, and explicit transactions."""

    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # disables sqlite3's implicit transactions
        _WHILE_LOCKED(connection.execute, "PRAGMA journal_mode = WAL")
        for pragma in ("foreign_keys = ON", "secure_delete = ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(_WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _refuse_to_create(engine: Engine) -> None:
    @event.listens_for(engine, "do_connect")
    def _on_do_connect(_dialect: Any, _record: Any, arguments: list[Any], options: dict[str, Any]) -> None:
        if arguments[0] != ":memory:" and not options.get("uri"):
            arguments[0], options["uri"] = f"file:{quote(arguments[0])}?mode=rw", True


def _create_private(engine: Engine) -> None:
    """Create the database file with mode 0600 before SQLite opens it; WAL files inherit the mode.

    An existing file is not opened: closing it would release this process's locks on the file, so
    another process could delete the WAL (SQLite, "How To Corrupt An SQLite Database File", 2.2).
    """

    @event.listens_for(engine, "do_connect")
    def _on_do_connect(_dialect: Any, _record: Any, arguments: list[Any], _options: dict[str, Any]) -> None:
        with suppress(OSError):  # SQLite will report the error when it opens the file
            os.close(os.open(arguments[0], os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def migrate(engine: Engine) -> None:
    """Upgrade the database to this version's tables; concurrent upgrades are serialised.

    Raises `StorageError` if the database is newer than this version or cannot be changed.
    """
    if _is_current(engine):
        return
    from alembic.util import CommandError  # takes 10 MB, and longer to import than most commands run

    try:
        with engine.connect().execution_options(**{_WRITES: True}) as connection, connection.begin():
            one_at_a_time(connection, Lock.MIGRATION)
            upgrade(connection)
    except CommandError as error:
        raise StorageError(f"A newer version of manyhands wrote the database: update this one ({error}).") from error
    except ProgrammingError as error:  # usually a missing database privilege
        raise StorageError(f"The database's tables cannot be created: {own_words(error)}.") from error
    except DBAPIError as error:
        raise trouble(error) or StorageError(f"The database cannot be opened: {own_words(error)}.") from error


def _is_current(engine: Engine) -> bool:
    """Return whether the newest migration, identified by its file name, was the last to run."""
    newest = max(path.name for path in (MIGRATIONS / "versions").glob("*.py")).partition("_")[0]
    try:
        with engine.connect() as connection:
            known = inspect(connection).has_table("alembic_version")
            return known and connection.scalars(text("SELECT version_num FROM alembic_version")).all() == [newest]
    except DBAPIError as error:
        raise trouble(error) or StorageError(f"The database cannot be opened: {own_words(error)}.") from error


def upgrade(connection: Connection) -> None:
    """Upgrade to this version's tables, in the connection's transaction and its default schema.

    Threads are serialised, because Alembic has one context per process.
    """
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    with _MIGRATING:
        command.upgrade(config, "head")


def trouble(error: BaseException | None) -> StorageError | None:
    """Return a `StorageError` if the database's file, disk or server failed, else None."""
    if not isinstance(error, DBAPIError):
        return None
    words = own_words(error)
    for form, family, sentence in _TROUBLE:
        if form.search(words):
            return family(sentence.format(words))
    if isinstance(error.orig, sqlite3.Error) or not isinstance(error, OperationalError):
        return None
    return StorageError(f"The database cannot be opened ({words}): check `database_url` and the server.")


@contextmanager
def in_one_sentence() -> Iterator[None]:
    """Convert database errors that the operator can fix into a one-sentence `StorageError`."""
    try:
        yield
    except DBAPIError as error:
        found = trouble(error)
        if found is None:
            raise
        raise found from error


@contextmanager
def log_trouble(what: str) -> Iterator[None]:
    """Log `what` and skip the rest of the block if the database's file, disk or server fails."""
    try:
        yield
    except DBAPIError as error:
        if (found := trouble(error)) is None:
            raise
        logger.error("%s: %s", what, found, stacklevel=3)  # repeats are counted per line of the caller


def own_words(error: DBAPIError) -> str:
    """Return the database driver's message on one line, shortened to 300 characters."""
    return " ".join(str(error.orig).split()).rstrip(".")[:300]


def is_empty(connection: Connection) -> bool:
    """Return whether all tables are empty or missing."""
    known = inspect(connection).get_table_names()
    tables = [table for table in Base.metadata.sorted_tables if table.name in known]
    return not any(connection.scalar(select(func.count()).select_from(table)) for table in tables)
