"""Tables of a run's history for researchers, and receipts for recomputing the leaderboard.

Each page of rows is read in its own short transaction, so no reader blocks the database. Tables are
written as CSV or Parquet, with members' public names and without the keeper's device. Pages of
receipts contain claims, confirmed samples and the receipts that confirm them; the signed bytes are
reconstructed from stored values. Devices have pseudonyms instead of libp2p identities.
"""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Literal

from sqlalchemy import ColumnElement, Row, Select, case, func, select
from sqlalchemy.orm import Session

from auth.receipts import ReceiptBody
from coordinator.ledger.receipts import samples_by_number
from coordinator.members.names import display_names
from coordinator.store.engine import Database
from coordinator.store.eras import current_era
from coordinator.store.models import KEEPER_ROLE, Device, DeviceSession, Member, Receipt, Report, Step, Validation

TableName = Literal["steps", "contributions", "sessions", "validations"]
Kind = Literal["whole", "number", "text", "yes or no"]
ROWS_AT_ONCE = 5000
MEMBER = "member"  # name of the column with public names
_LOSS = case((Step.loss_samples > 0, Step.loss_sum / func.nullif(Step.loss_samples, 0)), else_=None)
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters of spreadsheet formulas
MAX_STEPS = 200  # maximum number of steps on a page of receipts
MOST_NUMBERS = 20_000  # maximum number of device references on a page with more than one step


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    kind: Kind
    value: Any  # database column or expression
    meaning: str


@dataclass(frozen=True)
class Table:
    """A table: its columns, the unique column that determines the order of rows, and its joins."""

    columns: tuple[Column, ...]
    order: ColumnElement[Any]
    joined: Callable[[Select[Any]], Select[Any]]


def _of_device(query: Select[Any]) -> Select[Any]:
    """Join members to a query of devices, excluding the keeper."""
    return query.join(Member, Member.id == Device.member_id).where(Device.role != KEEPER_ROLE)


TABLES: Mapping[TableName, Table] = {
    "steps": Table(
        (
            Column("step", "whole", Step.step, "number of the global step, from 1"),
            Column("era", "whole", Step.era, "number of earlier returns to a checkpoint"),
            Column("samples", "whole", Step.samples, "samples averaged in the step"),
            Column("target_batch_size", "whole", Step.target_batch_size, "samples of a full batch"),
            Column("loss", "number", _LOSS, "mean loss over samples"),
            Column("devices", "whole", Step.devices, "devices that reported the step"),
            Column("completed_at", "number", Step.completed_at, "Unix seconds"),
        ),
        Step.step.expression,
        lambda query: query,
    ),
    "contributions": Table(
        (
            Column("step", "whole", Report.step, "number of the global step"),
            Column("era", "whole", Report.era, "era of the device when it reported"),
            Column(MEMBER, "text", Member.name, "the member's public name"),
            Column("device", "whole", Device.number, "number of the member's machine in the run"),
            Column("samples", "whole", Report.samples, "samples claimed by the device"),
            Column("counted", "whole", Report.counted, "samples confirmed by receipts; empty without receipts"),
            Column("loss", "number", Report.loss, "mean loss over the samples"),
            Column("group_size", "whole", Report.group_size, "peers that averaged together"),
            Column("averaging_s", "number", Report.averaging_s, "duration of averaging in seconds"),
            Column("samples_per_second", "number", Report.samples_per_second, "speed of the device"),
            Column("lost_samples", "whole", Report.lost_samples, "samples trained but never averaged"),
            Column("lost_reason", "text", Report.lost_reason, "reason reported by the device"),
            Column("data_wait_s", "number", Report.data_wait_s, "seconds spent waiting for data"),
            Column("elapsed_s", "number", Report.elapsed_s, "training time in seconds"),
            Column("averaged_bytes", "whole", Report.averaged_bytes, "gradient bytes averaged for other devices"),
            Column("completed_at", "number", Report.completed_at, "Unix seconds, by the device's clock"),
            Column("undone", "yes or no", Report.superseded, "undone by a return to a checkpoint"),
        ),
        Report.id.expression,
        lambda query: _of_device(query.join(Device, Device.id == Report.device_id)),
    ),
    "sessions": Table(
        (
            Column(MEMBER, "text", Member.name, "the member's public name"),
            Column("device", "whole", Device.number, "number of the member's machine in the run"),
            Column("hardware", "text", DeviceSession.hardware, "description by the device"),
            Column("software_version", "text", DeviceSession.software_version, "version of manyhands"),
            Column("started_at", "number", DeviceSession.started_at, "Unix seconds"),
            Column("last_seen_at", "number", DeviceSession.last_seen_at, "Unix seconds"),
            Column("ended_at", "number", DeviceSession.ended_at, "Unix seconds; empty for an open session"),
        ),
        DeviceSession.id.expression,
        lambda query: _of_device(query.join(Device, Device.id == DeviceSession.device_id)),
    ),
    "validations": Table(
        (
            Column("step", "whole", Validation.step, "global step of the checkpoint"),
            Column("era", "whole", Validation.era, "era of the checkpoint"),
            Column("set_sha256", "text", Validation.set_sha256, "digest of the samples; compare losses only if equal"),
            Column("sequence_length", "whole", Validation.sequence_length, "tokens per sample"),
            Column("samples", "whole", Validation.samples, "number of evaluated samples"),
            Column("mlm_loss", "number", Validation.mlm_loss, "loss of the tokens; empty if not finite"),
            Column("sop_loss", "number", Validation.sop_loss, "loss of the sentence order; empty if unused"),
            Column("accuracy", "number", Validation.accuracy, "share of tokens predicted correctly"),
            Column("sop_accuracy", "number", Validation.sop_accuracy, "share of orders recognized correctly"),
            Column("detection_loss", "number", Validation.detection_loss, "loss of replaced tokens, weighted"),
            Column("detection_accuracy", "number", Validation.detection_accuracy, "token classification accuracy"),
            Column("detection_f1", "number", Validation.detection_f1, "F1 score for replaced tokens"),
            Column("evaluated_at", "number", Validation.evaluated_at, "Unix seconds"),
        ),
        Validation.step.expression,
        lambda query: query,
    ),
}


