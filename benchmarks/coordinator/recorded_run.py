"""A synthetic history of a long run, written into a run's database to be served, and optionally continued live.

    python benchmarks/coordinator/recorded_run.py [DIR] [--members 40] [--sessions 600] [--steps 20000]
                                      [--live S] [--quick] [--json]

The same options give the same history, except that the history always ends now. With DIR the run is kept, to be served
by `manyhands coordinator serve DIR --service-only`. With `--live S` the run takes a step every S seconds until it is
interrupted. The dashboard's benchmark and the tests of its pages also use this module. The benchmark measures the time
to write the history.
"""

from __future__ import annotations

import hashlib
import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import func, insert, select

from benchmarks.support.reporting import Figure, argument_parser, report
from coordinator.checkpoints.validations import ValidationRow, record_validation
from coordinator.context.open_run import open_run
from coordinator.ledger.keeper_status import write_swarm_status
from coordinator.ledger.ledger import count_losses, enter_reports
from coordinator.ledger.recorded_checkpoints import record_checkpoint
from coordinator.ledger.sessions import PresenceClaim, touch_sessions
from coordinator.run.directory import RunDirectory
from coordinator.run.ports import free_ports
from coordinator.run.settings import Settings
from coordinator.store.engine import Database
from coordinator.store.models import Device, DeviceSession, Member, Report, Step
from coordinator.store.notify import Topic, tell
from peer.config.run import RunConfig
from peer.reporting.messages import LostCause

HOSTILE_NAME = "<img src=x onerror=alert(1)>"
NAMES = (
    *("ananya", HOSTILE_NAME, "মৌমিতা", "rafiq", "lucía", "নাহিদ", "chen-wei", "Ελένη", "amélie", "tomás", "مريم"),
    "a-name-of-sixty-four-characters-as-long-as-any-member-may-choose",
)
HARDWARE = (  # descriptions as in sessions, and samples per second
    ("cuda:0, 2 cores", 4.2),
    ("cuda:0, 4 cores", 6.5),
    ("cpu, 8 cores", 0.5),
    ("cuda:0,1, 4 cores", 9.0),
    ("mps, 10 cores", 2.4),
    ("tpu, 96 cores", 45.0),
)
TARGET = 4096
STEP_S, AVERAGING_S = 75.0, 9.0
STAY = (0.1, 0.2)  # minimum and maximum session, as a share of the interval between a machine's sessions
STILL_THERE = 8  # number of machines whose last session has not ended
LOST_SHARE = 0.015  # share of reports whose samples were not averaged
UNCONFIRMED_STEPS = 2  # number of newest steps without receipts
STEPS_AT_ONCE = 500  # number of steps written per transaction
CHECKPOINTS, KEPT_CHECKPOINTS = 40, 12  # checkpoints written, and checkpoints still kept
SIZE_BYTES = 71_300_000
UPDATE_S = 1.0


@dataclass(frozen=True)
class Recording:
    """The size of a history."""

    members: int = 40
    sessions: int = 600
    steps: int = 20_000
    seed: int = 7


QUICK = Recording(members=8, sessions=40, steps=600)


@dataclass(frozen=True)
class Stay:
    """A session of a machine; times in Unix seconds."""

    id: str
    device_id: str
    began_at: float
    ended_at: float  # infinite if the session is open
    samples_per_second: float


def record(directory: Path, recording: Recording, ends_at: float) -> RunDirectory:
    """Create a run in a new directory, with a history that ends at `ends_at` (Unix seconds)."""
    control_port, swarm_port, web_port = free_ports("127.0.0.1", 3)
    settings = Settings(bind_host="127.0.0.1", control_port=control_port, swarm_port=swarm_port, web_port=web_port)
    description = "A recorded run: volunteers train a Bengali ALBERT, from home and from notebooks."
    config = RunConfig.from_mapping(
        {
            "run": {"name": "sahajbert-recorded", "description": description, "language": "bn"},
            "averaging": {"target_batch_size": TARGET},
        }
    )
    run = RunDirectory.create(directory, config, settings)
    rng = random.Random(recording.seed)
    with open_run(run.path) as opened:
        stays = write_stays(opened.database, recording, ends_at, rng)
        write_steps(opened.database, recording, stays, ends_at, rng)
        write_checkpoints(opened.database, recording, ends_at)
        LiveRun(opened.database, rng).say(1 / 3, STEP_S, ends_at)
    return run


