"""Concurrency control: atomic sums, and locks for work that only one process may do at a time.

The locks are PostgreSQL advisory locks, held until the end of the transaction. SQLite has a single
writer and needs no locks. Sums use upserts: one statement adds to a row or inserts the row.
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
    """Namespaces of lock keys; the numbers are fixed, because old and new versions may coexist."""

    COUNTING = 0x6D68  # sums of a step; the number is "mh" in ASCII
    DEVICE_NUMBERS = 0x6D69
    REVOCATIONS = 0x6D6A  # serial numbers of the revocation list
    MIGRATION = 0x6D6B
    LOGIN_TRIES = 0x6D6C
    ERA = 0x6D6D  # held exclusively to start an era, shared to work within one


def is_postgresql(bound: Session | Connection) -> bool:
    """Return whether the database is PostgreSQL, which has concurrent writers and NOTIFY."""
    connection = bound if isinstance(bound, Connection) else bound.get_bind()
    return connection.dialect.name == "postgresql"


def one_at_a_time(bound: Session | Connection, lock: Lock, key: int = 0) -> None:
    """Acquire `lock` for a key in exclusive mode, until the end of the transaction.

    Keys of more than 31 bits may share a lock, which only causes unnecessary waiting.
    """
    if is_postgresql(bound):
        bound.execute(select(func.pg_advisory_xact_lock(int(lock), key & _LARGEST_KEY)))


def all_for_oneself(session: Session, lock: Lock, keys: Iterable[int]) -> None:
    """Acquire `lock` for several keys in exclusive mode, in sorted order to prevent deadlocks."""
    for key in sorted({key & _LARGEST_KEY for key in keys}):
        one_at_a_time(session, lock, key)


def beside_others(session: Session, lock: Lock) -> None:
    """Acquire `lock` in shared mode, until the end of the transaction."""
    if is_postgresql(session):
        session.execute(select(func.pg_advisory_xact_lock_shared(int(lock), 0)))


def add_up(
    session: Session,
    model: type[Base],
    key: Collection[str],
    rows: Sequence[Mapping[str, object]],
    newest: Collection[str] = (),
) -> None:
    """Add each of `rows` to the row of `model` with the same primary key (`key`), or insert it.

    Columns in `newest` are overwritten, not added. All rows must have the same columns.
    """
    if not rows:
        return
    table = cast(Table, model.__table__)  # bypasses the ORM, which is slow for hundreds of rows
    dialect = postgresql if is_postgresql(session) else sqlite
    insert = dialect.insert(table)
    changes = {
        name: insert.excluded[name] if name in newest else table.c[name] + insert.excluded[name]
        for name in rows[0]
        if name not in key
    }
    session.execute(insert.on_conflict_do_update(index_elements=list(key), set_=changes), rows)
