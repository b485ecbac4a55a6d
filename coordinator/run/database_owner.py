"""The database of a run: created by `init` or `restore`, and opened by all other commands.

A database belongs to one run, because two runs would mix up members, reports and checkpoints. The
database records the run's name and two keys. A run with the same name and at least one of the keys
is the same run, so keys can be replaced one at a time; the current keys are then recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import Connection, Engine, inspect
from sqlalchemy.orm import Session

from auth.errors import ConfigError, DatabaseError
from coordinator.run.authority_key import KEY_FILE
from coordinator.store.engine import Database, in_one_sentence, is_empty, migrate, open_engine
from coordinator.store.service_models import DatabaseOwner

if TYPE_CHECKING:
    from coordinator.run.directory import RunDirectory  # circular: `directory` imports `create_database`

_ROW = 1


class Keys(NamedTuple):
    """The identity of a run: its name, its TLS certificate's digest and its authority's public key."""

    run: str
    certificate_sha256: str
    authority_key: str


def create_database(directory: RunDirectory) -> None:
    """Create the database of a new run. Raises `ConfigError` if the database is already in use."""
    engine = open_engine(directory.database_url, create=True)
    try:
        require_unused(engine)
        migrate(engine)
        claim_database(Database(engine), directory)
    finally:
        engine.dispose()


def require_unused(engine: Engine) -> None:
    """Raise `ConfigError` if the database has rows, which must belong to another run."""
    with in_one_sentence(), engine.connect() as connection:
        used = not is_empty(connection)
    if used:
        raise ConfigError(
            "The database that `database_url` names holds a run already: restore that run's directory from a backup, "
            "or name an empty one (in a container: MANYHANDS_DATABASE_URL, or a new volume for the profile `postgres`)."
        )


@contextmanager
def open_database(directory: RunDirectory) -> Iterator[Database]:
    """Open the run's existing database during the block, and migrate it to the current schema.

    Raises `DatabaseError` if the database is lost, `StorageError` if it is unreachable or fails in
    the block, and `ConfigError` if it belongs to another run.
    """
    engine = open_engine(directory.database_url)
    try:
        with in_one_sentence():
            require_database(engine, directory)
            migrate(engine)
            database = Database(engine)
            claim_database(database, directory)
            yield database
    finally:
        engine.dispose()


def require_database(engine: Engine, directory: RunDirectory) -> None:
    """Raise `DatabaseError` if the database lacks tables, or lacks rows although checkpoints exist.

    Without checkpoints, empty tables are accepted, because earlier versions of `init` created them.
    """
    named = "the one that `database_url` names"
    if engine.dialect.name == "sqlite":
        file = Path(named := str(engine.url.database))
        if not file.exists():
            raise _lost(directory, f"{file} is missing")
        if file.stat().st_size == 0:  # SQLite would treat the file as a new database
            raise _lost(directory, f"{file} is empty")
    with engine.connect() as connection:
        if not _has_tables(connection):
            raise _lost(directory, f"{named} is empty")
        checkpoint = next(directory.checkpoints_dir.glob("step-*"), None)
        if checkpoint is not None and is_empty(connection):
            raise _lost(directory, f"{named} knows nothing, and {checkpoint.name} is there")


def _has_tables(connection: Connection) -> bool:
    return "members" in inspect(connection).get_table_names()


def _lost(directory: RunDirectory, found: str) -> DatabaseError:
    return DatabaseError(
        f"The run in {directory.path} has lost its database ({found}): restore the run from a backup "
        "(`manyhands coordinator restore`), or name the right database in settings.yaml; where nothing is to be kept, "
        "make a new run in another directory (`manyhands coordinator init`)."
    )


def claim_database(database: Database, directory: RunDirectory) -> None:
    """Record this run as the database's owner. Raises `ConfigError` if another run is the owner.

    A copy of a run without keys is not recorded, because it cannot admit members.
    """
    if not all(path.exists() for path in (directory.tls_cert_path, directory.keys_dir / KEY_FILE)):
        return
    link = directory.join_link
    keys = Keys(link.run, link.fingerprint, directory.authority.public_bytes.hex())
    with database() as session:
        if _owner(session) == keys:
            return
    database.transact(lambda session: _claim(session, keys, directory.path))


def _owner(session: Session) -> Keys | None:
    row = session.get(DatabaseOwner, _ROW)
    return None if row is None else Keys(row.run, row.certificate_sha256, row.authority_key)


def _claim(session: Session, keys: Keys, path: Path) -> None:
    owner = _owner(session)
    if owner is None:
        session.add(DatabaseOwner(id=_ROW, **keys._asdict()))  # `merge` could overwrite another run's new row
        return
    if not _is_same_run(owner, keys):
        raise ConfigError(
            f"The database of the run in {path} belongs to another run, `{owner.run}`: give each a database of its own "
            "(`database_url` in settings.yaml). If it is the same run with new keys, replace them one after the other."
        )
    session.merge(DatabaseOwner(id=_ROW, **keys._asdict()))


def _is_same_run(owner: Keys, keys: Keys) -> bool:
    one_key_stayed = owner.certificate_sha256 == keys.certificate_sha256 or owner.authority_key == keys.authority_key
    return owner.run == keys.run and one_key_stayed
