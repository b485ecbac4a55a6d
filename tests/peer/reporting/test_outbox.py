"""The outbox: what waits for the coordinator survives everything but its file's end."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from auth.errors import StorageError
from peer.reporting.messages import Lost, StepReport
from peer.reporting.outbox import MOST_WAIT_S, Outbox
from tests.support.clocks import Clock
from tests.support.reports import report
from tests.support.small_disks import fill, make_room, small_disk


def a_report(step: int = 1, era: int = 0) -> StepReport:
    return report(step, 32, era=era, mlm_loss=6.8, sop_loss=0.7, lost_reason="non-finite")


def open_outbox(path: Path, capacity: int = 100) -> Outbox:
    return Outbox(path / "device" / "outbox.sqlite3", clock=lambda: 1000.0, capacity=capacity)


def test_what_was_put_is_pending_in_order_until_acknowledged(tmp_path: Path) -> None:
    """Reports come back whole, oldest first, and an acknowledged one does not come again."""
    outbox = open_outbox(tmp_path)
    first, second = (outbox.put(a_report(step, 4), completed_at=50.0 + step) for step in (1, 2))
    assert [(entry.seq, entry.completed_at, entry.report) for entry in outbox.pending(10)] == [
        (first, 51.0, a_report(1, 4)),
        (second, 52.0, a_report(2, 4)),
    ]
    outbox.ack(first)
    assert [entry.seq for entry in outbox.pending(10)] == [second]
    outbox.close()


def test_acknowledged_reports_wait_again_when_the_coordinator_has_gone_back(tmp_path: Path) -> None:
    """Those beyond its last number, whole and in their place, once; refused ones do not come again."""
    outbox = open_outbox(tmp_path)
    numbers = [outbox.put(replace(a_report(step), receipt="signed"), 50.0) or 0 for step in range(1, 6)]
    lost = outbox.put_lost(Lost(6, {"left": 4}), 51.0) or 0
    for seq in (*numbers[:4], lost):
        outbox.ack(seq, accepted=seq != numbers[2])
    before = [(entry.seq, entry.report) for entry in outbox.pending(10)]
    assert before == [(numbers[4], replace(a_report(5), receipt="signed"))]
    assert outbox.take_back(lost) == 0
    assert outbox.take_back(numbers[0]) == 3
    outbox.close()
    outbox = open_outbox(tmp_path)
    assert [(entry.seq, entry.report) for entry in outbox.pending(10)] == [
        (numbers[1], replace(a_report(2), receipt="signed")),
        (numbers[3], replace(a_report(4), receipt="signed")),
        *before,
        (lost, Lost(6, {"left": 4})),
    ]
    assert outbox.take_back(numbers[0]) == 0
    outbox.close()


def test_few_acknowledged_reports_are_kept(tmp_path: Path) -> None:
    """The newest, with their receipts."""
    outbox = Outbox(tmp_path / "outbox.sqlite3", clock=lambda: 1000.0, acknowledged_kept=2)
    numbers = [outbox.put(replace(a_report(step), receipt="signed"), 0.0) or 0 for step in range(1, 5)]
    for seq in numbers:
        outbox.ack(seq)
    assert outbox.take_back(0) == 2
    assert [entry.seq for entry in outbox.pending(10)] == numbers[2:]
    outbox.close()
    with closing(sqlite3.connect(tmp_path / "outbox.sqlite3")) as database:
        assert [seq for (seq,) in database.execute("SELECT seq FROM receipts ORDER BY seq")] == numbers[2:]


def test_pending_can_be_limited_and_continued(tmp_path: Path) -> None:
    """A sender that has sent up to a number asks for the next few after it."""
    outbox = open_outbox(tmp_path)
    numbers = [outbox.put(a_report(step), 0.0) for step in range(1, 6)]
    assert [entry.seq for entry in outbox.pending(2)] == numbers[:2]
    assert [entry.seq for entry in outbox.pending(2, after=numbers[1])] == numbers[2:4]
    outbox.close()


def test_a_number_is_never_given_twice(tmp_path: Path) -> None:
    """Not after an acknowledgement, nor after the file was opened again."""
    outbox = open_outbox(tmp_path)
    first = outbox.put(a_report(), 0.0)
    outbox.ack(first)
    outbox.close()
    again = open_outbox(tmp_path)
    assert again.put(a_report(), 0.0) > first
    again.close()


def test_a_new_file_numbers_from_its_creation(tmp_path: Path) -> None:
    """An outbox that was lost and made anew does not repeat the numbers of the lost one."""
    lost = Outbox(tmp_path / "lost", clock=lambda: 1000.0)
    last = [lost.put(a_report(), 0.0) for _ in range(50)][-1]
    lost.close()
    new = Outbox(tmp_path / "new", clock=lambda: 1001.0)
    assert new.put(a_report(), 0.0) > last
    new.close()


def test_past_its_capacity_the_oldest_report_goes_and_is_counted(tmp_path: Path) -> None:
    """The outbox is bounded: it keeps the newest and remembers, on disk, how many it dropped."""
    outbox = open_outbox(tmp_path, capacity=3)
    numbers = [outbox.put(a_report(step), 0.0) for step in range(1, 6)]
    assert [entry.seq for entry in outbox.pending(10)] == numbers[2:]
    outbox.close()
    again = open_outbox(tmp_path, capacity=3)
    assert (len(again), again.dropped) == (3, 2)
    again.close()


def test_a_report_survives_kill_9(tmp_path: Path) -> None:
    """Once `put` has returned, the report is there for the next process, whatever becomes of this one."""
    script = (
        "import os, signal, sys; from pathlib import Path; from peer.reporting.outbox import Outbox; "
        "from peer.reporting.messages import StepReport; "
        "outbox = Outbox(Path(sys.argv[1]), clock=lambda: 1.0); "
        "outbox.put(StepReport(9, 1, 2.0, None, None, 1, None, 0.0, 0.0), 0.0); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    path = tmp_path / "outbox.sqlite3"
    root = Path(__file__).resolve().parents[3]
    killed = subprocess.run([sys.executable, "-c", script, str(path)], cwd=root, env=os.environ, check=False)
    assert killed.returncode == -signal.SIGKILL
    outbox = Outbox(path, clock=lambda: 2.0)
    assert [entry.report.step for entry in outbox.pending(10)] == [9]
    outbox.close()


def test_a_file_that_is_no_database_is_a_clear_error(tmp_path: Path) -> None:
    """A damaged outbox names its file and the remedy."""
    path = tmp_path / "outbox.sqlite3"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(StorageError, match=r"outbox\.sqlite3"):
        Outbox(path, clock=lambda: 1.0)


def test_receipts_wait_with_the_newest_reports(tmp_path: Path) -> None:
    """They are long: where many wait, older reports go without theirs; an acknowledged one's is gone."""
    outbox = Outbox(tmp_path / "outbox.sqlite3", clock=lambda: 1000.0, receipts_kept=2)
    numbers = [outbox.put(replace(a_report(step), receipt=f"receipt {step}"), 0.0) for step in (1, 2, 3)]
    assert [entry.report.receipt for entry in outbox.pending(10)] == ["", "receipt 2", "receipt 3"]
    outbox.ack(numbers[1])
    outbox.put(a_report(4), 0.0)
    outbox.put(replace(a_report(5), receipt="receipt 5"), 0.0)
    assert [entry.report.receipt for entry in outbox.pending(10)] == ["", "receipt 3", "", "receipt 5"]
    outbox.close()


