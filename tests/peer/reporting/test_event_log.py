"""The log of events: whole lines, bounded on disk, and nothing that fails beside it."""

from __future__ import annotations

import math
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

from hypothesis import given, strategies as st

from peer.reporting.event_log import (
    MOST_CHARS,
    MOST_PEERS,
    NOWHERE,
    AnyEvent,
    ChildEnded,
    EventLog,
    EventsDropped,
    GroupMet,
    PartsOfPeer,
    PartsPassed,
    RoundEnded,
    StepTaken,
    read_folder,
    read_lines,
)
from tests.support.small_disks import fill, make_room, small_disk

KILLED = """
import sys
from pathlib import Path
from peer.reporting.event_log import ChildEnded, EventLog
log = EventLog(Path(sys.argv[1]), "agent", lambda: 1.0)
number = 0
while True:
    log.add(ChildEnded(child=str(number), cause="x" * 200))
    number += 1
    print(number, flush=True)
"""


def step(number: int) -> StepTaken:
    return StepTaken(era=0, step=number, samples=8, group_samples=32, peers=4)


def read(folder: Path, process: str = "worker") -> list[AnyEvent]:
    return [line.event for line in read_lines(read_folder(folder)[process]) if line is not None]


def test_events_come_back_in_order_with_their_times(tmp_path: Path) -> None:
    """In a private file in a private folder."""
    times = iter([10.0, 11.5])
    log = EventLog(tmp_path / "events", "worker", lambda: next(times))
    group = GroupMet(group="ab", peers=("a", "b"), shares=(3, 1))
    log.add(group)
    log.add(step(1))
    lines = list(read_lines(read_folder(tmp_path / "events")["worker"]))
    assert [(line.at, line.event) for line in lines if line is not None] == [(10.0, group), (11.5, step(1))]
    assert stat.S_IMODE((tmp_path / "events" / "worker.jsonl").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "events").stat().st_mode) == 0o700


def test_a_log_is_bounded_and_holds_the_newest(tmp_path: Path) -> None:
    """Two files of the limit, and one line more each."""
    log = EventLog(tmp_path, "worker", lambda: 0.0, most_bytes=1000)
    for number in range(200):
        log.add(step(number))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2400
    numbers = [event.step for event in read(tmp_path) if isinstance(event, StepTaken)]
    assert numbers == list(range(numbers[0], 200))
    assert len(numbers) >= 8


def test_processes_of_a_node_have_files_of_their_own(tmp_path: Path) -> None:
    """A log that is made before a fork opens its file in the process that uses it."""
    log = EventLog(tmp_path, "worker", lambda: 0.0)
    forked = log.of_process("worker-averager")
    log.add(step(1))
    forked.add(step(2))
    assert set(read_folder(tmp_path)) == {"worker", "worker-averager"}
    assert read(tmp_path, "worker-averager") == [step(2)]


def test_a_torn_line_spoils_no_other(tmp_path: Path) -> None:
    """As a power failure leaves it: what comes next begins a line of its own."""
    EventLog(tmp_path, "worker", lambda: 0.0).add(step(1))
    path = tmp_path / "worker.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    EventLog(tmp_path, "worker", lambda: 0.0).add(step(2))
    assert read(tmp_path) == [step(1), step(2)]
    assert [line is None for line in read_lines(path.read_bytes())] == [False, True, False]


def test_a_killed_process_leaves_whole_lines(tmp_path: Path) -> None:
    """SIGKILL at any point: every event that was added is there."""
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        added = [int(process.stdout.readline()) for _ in range(50)][-1]
        os.kill(process.pid, signal.SIGKILL)
    lines = list(read_lines(read_folder(tmp_path)["agent"]))
    assert None not in lines
    assert len(lines) >= added


