"""Concurrent writers: locks for work that only one process of a run may do at a time, and sums that lose nothing.

The locks are PostgreSQL's advisory locks, held until their transaction ends. On SQLite there is one writer anyway, so
nothing is locked there. A sum is an upsert: one statement adds to the numbers of a row, or inserts the row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import cast

from sqlalchemy import Connection, Table, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from coordinator.store.base import Base

_LARGEST_KEY = 2**31 - 1


class Lock(IntEnum):
    """Each is a space of keys of its own; the numbers are a contract between versions that run side by side."""

    COUNTING = 0x6D68  # a step's sums; "mh"
    DEVICE_NUMBERS = 0x6D69
    REVOCATIONS = 0x6D6A  # their numbers
    MIGRATION = 0x6D6B
    LOGIN_TRIES = 0x6D6C
    ERA = 0x6D6D  # alone: who begins one; beside others: whose work belongs to one


def is_postgresql(bound: Session | Connection) -> bool:
    """Return whether the database is PostgreSQL, where other processes may write at the same time and be notified."""
    connection = bound if isinstance(bound, Connection) else bound.get_bind()
    return connection.dialect.name == "postgresql"


def one_at_a_time(bound: Session | Connection, lock: Lock, key: int = 0) -> None:
    """Wait until nobody else holds `lock` for this key, and hold it until the transaction ends.

    Keys beyond 31 bits share a lock with others, which only makes somebody wait.
    """
    if is_postgresql(bound):
        bound.execute(select(func.pg_advisory_xact_lock(int(lock), key & _LARGEST_KEY)))


def all_for_oneself(session: Session, lock: Lock, keys: Iterable[int]) -> None:
    """The same for several keys, which everybody takes in one order: so no two wait for each other."""
    for key in sorted({key & _LARGEST_KEY for key in keys}):
        one_at_a_time(session, lock, key)


def beside_others(session: Session, lock: Lock) -> None:
    """Wait until nobody has `lock` for itself, and let nobody have it so until the transaction ends."""
    if is_postgresql(session):
        session.execute(select(func.pg_advisory_xact_lock_shared(int(lock), 0)))


def add_up(
    session: Session,
    model: type[Base],
    key: Collection[str],
    rows: Sequence[Mapping[str, object]],
    newest: Collection[str] = (),
) -> None:
    """Add the numbers of each of `rows` to those of the model's row with the same primary key, `key`.

    The columns `newest` replace what is there. All rows have the same columns; one that is new begins with them.
    """
    if not rows:
        return
    table = cast(Table, model.__table__)  # past the mapper, which is slow with hundreds of rows
    dialect = postgresql if is_postgresql(session) else sqlite
    insert = dialect.insert(table)
    changes = {
        name: insert.excluded[name] if name in newest else table.c[name] + insert.excluded[name]
        for name in rows[0]
        if name not in key
    }
    session.execute(insert.on_conflict_do_update(index_elements=list(key), set_=changes), rows)
