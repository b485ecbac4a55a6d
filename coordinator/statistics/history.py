"""The whole history of a run as tables for researchers, read page by page and written as CSV or Parquet.

Each page is read in a transaction of its own, so no reader holds the database. Members appear under their public names;
the keeper's own machine is left out.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, Literal

from sqlalchemy import ColumnElement, Select, case, func, select

from coordinator.members.names import display_names
from coordinator.store.engine import Database
from coordinator.store.models import KEEPER_ROLE, Device, DeviceSession, Member, Report, Step, Validation

TableName = Literal["steps", "contributions", "sessions", "validations"]
Kind = Literal["whole", "number", "text", "yes or no"]
ROWS_AT_ONCE = 5000
MEMBER = "member"  # the column whose names are made public ones when they are read
_LOSS = case((Step.loss_samples > 0, Step.loss_sum / func.nullif(Step.loss_samples, 0)), else_=None)
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # with these a text begins that a spreadsheet would compute


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    kind: Kind
    value: ColumnElement[Any]
    meaning: str


@dataclass(frozen=True)
class Table:
    """One table: its columns, where its rows are, and the unique column by which they are in order."""

    columns: tuple[Column, ...]
    order: ColumnElement[Any]
    joined: Callable[[Select[Any]], Select[Any]]


def _of_device(query: Select[Any]) -> Select[Any]:
    """Rows with a column `device_id`, without the keeper's; the members' names beside them."""
    return query.join(Member, Member.id == Device.member_id).where(Device.role != KEEPER_ROLE)


def _column(name: str, kind: Kind, value: Any, meaning: str) -> Column:
    return Column(name, kind, value, meaning)


TABLES: Mapping[TableName, Table] = {
    "steps": Table(
        (
            _column("step", "whole", Step.step, "number of the global step, from 1"),
            _column("era", "whole", Step.era, "how often the run had returned to a checkpoint"),
            _column("samples", "whole", Step.samples, "averaged in"),
            _column("target_batch_size", "whole", Step.target_batch_size, "samples that the step needed"),
            _column("loss", "number", _LOSS, "mean over samples"),
            _column("devices", "whole", Step.devices, "that reported it"),
            _column("completed_at", "number", Step.completed_at, "Unix seconds"),
        ),
        Step.step.expression,
        lambda query: query,
    ),
    "contributions": Table(
        (
            _column("step", "whole", Report.step, "number of the global step"),
            _column("era", "whole", Report.era, "of the device, when it reported"),
            _column(MEMBER, "text", Member.name, "the member's public name"),
            _column("device", "whole", Device.number, "number of the member's machine in the run"),
            _column("samples", "whole", Report.samples, "as the device claims"),
            _column("counted", "whole", Report.counted, "as receipts confirm; empty while none does"),
            _column("loss", "number", Report.loss, "of these samples"),
            _column("group_size", "whole", Report.group_size, "peers that averaged together"),
            _column("averaging_s", "number", Report.averaging_s, "seconds that averaging took"),
            _column("samples_per_second", "number", Report.samples_per_second, "the device's speed"),
            _column("lost_samples", "whole", Report.lost_samples, "trained, and never averaged in"),
            _column("lost_reason", "text", Report.lost_reason, "why, in the device's words"),
            _column("data_wait_s", "number", Report.data_wait_s, "seconds that it waited for data"),
            _column("elapsed_s", "number", Report.elapsed_s, "seconds that it trained"),
            _column("averaged_bytes", "whole", Report.averaged_bytes, "of others' gradients that it averaged"),
            _column("completed_at", "number", Report.completed_at, "Unix seconds, by the device's clock"),
            _column("undone", "yes or no", Report.superseded, "by a return to a checkpoint"),
        ),
        Report.id.expression,
        lambda query: _of_device(query.join(Device, Device.id == Report.device_id)),
    ),
    "sessions": Table(
        (
            _column(MEMBER, "text", Member.name, "the member's public name"),
            _column("device", "whole", Device.number, "number of the member's machine in the run"),
            _column("hardware", "text", DeviceSession.hardware, "in the device's words"),
            _column("software_version", "text", DeviceSession.software_version, "of manyhands"),
            _column("started_at", "number", DeviceSession.started_at, "Unix seconds"),
            _column("last_seen_at", "number", DeviceSession.last_seen_at, "Unix seconds"),
            _column("ended_at", "number", DeviceSession.ended_at, "Unix seconds; empty while it is open"),
        ),
        DeviceSession.id.expression,
        lambda query: _of_device(query.join(Device, Device.id == DeviceSession.device_id)),
    ),
    "validations": Table(
        (
            _column("step", "whole", Validation.step, "of the checkpoint"),
            _column("era", "whole", Validation.era, "of the checkpoint"),
            _column("set_sha256", "text", Validation.set_sha256, "which samples: only losses on the same compare"),
            _column("sequence_length", "whole", Validation.sequence_length, "tokens"),
            _column("samples", "whole", Validation.samples, "that were evaluated"),
            _column("mlm_loss", "number", Validation.mlm_loss, "of the tokens; empty where it was not finite"),
            _column("sop_loss", "number", Validation.sop_loss, "of the sentence order; empty without one"),
            _column("accuracy", "number", Validation.accuracy, "share of the tokens that are right"),
            _column("sop_accuracy", "number", Validation.sop_accuracy, "share of the orders that are right"),
            _column("evaluated_at", "number", Validation.evaluated_at, "Unix seconds"),
        ),
        Validation.step.expression,
        lambda query: query,
    ),
}


def read_table(database: Database, name: TableName) -> Iterator[list[tuple[Any, ...]]]:
    """The rows in pages, each read in a transaction of its own."""
    table = TABLES[name]
    query = table.joined(select(table.order, *(column.value.label(column.name) for column in table.columns)))
    query = query.order_by(table.order).limit(ROWS_AT_ONCE)
    last: Any = None
    while True:
        with database() as session:
            page = session.execute(query if last is None else query.where(table.order > last)).all()
        if page:
            yield _publicly(table, [tuple(row[1:]) for row in page], display_names(database))
        if len(page) < ROWS_AT_ONCE:
            return
        last = page[-1][0]


def _publicly(table: Table, rows: list[tuple[Any, ...]], shown: Mapping[str, str]) -> list[tuple[Any, ...]]:
    """The same rows with the names that the public may see; `shown` as `display_names` gives them."""
    place = next((place for place, column in enumerate(table.columns) if column.name == MEMBER), None)
    if place is None:
        return rows
    return [(*row[:place], shown.get(row[place], row[place]), *row[place + 1 :]) for row in rows]


def csv_lines(database: Database, name: TableName) -> Iterator[bytes]:
    """The table as CSV (RFC 4180, UTF-8), the names of the columns first.

    A text that a spreadsheet would take for a formula has an apostrophe in front: a member may be called anything.
    """
    yield _csv([[column.name for column in TABLES[name].columns]])
    for page in read_table(database, name):
        yield _csv([[_plain(value) for value in row] for row in page])


def _csv(rows: list[list[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULA) else value
    return str(value).lower() if isinstance(value, bool) else value


def write_parquet(database: Database, name: TableName, file: IO[bytes]) -> None:
    """The table as Parquet; each column's meaning is in its field's metadata."""
    import pyarrow  # large, and few ask for it
    from pyarrow import parquet

    types: dict[Kind, Any] = {
        "whole": pyarrow.int64(),
        "number": pyarrow.float64(),
        "text": pyarrow.string(),
        "yes or no": pyarrow.bool_(),
    }
    columns = TABLES[name].columns
    schema = pyarrow.schema(
        [pyarrow.field(column.name, types[column.kind], metadata={"meaning": column.meaning}) for column in columns]
    )
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for page in read_table(database, name):
            values = zip(*page, strict=True)
            arrays = [pyarrow.array(column, type_.type) for column, type_ in zip(values, schema, strict=True)]
            writer.write_batch(pyarrow.record_batch(arrays, schema=schema))
