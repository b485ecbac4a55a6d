"""An on-disk queue of reports (of steps, or of lost samples) that are not yet acknowledged.

The session sends from this queue, so reports survive coordinator outages and agent crashes. The
coordinator counts each sequence number (`seq`) once, even if resent. The newest acknowledged
reports are retained, because a coordinator restored from a backup may lack them. While the disk is
full, changes are held in memory.
"""

from __future__ import annotations

import json
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from auth.errors import StorageError
from peer.reporting.messages import Lost, LostCause, StepReport

CAPACITY = 100_000  # maximum number of reports, enough for two months at one step a minute
MOST_WAIT_S = 7 * 86_400.0  # maximum time for the keeper to reach a report's step; also used by the coordinator
LOST = "lost beside reports"  # JSON key that marks the body of a report of lost samples
MOST_WAITING = 1000  # maximum number of changes in memory on a full disk
ACKNOWLEDGED_KEPT = 2_000  # number of acknowledged reports to keep: more than a day's, because backups are daily
RECEIPTS_KEPT = 5_000  # number of receipts to keep; in large groups, receipts are much larger than reports

# AUTOINCREMENT never reuses the number of a deleted report.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS reports (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, era INTEGER NOT NULL, completed_at REAL NOT NULL, body TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS acknowledged (
    seq INTEGER PRIMARY KEY, era INTEGER NOT NULL, completed_at REAL NOT NULL, body TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS receipts (seq INTEGER PRIMARY KEY, receipt TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS losses (dropped INTEGER NOT NULL);
"""


@dataclass(frozen=True)
class Pending:
    """An unacknowledged report of a step or of lost samples."""

    seq: int
    completed_at: float  # Unix time in seconds
    report: StepReport | Lost


Writing = Callable[[], int | None]


class Outbox:
    """A bounded, ordered queue of reports in a SQLite file; not thread-safe."""

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float],
        capacity: int = CAPACITY,
        receipts_kept: int = RECEIPTS_KEPT,
        acknowledged_kept: int = ACKNOWLEDGED_KEPT,
    ) -> None:
        self._path, self._clock, self._capacity, self._receipts_kept = path, clock, capacity, receipts_kept
        self._acknowledged_kept = acknowledged_kept
        self._waiting: deque[Writing] = deque()  # changes held until there is disk space
        with self._reporting():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, isolation_level=None)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.executescript(_SCHEMA)
            self._number_from(int(clock() * 1000))

    @property
    def waiting(self) -> int:
        """The number of changes held in memory until there is disk space."""
        return len(self._waiting)

    def put(self, report: StepReport, completed_at: float) -> int | None:
        """Add a report and return its number, or None while the disk is full.

        When the outbox is full, the oldest report is dropped. Samples in this era's pending
        reports for the same or later steps are reported as lost: the device repeats these steps.
        """
        return self._write(partial(self._put, report, completed_at))

    def _put(self, report: StepReport, completed_at: float) -> int:
        left = "SELECT seq FROM reports WHERE era = ? AND json_extract(body, '$.step') >= ?"
        self._give_up(self._database.execute(left, (report.era, report.step)).fetchall(), LostCause.OUT_OF_SYNC)
        seq = self._add(report.era, completed_at, asdict(replace(report, receipt="")))
        if report.receipt:
            self._database.execute("INSERT INTO receipts VALUES (?, ?)", (seq, report.receipt))
            newest = "SELECT seq FROM receipts ORDER BY seq DESC LIMIT ?"
            self._database.execute(f"DELETE FROM receipts WHERE seq NOT IN ({newest})", (self._receipts_kept,))  # noqa: S608
        return seq

    def put_lost(self, lost: Lost, at: float) -> int | None:
        """Add a report of lost samples and return its number, or None while the disk is full."""
        return self._write(partial(self._add, 0, at, {LOST: asdict(lost)}))

    def keep(self, seq: int) -> bool:
        """Return whether a report is recent enough to keep; if not, report its samples as lost."""
        with self._reporting():
            too_old = "SELECT seq FROM reports WHERE seq = ? AND completed_at < ?"
            given_up = self._database.execute(too_old, (seq, self._clock() - MOST_WAIT_S)).fetchall()
        if given_up:
            self._write(partial(self._give_up, given_up, LostCause.REFUSED))
        return not given_up

    def _give_up(self, rows: Sequence[tuple[int]], cause: LostCause) -> None:
        """Replace reports with reports of lost samples."""
        if not rows:
            return
        numbers = [seq for (seq,) in rows]
        held = "SELECT json_extract(body, '$.step'), json_extract(body, '$.samples') FROM reports WHERE seq = ?"
        steps, samples = zip(*(self._database.execute(held, (seq,)).fetchone() for seq in numbers), strict=True)
        self._forget(numbers)
        self._add(0, self._clock(), {LOST: asdict(Lost(min(steps), {cause.value: sum(samples)}))})

    def _forget(self, numbers: Iterable[int]) -> None:
        for table in ("reports", "acknowledged", "receipts"):
            self._database.executemany(f"DELETE FROM {table} WHERE seq = ?", [(seq,) for seq in numbers])  # noqa: S608

    def _add(self, era: int, at: float, body: dict[str, Any]) -> int:
        row = (era, at, json.dumps(body))
        seq = self._database.execute("INSERT INTO reports (era, completed_at, body) VALUES (?, ?, ?)", row).lastrowid
        surplus = len(self) - self._capacity
        if surplus > 0:
            oldest = "SELECT seq FROM reports ORDER BY seq LIMIT ?"
            self._database.execute(f"DELETE FROM reports WHERE seq IN ({oldest})", (surplus,))  # noqa: S608  our own
            self._database.execute("UPDATE losses SET dropped = dropped + ?", (surplus,))
        assert seq is not None
        return seq

    def pending(self, limit: int, after: int = 0) -> list[Pending]:
        """Return up to `limit` unacknowledged reports on disk with numbers above `after`, oldest first."""
        self._catch_up()
        with self._reporting():
            rows = self._database.execute(
                "SELECT seq, completed_at, body, COALESCE(receipt, '') "
                "FROM reports LEFT JOIN receipts USING (seq) WHERE seq > ? ORDER BY seq LIMIT ?",
                (after, limit),
            ).fetchall()
        return [Pending(seq, at, _read(json.loads(body), receipt)) for seq, at, body, receipt in rows]

    def ack(self, seq: int, *, accepted: bool = True) -> None:
        """Move an acknowledged report to the table `acknowledged`, or delete a rejected one."""
        self._write(partial(self._set_aside, seq) if accepted else partial(self._forget, [seq]))

    def _set_aside(self, seq: int) -> None:
        self._database.execute("INSERT INTO acknowledged SELECT * FROM reports WHERE seq = ?", (seq,))
        self._database.execute("DELETE FROM reports WHERE seq = ?", (seq,))
        surplus = "SELECT seq FROM acknowledged ORDER BY seq DESC LIMIT -1 OFFSET ?"
        self._forget([each for (each,) in self._database.execute(surplus, (self._acknowledged_kept,)).fetchall()])

    def take_back(self, last_seq: int) -> int:
        """Requeue acknowledged reports with numbers above `last_seq`; return their count."""
        return self._write(partial(self._take_back, last_seq)) or 0

    def _take_back(self, last_seq: int) -> int:
        self._database.execute("INSERT INTO reports SELECT * FROM acknowledged WHERE seq > ?", (last_seq,))
        return self._database.execute("DELETE FROM acknowledged WHERE seq > ?", (last_seq,)).rowcount

    def __len__(self) -> int:
        with self._reporting():
            return int(self._database.execute("SELECT COUNT(*) FROM reports").fetchone()[0])

    @property
    def dropped(self) -> int:
        """The number of reports dropped so far because the capacity was exceeded."""
        with self._reporting():
            return int(self._database.execute("SELECT dropped FROM losses").fetchone()[0])

    def close(self) -> None:
        """Close the file; pending reports remain in it."""
        try:
            self._catch_up()
        finally:
            self._database.close()

    def _write(self, writing: Writing) -> int | None:
        """Apply the waiting changes, then this change; return the result of this change.

        Returns None if the change has to wait. Raises `StorageError` if too many changes wait.
        """
        self._waiting.append(writing)
        return self._catch_up()

    def _catch_up(self) -> int | None:
        """Apply waiting changes; return the last one's result, or None if some still wait."""
        written = None
        with self._reporting():
            while self._waiting:
                try:
                    with self._transaction():
                        written = self._waiting[0]()
                except sqlite3.OperationalError as error:
                    if not _tells_of_full_disk(error) or len(self._waiting) > MOST_WAITING:
                        raise
                    return None
                self._waiting.popleft()
        return written

    def _number_from(self, first: int) -> None:
        """Start a new file's numbers at `first`, which is above all numbers in any deleted file."""
        with self._reporting(), self._transaction() as database:
            if database.execute("SELECT COUNT(*) FROM losses").fetchone()[0] == 0:
                database.execute("INSERT INTO losses VALUES (0)")
                database.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('reports', ?)", (first,))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._database.execute("BEGIN IMMEDIATE")
        with self._database:
            yield self._database

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise StorageError(
                f"Cannot keep reports in {self._path}: {error}; free some space or remove the file."
            ) from error


def _tells_of_full_disk(error: sqlite3.OperationalError) -> bool:
    """Return whether an error means a full disk, which SQLite may report as an I/O error."""
    return "full" in str(error) or "disk I/O" in str(error)


def _read(body: dict[str, Any], receipt: str) -> StepReport | Lost:
    return Lost(**body[LOST]) if LOST in body else StepReport(**(body | {"receipt": receipt}))
