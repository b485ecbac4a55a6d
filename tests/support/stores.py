"""An empty database, on SQLite and on PostgreSQL, and the keys of devices that join it.

A new one is a copy of one that was migrated once for each process: all migrations take a hundred times as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from sqlalchemy import text
from sqlalchemy.orm import Session

from auth.files import make_private_directory, require_free, write_private
from auth.keys import DeviceKey
from coordinator.backup.database import sqlite_address
from coordinator.run.directory import RunDirectory
from coordinator.run.settings import Settings
from coordinator.store.engine import Database, migrate, open_engine
from peer.config.run import RunConfig
from tests.support.postgres import new_database
from tests.support.waiting import wait_until

_made: dict[tuple[str, str], dict[str, bytes | None]] = {}
Kind = Literal["sqlite", "postgresql"]
KINDS: tuple[Kind, ...] = ("sqlite", "postgresql")


@contextmanager
def database_address(directory: Path, kind: Kind = "sqlite") -> Iterator[str]:
    """The address of a new database of this kind, for the time of the block; on PostgreSQL with all tables."""
    if kind == "sqlite":
        yield f"sqlite:///{directory}/manyhands.db"
        return
    with new_database() as address:
        yield address


@contextmanager
def empty_store(directory: Path, kind: Kind = "sqlite") -> Iterator[Database]:
    """A new database with all tables, closed at the end of the block; of SQLite in `directory`."""
    with database_address(directory, kind) as address:
        if kind == "sqlite":
            (directory / "manyhands.db").write_bytes(migrated_file())
        engine = open_engine(address)
        try:
            yield Database(engine)
        finally:
            engine.dispose()


@cache
def migrated_file() -> bytes:
    """A SQLite file with all tables and no row."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "manyhands.db"
        engine = open_engine(sqlite_address(path), create=True)
        migrate(engine)
        engine.dispose()  # with its last connection all is in the one file
        return path.read_bytes()


def put_tables(run: RunDirectory) -> None:
    """What `RunDirectory.create` prepares in tests: the tables, which `create` else makes by all migrations."""
    if run.settings.database_url is None:
        write_private(run.path / "manyhands.db", migrated_file())


def made_run(path: Path, config: RunConfig, settings: Settings) -> RunDirectory:
    """A run as `RunDirectory.create` makes it and as one that has read its files, which takes longer than all else.

    It is made once for each configuration, so those of a process have the same keys.
    """
    run = RunDirectory(path.absolute())
    kind = config.to_json(), settings.model_dump_json()
    if settings.database_url is not None:
        RunDirectory.create(path, config, settings)
    elif kind not in _made:
        RunDirectory.create(path, config, settings, prepare=put_tables)
        files = {str(file.relative_to(path)): None if file.is_dir() else file.read_bytes() for file in path.rglob("*")}
        _made[kind] = dict(sorted(files.items()))  # folders before what is in them
    else:
        require_free(path)  # as `RunDirectory.create` does
        for name, content in _made[kind].items():
            if content is None:
                make_private_directory(path / name)
            else:
                write_private(path / name, content)
    run.config, run.settings = config, settings
    return run


def let_others_wait(session: Session, count: int = 1) -> None:
    """Return when so many transactions wait for this one, where that can be known; on SQLite they cannot even begin."""
    waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    if session.get_bind().dialect.name == "postgresql":
        wait_until("the other transactions wait for this one", lambda: session.scalar(waiting) == count)


def device_keys(directory: Path, count: int) -> list[bytes]:
    """Public keys of so many devices."""
    return [DeviceKey.load_or_create(directory / f"{number}.key").public_key for number in range(count)]
