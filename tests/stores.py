"""An empty database, on SQLite and on PostgreSQL, and the keys of devices that join it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from auth.identity import DeviceKey
from coordinator.store.engine import MIGRATIONS, Sessions, migrate, open_engine
from tests.postgres import new_database
from tests.waiting import wait_until

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
def empty_store(directory: Path, kind: Kind = "sqlite") -> Iterator[Sessions]:
    """A new database with all tables, closed at the end of the block; of SQLite in `directory`."""
    with database_address(directory, kind) as address:
        engine = open_engine(address, create=True)
        try:
            migrate(engine)
            yield Sessions(engine)
        finally:
            engine.dispose()


def downgrade(engine: Engine, revision: str) -> None:
    """Give a database the tables of an older revision."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, revision)


def let_others_wait(session: Session, count: int = 1) -> None:
    """Return when so many transactions wait for this one, where that can be known; on SQLite they cannot even begin."""
    waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    if session.get_bind().dialect.name == "postgresql":
        wait_until(lambda: session.scalar(waiting) == count)


def device_keys(directory: Path, count: int) -> list[bytes]:
    """Public keys of so many devices."""
    return [DeviceKey.load_or_create(directory / f"{number}.key").public_key for number in range(count)]
