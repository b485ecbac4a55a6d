"""Upserts that add to rows' numbers or insert the rows, in one statement, so that concurrent writers lose nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import cast

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from coordinator.store.base import Base
from coordinator.store.locks import is_postgresql


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