def test_losses_wait_among_the_reports(tmp_path: Path) -> None:
    """What no report can tell of has a number in the same row, survives a restart, and is acknowledged alike."""
    outbox = open_outbox(tmp_path)
    outbox.put(a_report(1), 1.0)
    seq = outbox.put_lost(Lost(2, {"left": 12}), at=2.0)
    outbox.close()
    again = open_outbox(tmp_path)
    assert [(entry.completed_at, entry.report) for entry in again.pending(10)] == [
        (1.0, a_report(1)),
        (2.0, Lost(2, {"left": 12})),
    ]
    again.ack(seq)
    assert [entry.report for entry in again.pending(10)] == [a_report(1)]
    again.close()


def test_a_report_that_is_ahead_waits_for_a_week(tmp_path: Path) -> None:
    """Across restarts; then its step will not come any more, and its samples are told as lost."""
    path, clock = tmp_path / "outbox.sqlite3", Clock()
    outbox = Outbox(path, clock)
    seq = outbox.put(a_report(27), completed_at=clock.now)
    clock.now += MOST_WAIT_S
    outbox.close()
    again = Outbox(path, clock)
    assert again.keep(seq)
    assert [entry.seq for entry in again.pending(10)] == [seq]
    clock.now += 1
    assert not again.keep(seq)
    assert [entry.report for entry in again.pending(10)] == [Lost(27, {"refused": 32})]
    again.close()


def test_a_step_that_is_repeated_takes_the_place_of_what_came_after_it(tmp_path: Path) -> None:
    """A device that has taken an earlier state back in the same era has left these steps: they wait for nothing."""
    outbox = open_outbox(tmp_path)
    for step in (24, 25, 26):
        outbox.put(a_report(step, 1), completed_at=50.0 + step)
    outbox.put(a_report(30), completed_at=80.0)
    outbox.put(a_report(25, 1), completed_at=90.0)
    left = Lost(25, {"out of sync": 64})
    assert [entry.report for entry in outbox.pending(10)] == [a_report(24, 1), a_report(30), left, a_report(25, 1)]
    outbox.close()


def test_a_full_disk_loses_no_report(tmp_path: Path) -> None:
    """What cannot be written waits, in order, for room; too much of it is an error."""
    with small_disk(tmp_path, 1 << 20):
        outbox = open_outbox(tmp_path, capacity=5000)
        first = outbox.put(a_report(1), 0.0)
        fill(tmp_path, 0)
        step = 1
        while outbox.put(a_report(step := step + 1), 0.0) is not None:
            pass
        assert first is not None
        outbox.ack(first)
        assert outbox.put_lost(Lost(step, {"left": 12}), 0.0) is None
        assert outbox.waiting == 3
        assert outbox.pending(1)[0].seq == first
        make_room(tmp_path)
        reports = [entry.report for entry in outbox.pending(5000)]
        assert reports == [*map(a_report, range(2, step + 1)), Lost(step, {"left": 12})]
        assert outbox.waiting == 0
        fill(tmp_path, 0)
        with pytest.raises(StorageError, match="full"):
            _ = [outbox.put(a_report(number), 0.0) for number in range(step + 1, step + 5000)]
        make_room(tmp_path)
        outbox.close()