def test_a_full_disk_stops_nothing_and_is_told(tmp_path: Path) -> None:
    """What the disk does not take is counted, and said when there is room again."""
    with small_disk(tmp_path, size_bytes=64 * 1024):
        log = EventLog(tmp_path / "events", "worker", lambda: 0.0)
        log.add(step(0))
        fill(tmp_path, left_bytes=0)
        for number in range(1, 100):
            log.add(step(number))
        make_room(tmp_path)
        log.add(step(100))
        events = read(tmp_path / "events")
    assert events[-1] == step(100)
    dropped = [event.events for event in events if isinstance(event, EventsDropped)]
    written = [event for event in events if isinstance(event, StepTaken)]
    assert len(dropped) == 1
    assert dropped[0] + len(written) == 101


def test_a_folder_that_cannot_be_made_stops_nothing(tmp_path: Path) -> None:
    """A file lies in its place."""
    (tmp_path / "events").write_text("")
    EventLog(tmp_path / "events", "worker", lambda: 0.0).add(step(1))
    NOWHERE.add(step(1))


def test_threads_write_whole_lines(tmp_path: Path) -> None:
    """Eight threads at once."""
    log = EventLog(tmp_path, "worker", lambda: 0.0)
    threads = [threading.Thread(target=lambda: [log.add(step(n)) for n in range(50)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read(tmp_path)) == 400


def test_no_address_and_no_control_character_is_kept() -> None:
    """Texts come from exceptions and from other peers."""
    cause = "cannot dial /ip4/203.0.113.9/tcp/4001, 198.51.100.7 or [2001:db8::1]\x1b[2J" + "x" * 1000
    kept = ChildEnded(child="worker", cause=cause).cause
    assert not any(part in kept for part in ("203.0.113.9", "198.51.100.7", "2001:db8", "\x1b"))
    assert len(kept) <= MOST_CHARS + 3 * len("<address>")


@given(st.binary(max_size=300))
def test_anything_can_be_read(data: bytes) -> None:
    """Whoever wrote the file: each line is an event or None."""
    assert all(line is None or line.event.told(str) for line in read_lines(data))


def test_events_of_a_newer_version_are_passed_over() -> None:
    """An unknown kind is None; an unknown field is left out."""
    known = b'{"at":1,"event":{"kind":"session","up":true,"of":"later"}}'
    unknown = b'{"at":1,"event":{"kind":"weather","rain":true}}'
    first, second = read_lines(known + b"\n" + unknown + b"\n")
    assert first is not None
    assert second is None


def test_parts_tell_what_was_lacking() -> None:
    """Reducers without all their averages, banned senders and weights that were cut."""
    parts = (
        PartsOfPeer(peer="alice", returned=3, due=3, weight=8.0, counted=8.0),
        PartsOfPeer(peer="bob", returned=1, due=4, is_banned=True),
        PartsOfPeer(peer="carol", returned=0, due=0, weight=640.0, counted=32.0),
    )
    told = PartsPassed(group="abcdef0123", is_whole=False, parts=parts).told(str)
    assert told == (
        "parts of group abcdef01: averages lacking from: bob 1 of 4; left out as senders: bob; "
        "weights cut: carol 32 of 640"
    )


def test_no_number_that_a_peer_names_spoils_an_event() -> None:
    """A weight of 10^30, or none at all: an event that could not be made failed the round for everybody."""
    shares = (1e300, math.inf, math.nan, -1.0, 0.5)
    assert GroupMet(group="ab", peers=("x" * 1000,) * 1000, shares=shares).shares == (2**62, 2**62, 0, 0, 0.5)
    part = PartsOfPeer(peer="x" * 1000, returned=2, due=10**40, weight=1e30, counted=-math.inf)
    assert (part.due, part.weight, part.counted) == (2**62, 2**62, 0)
    passed = PartsPassed(group="ab", is_whole=True, parts=(part,) * 1000)
    assert len(passed.parts) == MOST_PEERS
    ended = RoundEnded(
        step=10**40, outcome="failed", seconds=math.nan, peers=1, samples=round(1e300), cause="\0" * 1000
    )
    assert (ended.step, ended.seconds, ended.samples, len(ended.cause)) == (2**62, 0, 2**62, MOST_CHARS)