def write_stays(database: Database, recording: Recording, ends_at: float, rng: random.Random) -> list[Stay]:
    """Write members, their devices (3 for every 2 members) and sessions; return the sessions by start time.

    The first device is always connected. One member is shown under a pseudonym.
    """
    machines, length_s = recording.members * 3 // 2, recording.steps * STEP_S
    began_at = ends_at - length_s
    stays: list[Stay] = []
    with database.begin() as session:
        members = [
            Member(
                name=NAMES[number] if number < len(NAMES) else f"volunteer-{number + 1}",
                display_name="anonymous-5" if number == 5 else None,
                created_at=began_at - 3600.0,
            )
            for number in range(recording.members)
        ]
        session.add_all(members)
        for number in range(machines):
            hardware, rate = HARDWARE[number % len(HARDWARE)]
            name = hashlib.sha256(f"device {number}".encode()).hexdigest()
            device = Device(
                id=name[:32],
                member=members[number % len(members)],
                number=number + 1,  # number 0 is the keeper
                peer_id=f"Qm{name[:32]}recorded",
                public_key=name.encode(),
                role="trainer",
                created_at=began_at - 60.0,
                token_until=ends_at + 6 * 3600.0,
            )
            session.add(device)
            session.flush()  # the device's row must exist before its sessions
            times = list(
                _stays_of(number, recording.sessions // machines + (number < recording.sessions % machines), rng)
            )
            for place, (begins, ends) in enumerate(times):
                is_open = number < STILL_THERE and place == len(times) - 1
                ended_at = began_at + ends * length_s
                row = DeviceSession(
                    id=hashlib.sha256(f"stay {number} {place}".encode()).hexdigest()[:32],
                    device_id=device.id,
                    started_at=began_at + begins * length_s,
                    last_seen_at=ends_at if is_open else ended_at,
                    ended_at=None if is_open else ended_at,
                    hardware=hardware,
                    software_version="0.1.0" if number % 9 else "0.0.9",
                    state="training" if is_open else "stopping",
                    step=recording.steps if is_open else 0,
                    samples_per_second=rate,
                )
                session.add(row)
                stays.append(_stay(row))
    return sorted(stays, key=lambda stay: stay.began_at)


def _stays_of(machine: int, count: int, rng: random.Random) -> Iterator[tuple[float, float]]:
    """Yield the start and end of a machine's `count` sessions as fractions of the run, evenly distributed."""
    for place in range(count):
        begins = place if machine == 0 else place + rng.uniform(0, 1 - STAY[1])
        lasts = 1.0 if machine == 0 else rng.uniform(*STAY)
        yield begins / count, (begins + lasts) / count


def _stay(row: DeviceSession) -> Stay:
    ended_at = math.inf if row.ended_at is None else row.ended_at
    return Stay(row.id, row.device_id, row.started_at, ended_at, row.samples_per_second)


def write_steps(
    database: Database, recording: Recording, stays: Sequence[Stay], ends_at: float, rng: random.Random
) -> None:
    """Write the steps, and for each step the reports of the machines connected at its time."""
    began_at = ends_at - recording.steps * STEP_S
    here, coming, steps = list[Stay](), list(stays), iter(range(1, recording.steps + 1))
    while page := list(islice(steps, STEPS_AT_ONCE)):
        with database.begin() as session:
            reports: list[dict[str, Any]] = []
            rows: list[dict[str, Any]] = []
            for step in page:
                completed_at = began_at + step * STEP_S
                while coming and coming[0].began_at <= completed_at:
                    here.append(coming.pop(0))
                here = [stay for stay in here if stay.ended_at > completed_at]
                of_step = reports_of(step, completed_at, here, recording.steps - step >= UNCONFIRMED_STEPS, rng)
                reports += of_step
                rows.append(step_row(of_step))
            enter_reports(session, reports)
            session.execute(insert(Step), rows)
            for each in reports:
                if each["lost_samples"]:
                    lost = {each["lost_reason"]: each["lost_samples"]}
                    count_losses(session, each["device_id"], each["step"], lost, each["completed_at"])


def loss_at(step: int, rng: random.Random) -> float:
    """Return a masked language model's loss, which falls fast at first and then slowly."""
    return 1.9 + 4.6 * math.pow(1 + step / 250, -0.42) + 4.4 * math.exp(-step / 180) + rng.gauss(0, 0.05)


def reports_of(
    step: int, completed_at: float, here: Sequence[Stay], is_confirmed: bool, rng: random.Random
) -> list[dict[str, Any]]:
    """Return these machines' reports of a step as database rows; a few have no averaged samples."""
    all_per_second, step_loss = sum(stay.samples_per_second for stay in here), loss_at(step, rng)
    rows = []
    for stay in here:
        computed = max(1, round(TARGET * stay.samples_per_second / all_per_second))
        is_lost = rng.random() < LOST_SHARE
        samples, loss = (0, None) if is_lost else (computed, step_loss + rng.gauss(0, 0.05))
        rows.append(
            {
                "device_id": stay.device_id,
                "session_id": stay.id,
                "seq": step,
                "era": 0,
                "step": step,
                "samples": samples,
                "counted": samples if is_confirmed or is_lost else None,
                "loss": loss,
                "mlm_loss": None if loss is None else loss - 0.5,
                "sop_loss": None if loss is None else 0.5,
                "group_size": len(here) + 1,
                "group_samples": TARGET,
                "averaging_s": AVERAGING_S * rng.uniform(0.5, 1.7),
                "samples_per_second": stay.samples_per_second,
                "lost_samples": computed if is_lost else 0,
                "lost_reason": rng.choice((LostCause.LATE, LostCause.AVERAGING)).value if is_lost else "",
                "data_wait_s": STEP_S * rng.uniform(0.0, 0.03),
                "elapsed_s": STEP_S,
                "averaged_bytes": SIZE_BYTES // (len(here) + 1),
                "completed_at": completed_at,
                "received_at": completed_at + 1.0,
                "superseded": False,
            }
        )
    return rows


def step_row(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a step's row, summed over one or more reports of the step."""
    with_loss = [each for each in reports if each["loss"] is not None]
    return {
        "step": reports[0]["step"],
        "era": 0,
        "samples": sum(each["samples"] for each in reports),
        "loss_sum": sum(each["loss"] * each["samples"] for each in with_loss),
        "loss_samples": sum(each["samples"] for each in with_loss),
        "devices": len(reports),
        "target_batch_size": TARGET,
        "completed_at": reports[0]["completed_at"],
    }


def write_checkpoints(database: Database, recording: Recording, ends_at: float) -> None:
    """Record the newest checkpoints, one of them as withheld, and the held-out results of all checkpoints."""
    rng, every = random.Random(recording.seed), max(1, recording.steps // CHECKPOINTS)
    saved = range(every, recording.steps + 1, every)
    for number, step in enumerate(reversed(saved)):
        digest = hashlib.sha256(f"checkpoint {step}".encode()).hexdigest()
        loss, at = loss_at(step, rng), ends_at - (recording.steps - step) * STEP_S + 5.0
        if number < KEPT_CHECKPOINTS:
            withheld = "the loss on held-out text rose by 30 %" if number == 3 else ""
            record_checkpoint(
                database, step=step, size_bytes=SIZE_BYTES, manifest_sha256=digest, now=at, withheld=withheld
            )
        row = ValidationRow(
            step=step,
            era=0,
            manifest_sha256=digest,
            set_sha256="ab" * 32,
            sequence_length=128,
            samples=1024,
            predicted_tokens=19_456,
            mlm_loss=loss - 0.4,
            sop_loss=0.5,
            accuracy=max(0.02, 0.78 - 0.11 * loss),
            sop_accuracy=max(0.5, 0.99 - 0.06 * loss),
            elapsed_s=41.0,
            evaluated_at=at + 60.0,
        )
        record_validation(database, row)


class LiveRun:
    """A synthetic run that continues live, with connected devices' heartbeats and the keeper's state."""

    def __init__(self, database: Database, rng: random.Random) -> None:
        self._database, self._rng = database, rng
        with database() as session:
            self._step = session.scalar(select(func.max(Report.step))) or 0
            stays = session.scalars(select(DeviceSession).where(DeviceSession.ended_at.is_(None)))
            self._here = [_stay(row) for row in stays]

    def say(self, filled: float, eta_s: float, now: float) -> None:
        """Record heartbeats of all machines, and the keeper's progress with the batch (`filled`, 0 to 1)."""
        claims = {
            stay.id: PresenceClaim(self._step, 0, stay.samples_per_second, "training", now) for stay in self._here
        }
        touch_sessions(self._database, claims)
        write_swarm_status(
            self._database,
            step=self._step,
            samples_accumulated=min(TARGET, int(TARGET * filled)),
            target_batch_size=TARGET,
            peers=len(self._here),
            samples_per_second=sum(stay.samples_per_second for stay in self._here) * self._rng.uniform(0.97, 1.03),
            eta_s=max(0.0, eta_s),
            addresses=["/ip4/127.0.0.1/tcp/31337/p2p/QmKeeperRecorded"],
            now=now,
        )

    def complete_step(self, now: float) -> None:
        """Add one step, with a report from each connected machine."""
        self._step += 1
        reports = reports_of(self._step, now, self._here, True, self._rng)
        with self._database.begin() as session:
            enter_reports(session, reports)
            session.execute(insert(Step), [step_row(reports)])
            tell(session, Topic.PROGRESS)


def go_on(run: RunDirectory, step_s: float, until: Callable[[], bool]) -> None:
    """Fill batches and complete steps until `until()` is true."""
    with open_run(run.path) as opened:
        live, filled_s = LiveRun(opened.database, random.Random(1)), 0.0
        while not until():
            time.sleep(UPDATE_S)
            filled_s += UPDATE_S
            if filled_s >= step_s:
                live.complete_step(time.time())
                filled_s = 0.0
            live.say(filled_s / step_s, step_s - filled_s, time.time())


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a run, and continue it if `--live` is given."""
    parser = argument_parser("A long run's synthetic history.")
    parser.add_argument(
        "directory", type=Path, nargs="?", metavar="DIR", help="directory of the run (default: a temporary one)"
    )
    for name in ("members", "sessions", "steps"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Recording, name))
    parser.add_argument("--live", type=float, metavar="S", help="complete a step every S seconds until interrupted")
    options = parser.parse_args(arguments)
    recording = QUICK if options.quick else Recording(options.members, options.sessions, options.steps)
    with tempfile.TemporaryDirectory() as aside:
        began = time.perf_counter()
        run = record(options.directory or Path(aside) / "run", recording, time.time())
        took = time.perf_counter() - began
        size = sum(file.stat().st_size for file in run.path.glob("manyhands.db*"))
        figures = [Figure("written", took, "s"), Figure("steps", recording.steps, "steps")]
        report("recorded run", [*figures, Figure("the database", size / 1e6, "MB")], options.json)
        if options.live:
            with suppress(KeyboardInterrupt):
                go_on(run, options.live, lambda: False)


if __name__ == "__main__":
    main()