def read_table(database: Database, name: TableName) -> Iterator[list[tuple[Any, ...]]]:
    """Yield a table's rows in pages, each read in its own transaction."""
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
    """Replace members' names with their public names; `shown` is the result of `display_names`."""
    place = next((place for place, column in enumerate(table.columns) if column.name == MEMBER), None)
    if place is None:
        return rows
    return [(*row[:place], shown.get(row[place], row[place]), *row[place + 1 :]) for row in rows]


def csv_lines(database: Database, name: TableName) -> Iterator[bytes]:
    """Yield a table as CSV (RFC 4180, UTF-8), with a header line.

    Formula-like text is prefixed with an apostrophe, because members choose their own names.
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
    """Write a table as Parquet, with each column's meaning in the field's metadata."""
    import pyarrow  # imported on first use, because the package is large
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


@dataclass(frozen=True)
class _Step:
    """A step's stored claims and receipts; devices are identified by number."""

    step: int
    claims: Sequence[Row[int, int, int | None]]  # (device, samples, confirmed samples)
    receipts: Sequence[tuple[int, int, dict[int, int], bytes]]  # (signer, era, samples by device, signature)
    withheld: bool

    @property
    def numbers(self) -> list[int]:
        """The device numbers in claims and receipts, with repetitions."""
        signed = (number for signer, _, samples, _ in self.receipts for number in (signer, *samples))
        return [*(number for number, *_ in self.claims), *signed]

    def published(self, run: str, names: Mapping[int, str]) -> dict[str, Any]:
        """Return the step as published; `names` maps device numbers to pseudonyms."""
        receipts = []
        for signer, era, samples, signature in self.receipts:
            brought = {names[number]: count for number, count in samples.items()}
            body = ReceiptBody(run=run, era=era, step=self.step, samples=brought).body
            signature64 = base64.b64encode(signature).decode()
            receipts.append({"device": names[signer], "body": body, "signature": signature64})
        claims = [
            {"device": names[number], "claimed": said, "counted": counted} for number, said, counted in self.claims
        ]
        return {"step": self.step, "claims": claims, "withheld": self.withheld, "receipts": receipts}


def receipts_page(database: Database, run: str, after: int, limit: int) -> dict[str, Any]:
    """Read a page of steps after `after` that have claims; `next` is the next page's `after`."""
    shown = display_names(database)
    found, numbers = list[_Step](), list[int]()
    claimed = select(Report.step).where(Report.step > after, Report.superseded.is_(False), Report.samples > 0)
    known = select(Device.number, Device.receipt_key, Device.role, Member.name)
    known = known.join(Member, Member.id == Device.member_id)
    with database() as session:
        steps = session.scalars(claimed.distinct().order_by(Report.step).limit(limit + 1)).all()
        for step in steps[:limit]:
            content = _read_step(session, step)
            if found and len(numbers) + len(content.numbers) > MOST_NUMBERS:
                break
            found.append(content)
            numbers += content.numbers
        devices = session.execute(known.where(Device.number.in_(set(numbers)))).all()
        era = current_era(session)
    names = {number: pseudonym or str(number) for number, pseudonym, *_ in devices}  # some devices lack a pseudonym
    return {
        "run": run,
        "era": era,
        "next": found[-1].step if len(found) < len(steps) else None,
        "steps": [step.published(run, names) for step in found],
        "devices": {
            names[number]: {"member": shown.get(member, member), "keeper": role == KEEPER_ROLE}
            for number, _, role, member in devices
        },
    }


def _read_step(session: Session, step: int) -> _Step:
    claims = (
        select(Device.number, Report.samples, Report.counted)
        .join(Device, Device.id == Report.device_id)
        .where(Report.step == step, Report.superseded.is_(False), Report.samples > 0)
        .order_by(Report.id)
    )
    receipts = (
        select(Device.number, Receipt.era, Receipt.samples, Receipt.signature)
        .join(Device, Device.id == Receipt.device_id)
        .where(Receipt.step == step)
        .order_by(Receipt.id)
    )
    stored = session.execute(receipts).all()
    signed = [
        (signer, era, samples_by_number(text), signature)
        for signer, era, text, signature in stored
        if signature is not None
    ]
    withheld = len(signed) < len(stored)  # a subset of the receipts would yield different sample counts
    return _Step(step, session.execute(claims).all(), [] if withheld else signed, withheld)
