"""Sinks hold each step once, over restarts, kills and returns to checkpoints, and hold nobody up."""

from __future__ import annotations

import json
import logging
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from auth.errors import ConfigError, StorageError
from coordinator.ledger.reading import SETTLED_S
from coordinator.run.settings import Settings
from coordinator.run.sink_settings import Sinks, TensorBoardSettings
from coordinator.tracking.points import Point, SinkPosition, in_current_era, next_points
from coordinator.tracking.process import LONGEST_PAUSE_S, POLL_S, SinkWriter, pause_s, writers
from coordinator.tracking.sinks import Sink, TensorBoardSink
from tests.support.clocks import Clock
from tests.support.served_page import FakeRun
from tests.support.waiting import PATIENCE_S, wait_until

LATER = 1e12
BLOCK = 32_768


@pytest.fixture
def clock() -> Clock:
    """The run's clock, in the past: the sinks' process has the machine's."""
    return Clock(1_700_000_000.0)


@pytest.fixture
def run(run: FakeRun) -> FakeRun:
    """A run with three steps and an evaluation of the second."""
    run.add_member("ada")
    run.add_steps([9.0, 8.0, 7.0])
    run.add_validation(2)
    run.directory.sinks_dir.mkdir()
    return run


@dataclass
class ListSink(Sink):
    """Keeps rows in a list, and may fail at one of them."""

    rows: list[tuple[int, int, bool]] = field(default_factory=list)
    fails_at: int = -1
    fails_by: type[BaseException] = ConnectionError
    disk_is_full: bool = False
    rewound: list[int] = field(default_factory=list)
    closed: int = 0

    def write(self, row: int, point: Point) -> None:
        if row == self.fails_at:
            raise self.fails_by
        self.rows.append((row, point.step, point.evaluated))

    def rewind(self, step: int) -> None:
        self.rewound.append(step)

    def flush(self) -> None:
        """Lose everything if the disk is full."""
        if self.disk_is_full:
            self.rows.clear()
            raise OSError(28, "No space left on device")

    def close(self) -> None:
        self.closed += 1


def writer_of(run: FakeRun, sink: Sink, name: str = "list") -> SinkWriter:
    book = run.directory.sinks_dir / f"{name}.json"
    return SinkWriter(name, lambda: sink, book, run.services.database, lambda: LATER)


def stopped() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


EVERYTHING = [(0, 1, False), (1, 2, False), (2, 3, False), (3, 2, True)]


def test_steps_and_evaluations_are_written_once(run: FakeRun) -> None:
    """A process that starts again writes only what is new."""
    sink = ListSink()
    writer_of(run, sink).write_until(stopped())
    writer_of(run, sink).write_until(stopped())
    assert sink.rows == EVERYTHING
    run.add_step(4, 6.0)
    writer_of(run, sink).write_until(stopped())
    assert sink.rows[4:] == [(4, 4, False)]
    assert sink.closed == 3


@pytest.mark.parametrize("fails_at", range(4))
def test_failing_at_any_row_nothing_is_written_twice_or_left_out(run: FakeRun, fails_at: int) -> None:
    """The next attempt goes on with the row that failed."""
    sink = ListSink(fails_at=fails_at)
    with pytest.raises(ConnectionError):
        writer_of(run, sink).write_until(stopped())
    sink.fails_at = -1
    writer_of(run, sink).write_until(stopped())
    assert sink.rows == EVERYTHING


def test_points_that_were_not_flushed_are_written_again(run: FakeRun) -> None:
    """And so is a return to a checkpoint."""
    sink = ListSink(disk_is_full=True)
    with pytest.raises(OSError, match="No space left"):
        writer_of(run, sink).write_until(stopped())
    sink.disk_is_full = False
    writer_of(run, sink).write_until(stopped())
    assert sink.rows == EVERYTHING
    run.services.ledger.roll_back(1)
    sink.disk_is_full = True
    with pytest.raises(OSError, match="No space left"):
        writer_of(run, sink).write_until(stopped())
    sink.disk_is_full = False
    writer_of(run, sink).write_until(stopped())
    assert sink.rewound == [1, 1]


