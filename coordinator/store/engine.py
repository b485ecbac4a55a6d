"""Opening the database: SQLite by default, where service, keeper and the operator's commands write side by side.

SQLAlchemy is used synchronously everywhere; the service calls it in threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, OperationalError
from sqlalchemy.orm import Session, sessionmaker

from auth.errors import ConfigError, StorageError

BUSY_TIMEOUT_S = 30.0  # a migration on a slow disk is waited for
CONFLICT_ATTEMPTS = 5
MIGRATIONS = Path(__file__).parent / "migrations"
_WRITES = "manyhands_writes"  # execution option: the transaction will write

Result = TypeVar("Result")


class Sessions(sessionmaker[Session]):
    """Makes sessions: `with sessions() as session` to read, `with sessions.begin() as session` to write."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, expire_on_commit=False)

    @contextmanager
    def begin(self) -> Iterator[Session]:
        """A transaction that writes, committed at the end.

        On SQLite it takes the write lock at once: a transaction that read first and then waited for the lock would fail
        instead of waiting, because what it has read may be out of date.
        """
        with super().begin() as session:
            session.connection(execution_options={_WRITES: True})
            yield session

    def transact(self, action: Callable[[Session], Result]) -> Result:
        """Run `action` in a writing transaction; again if another process wrote the same row first."""
        for _ in range(CONFLICT_ATTEMPTS - 1):
            try:
                with self.begin() as session:
                    return action(session)
            except IntegrityError:
                continue
        with self.begin() as session:
            return action(session)


def open_engine(url: str) -> Engine:
    """The engine for a database address; raises `ConfigError` for one that cannot be understood."""
    try:
        parsed = make_url(url)
        if parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        if parsed.get_backend_name() == "sqlite":
            engine = create_engine(parsed, connect_args={"timeout": BUSY_TIMEOUT_S})
            _prepare_sqlite(engine)
            return engine
        return create_engine(parsed, pool_pre_ping=True)
    except (ArgumentError, ImportError) as error:  # the address may hold a password: it is not repeated here
        raise ConfigError(f"`database_url` cannot be used: {' '.join(str(error).split())[:200]}.") from error


def _prepare_sqlite(engine: Engine) -> None:
    """Readers beside one writer (WAL), foreign keys, erased text overwritten; transactions begin when we say so."""

    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # sqlite3 must not begin transactions by itself
        for pragma in ("journal_mode = WAL", "foreign_keys = ON", "secure_delete = ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(_WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def migrate(engine: Engine, revision: str = "head") -> None:
    """Bring the database to this version's tables, or to an older revision's.

    Of two processes that do so at once, one waits for the other.
    """
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    try:
        with engine.connect().execution_options(**{_WRITES: True}) as connection, connection.begin():
            config.attributes["connection"] = connection
            command.upgrade(config, revision)
    except CommandError as error:
        raise StorageError(f"The database is of a newer version of manyhands: update this one ({error}).") from error
    except OperationalError as error:
        raise StorageError(f"The database cannot be opened: {error.orig}.") from error
