"""A whole run's history, made up and written straight into a run's database: for the dashboard's tests and measures.

    python benchmarks/coordinator/recorded_run.py [DIR] [--members 40] [--sessions 600] [--steps 20000]
                                      [--live S] [--quick] [--json]

The same options make the same history, but for its end, which is now. With DIR the run stays there, to be served by
`manyhands coordinator serve DIR --service-only`; with `--live S` it goes on, a step each S seconds, until it is
interrupted. Measured is how long writing takes; it is no target of anything.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.coordinator.recorded_live import LiveRun
from benchmarks.coordinator.recorded_rows import RecordedHistory, write_history
from benchmarks.coordinator.recorded_stays import devices_of, members_of, stays_of
from benchmarks.coordinator.recorded_steps import TARGET, mean_step_s, steps_of
from benchmarks.support.reporting import Figure, argument_parser, report
from coordinator.run.directory import RunDirectory
from coordinator.run.ports import free_ports
from coordinator.run.settings import Settings
from coordinator.store.engine import Database, open_engine
from peer.config.run import RunConfig

MEAN_STEP_S, GUESSES = 75.0, 3  # by which a run's length is guessed, better each time, before its steps are made
UPDATE_S = 1.0


@dataclass(frozen=True)
class Recording:
    """How large a history."""

    members: int = 40
    sessions: int = 600
    steps: int = 20_000
    seed: int = 7


QUICK = Recording(members=8, sessions=40, steps=600)


def config_of(recording: Recording) -> RunConfig:
    """The run file: sahajBERT's recipe, first on short sequences."""
    phase = max(1, int(0.6 * recording.steps))
    return RunConfig.from_mapping(
        {
            "run": {
                "name": "sahajbert-recorded",
                "description": "A recorded run: forty volunteers train a Bengali ALBERT, from home and from notebooks.",
                "language": "bn",
            },
            "data": {"sequence_length": 128},
            "averaging": {"target_batch_size": TARGET},
            "phases": [{"from_step": phase, "sequence_length": 512, "optimizer": "fresh"}],
        }
    )


def record(directory: Path, recording: Recording, ends_at: float) -> RunDirectory:
    """Make a run in a directory that does not exist yet, with a history that ends at `ends_at` (Unix seconds)."""
    control_port, swarm_port, web_port = free_ports("127.0.0.1", 3)
    settings = Settings(bind_host="127.0.0.1", control_port=control_port, swarm_port=swarm_port, web_port=web_port)
    run = RunDirectory.create(directory, config_of(recording), settings)
    engine = open_engine(run.database_url)
    try:
        write_history(Database(engine), history_of(recording, ends_at), ends_at)
    finally:
        engine.dispose()
    return run


def history_of(recording: Recording, ends_at: float) -> RecordedHistory:
    """Everything that happened; its last step is completed at about `ends_at`."""
    rng = random.Random(recording.seed)
    members = members_of(recording.members, rng)
    devices = devices_of(members, rng)
    length_s = recording.steps * MEAN_STEP_S
    for _ in range(GUESSES):
        stays = stays_of(devices, recording.sessions, 0.0, length_s, random.Random(recording.seed))
        length_s = recording.steps * mean_step_s(stays, length_s)
    stays = stays_of(devices, recording.sessions, 0.0, length_s, random.Random(recording.seed))
    steps = list(steps_of(stays, recording.steps, 0.0, rng))
    return RecordedHistory(members, devices, stays, steps).moved(ends_at)


def go_on(directory: RunDirectory, step_s: float, clock: Callable[[], float], until: Callable[[], bool]) -> None:
    """Let the run live: batches fill up and steps complete, until `until` says so."""
    engine = open_engine(directory.database_url)
    try:
        live = LiveRun(Database(engine), random.Random(1))
        filled_s = 0.0
        while not until():
            time.sleep(UPDATE_S)
            filled_s += UPDATE_S
            if filled_s >= step_s:
                live.complete_step(clock())
                filled_s = 0.0
            live.say(filled_s / step_s, step_s - filled_s, clock())
    finally:
        engine.dispose()


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a run, and let it go on if that is wanted."""
    parser = argument_parser("A whole run's history, made up.")
    parser.add_argument(
        "directory", type=Path, nargs="?", metavar="DIR", help="where the run stays; else it goes again"
    )
    parser.add_argument("--members", type=int, default=Recording.members)
    parser.add_argument("--sessions", type=int, default=Recording.sessions)
    parser.add_argument("--steps", type=int, default=Recording.steps)
    parser.add_argument("--live", type=float, metavar="S", help="go on with a step each S seconds, until interrupted")
    options = parser.parse_args(arguments)
    recording = QUICK if options.quick else Recording(options.members, options.sessions, options.steps)
    with tempfile.TemporaryDirectory() as aside:
        directory = options.directory or Path(aside) / "run"
        began = time.perf_counter()
        run = record(directory, recording, time.time())
        took = time.perf_counter() - began
        size = sum(file.stat().st_size for file in run.path.glob("manyhands.db*"))
        report(
            "recorded run",
            [
                Figure("written", took, "s"),
                Figure("steps", recording.steps, "steps"),
                Figure("the database", size / 1e6, "MB"),
            ],
            options.json,
        )
        if options.live:
            with suppress(KeyboardInterrupt):
                go_on(run, options.live, time.time, lambda: False)


if __name__ == "__main__":
    main()