def test_a_kill_leaves_out_few_points_and_a_stop_none(run: FakeRun) -> None:
    """A long history is written in small batches, to its end, even if the process is told to stop meanwhile."""
    run.add_steps([6.0] * 97, first=4)
    sink = ListSink(fails_at=50, fails_by=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        writer_of(run, sink).write_until(stopped())
    sink.fails_at = -1
    writer_of(run, sink).write_until(stopped())
    steps = [step for _, step, evaluated in sink.rows if not evaluated]
    assert len(steps) >= 80
    assert steps[-1] == 100


def test_killed_at_a_row_nothing_is_written_twice(run: FakeRun) -> None:
    """Then the rest of what was under way is left out rather than doubled."""
    sink = ListSink(fails_at=2, fails_by=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        writer_of(run, sink).write_until(stopped())
    sink.fails_at = -1
    run.add_step(4, 6.0)
    writer_of(run, sink).write_until(stopped())
    assert sink.rows == [*EVERYTHING[:2], (4, 4, False)]


def test_a_return_to_a_checkpoint_is_written_anew(run: FakeRun) -> None:
    """Steps that were undone come again when they are taken again, and the sink hears of it once."""
    sink = ListSink()
    writer_of(run, sink).write_until(stopped())
    assert run.services.ledger.roll_back(1) == 1
    for _ in range(2):
        writer_of(run, sink).write_until(stopped())
    position = in_current_era(run.services.database, SinkPosition(rows=4, step=3))
    assert (position.era, position.step) == (1, 1)
    assert sink.rows == EVERYTHING
    assert sink.rewound == [1]


def test_steps_are_written_when_their_reports_are_in(run: FakeRun, clock: Clock) -> None:
    """A step that was just completed waits."""
    database = run.services.database
    assert [p for p in next_points(database, SinkPosition(), clock() - SETTLED_S) if not p.evaluated] == []
    clock.now += SETTLED_S
    assert len([p for p in next_points(database, SinkPosition(), clock() - SETTLED_S) if not p.evaluated]) == 3


class Patience(threading.Event):
    """A stop that comes after so many waits, which take no time."""

    def __init__(self, waits: int) -> None:
        super().__init__()
        self._left, self.waited = waits, list[float | None]()

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout)
        self._left -= 1
        if not self._left:
            self.set()
        return self.is_set()


def test_a_sink_that_fails_is_opened_again(run: FakeRun, caplog: pytest.LogCaptureFixture) -> None:
    """The thread survives whatever the sink raises, waits longer each time, says it once, and writes all in the end."""
    caplog.set_level(logging.INFO, "coordinator.tracking")
    sinks = [ListSink(fails_at=0), ListSink(fails_at=0), ListSink()]
    opened = iter(sinks)
    stop = Patience(3)
    replace(writer_of(run, sinks[0]), open=lambda: next(opened)).run(stop)
    assert stop.waited == [pause_s(1), pause_s(2), POLL_S]
    assert [sink.rows for sink in sinks] == [[], [], EVERYTHING]
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


def test_pauses_have_an_end() -> None:
    """A server that was away for a night is tried again within minutes."""
    assert [pause_s(1), pause_s(2), pause_s(10_000)] == [4.0, 8.0, LONGEST_PAUSE_S]


def rows_settled(book: Path) -> int:
    return int(json.loads(book.read_text())["rows"]) if book.exists() else 0


def events_of(run: FakeRun) -> TensorBoardSink:
    return TensorBoardSink(TensorBoardSettings(directory="events"), run.directory)


def test_tensorboard_reads_what_was_written(run: FakeRun) -> None:
    """Values, steps and times of every point, in two event files after a restart; and a rollback purges."""
    folder = run.directory.path / "events"
    for step, loss in ((None, 0.0), (4, 6.0)):
        if step is not None:
            run.add_step(step, loss)
        writer_of(run, events_of(run), "tensorboard").write_until(stopped())
    assert len(list(folder.iterdir())) == 2
    read = EventAccumulator(str(folder)).Reload()
    assert [(event.step, event.value) for event in read.Scalars("train/loss")] == [
        (1, 9.0),
        (2, 8.0),
        (3, 7.0),
        (4, 6.0),
    ]
    assert [event.step for event in read.Scalars("validation/loss")] == [2]
    assert read.Scalars("train/loss")[0].wall_time == run.services.clock()
    run.services.ledger.roll_back(2)
    run.keeper_says(2)
    writer_of(run, events_of(run), "tensorboard").write_until(stopped())
    assert [event.step for event in EventAccumulator(str(folder)).Reload().Scalars("train/loss")] == [1, 2]


SINKS_PROCESS = """
import sys, time
from pathlib import Path
from coordinator.run.logs import log_to_stderr
from coordinator.tracking import process
log_to_stderr("sinks")
process.LAST_S = {patience_s}
{change}
process.run_sinks(Path(sys.argv[1]))
"""


def write_in_a_process(
    run: FakeRun,
    sinks: dict[str, object],
    change: str = "",
    waits_for: str = "",
    is_seen: Callable[[], bool] = lambda: True,
) -> str:
    """Run the sinks' process until all that there is has been written and is seen, then stop it; returns its log."""
    rows = len(run.services.ledger.steps()) + 1
    (run.directory.path / "settings.yaml").write_text(yaml.safe_dump({"bind_host": "127.0.0.1", "sinks": sinks}))
    script = SINKS_PROCESS.format(patience_s=PATIENCE_S, change=change)
    child = subprocess.Popen([sys.executable, "-c", script, str(run.directory.path)], stderr=subprocess.PIPE, text=True)
    book = run.directory.sinks_dir / f"{waits_for or next(iter(sinks))}.json"
    try:
        wait_until(
            "all rows are written or the process has ended",
            lambda: child.poll() is not None or (rows_settled(book) == rows and is_seen()),
        )
        child.terminate()
        _, said = child.communicate(timeout=PATIENCE_S)
    finally:
        child.kill()
    assert child.returncode == 0, said
    return said


def test_a_sink_that_hangs_holds_up_no_other(run: FakeRun) -> None:
    """The process of the sinks writes the others, and ends in time without the one that hangs."""
    said = write_in_a_process(
        run,
        {"tensorboard": {}, "trackio": {"project": "p"}},
        "process.LAST_S = 1.0; process.SINKS = {**process.SINKS, 'trackio': lambda *_: time.sleep(3600)}",
        waits_for="tensorboard",
    )
    assert "trackio has not accepted the remaining points" in said
    read = EventAccumulator(str(run.directory.sinks_dir / "tensorboard")).Reload()
    assert [event.step for event in read.Scalars("train/loss")] == [1, 2, 3]


def test_trackio_holds_each_point_once(run: FakeRun) -> None:
    """On disk, over two processes, with the run's name and the global step beside each row."""
    for step in (4, 5):
        write_in_a_process(run, {"trackio": {"project": "lab"}})
        run.add_step(step, 6.0)
    script = (
        "import json; from trackio.sqlite_storage import SQLiteStorage as Storage; "
        "print(json.dumps(Storage.get_logs('lab', 'test-run'), default=str))"
    )
    read = subprocess.run(
        [sys.executable, "-c", script],
        env={
            "TRACKIO_DIR": str(run.directory.sinks_dir / "trackio"),
            "PATH": "/usr/bin:/bin",
            "HOME": str(run.directory.path),
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert read.returncode == 0, read.stderr
    rows = json.loads(read.stdout.splitlines()[-1])
    assert [(row["step"], row["global_step"]) for row in rows] == [(0, 1), (1, 2), (2, 3), (3, 2), (4, 4)]
    assert rows[0]["train/loss"] == 9.0


@pytest.mark.thorough
def test_wandb_takes_every_point_offline(run: FakeRun) -> None:
    """Its own log on disk, read back with its format, holds the points of two processes, each once and at once."""
    settings: dict[str, object] = {"wandb": {"project": "lab", "mode": "offline"}}
    write_in_a_process(run, settings, is_seen=lambda: len(wandb_rows(run)) == 4)
    run.add_step(4, 6.0)
    write_in_a_process(run, settings, is_seen=lambda: len(wandb_rows(run)) == 5)
    rows = wandb_rows(run)
    assert [(row["_step"], row["global_step"]) for row in rows] == [(0, 1), (1, 2), (2, 3), (3, 2), (4, 4)]
    assert rows[0]["train/loss"] == 9.0


def wandb_rows(run: FakeRun) -> list[dict[str, float]]:
    """The history in the files of the run's processes."""
    from wandb.proto import wandb_internal_pb2

    rows = []
    files = sorted((run.directory.sinks_dir / "wandb").rglob("*.wandb"))
    for data in (record for file in files for record in logged(file.read_bytes())):
        record = wandb_internal_pb2.Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            row = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            rows.append({"_step": record.history.step.num} | row)
    return rows


def logged(content: bytes) -> Iterator[bytes]:
    """The records of a file in LevelDB's log format, after Weights & Biases' own seven bytes.

    Blocks of 32 KiB hold pieces: checksum (4 bytes), length (2), kind (whole, first, middle, last), data.
    """
    assert not content or content.startswith(b":W&B")
    at, record = 7, b""
    while at + 7 <= len(content):
        left = BLOCK - at % BLOCK
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        if at + 7 + length > len(content):
            return  # it is being written
        record += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in {1, 4}:
            yield record
            record = b""


@pytest.mark.parametrize(
    ("sinks", "said"),
    [
        ({"tensorbord": {}}, "sinks.tensorbord"),
        ({"wandb": {}}, "sinks.wandb.project"),
        ({"wandb": {"project": "p", "mode": "sometimes"}}, "sinks.wandb.mode"),
        ({"trackio": {"project": "../p"}}, "sinks.trackio.project"),
        ({"trackio": {"project": "p", "space_id": "a/b", "server_url": "https://c.example"}}, "exclude each other"),
    ],
)
def test_a_mistake_in_the_settings_is_named(tmp_path: Path, sinks: dict[str, object], said: str) -> None:
    """By its key, before anything is served."""
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump({"sinks": sinks}))
    with pytest.raises(ConfigError, match=said):
        Settings.from_yaml(file)


def test_a_sink_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one sentence, when the run is to be served."""
    monkeypatch.setattr("coordinator.run.sink_settings.find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"pip .* install .*\[trackio\]'"):
        Sinks.model_validate({"trackio": {"project": "p"}}).require_installed()


def test_a_secret_that_others_can_read_is_not_used(run: FakeRun) -> None:
    """The sink fails with the sentence that mends it; the others go on."""
    secret = run.directory.path / "keys" / "wandb.secret"
    secret.write_text("key")
    secret.chmod(0o644)
    settings = {"bind_host": "127.0.0.1", "sinks": {"wandb": {"project": "p", "api_key_file": "keys/wandb.secret"}}}
    (run.directory.path / "settings.yaml").write_text(yaml.safe_dump(settings))
    directory = type(run.directory)(run.directory.path)
    (writer,) = writers(directory, run.services.database)
    with pytest.raises(ConfigError, match="chmod 600"):
        writer.open()


@pytest.mark.parametrize("content", ["", "[]", '{"rows": "x"}', '{"rows": 1, "y": 1}', '{"position": {}, "ahead": []}'])
def test_a_position_that_cannot_be_read_is_an_error_that_names_its_file(run: FakeRun, content: str) -> None:
    """Rather than a sink that is written twice."""
    (run.directory.sinks_dir / "list.json").write_text(content)
    with pytest.raises(StorageError, match=r"list\.json .* another version .* remove it and what this sink holds"):
        writer_of(run, ListSink()).write_until(stopped())
