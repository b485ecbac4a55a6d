"""What it costs when fifty volunteers join within a minute, and all of them want the run's state of now.

    python benchmarks/stampede.py [--quick] [--json] [--joiners N] [--spread S]

A run with a published checkpoint of sahajBERT's size is served by the product's own service (`manyhands coordinator
serve --service-only`). Each joiner (_joiners.py) joins by an invite, asks for the newest checkpoint, downloads it to a
disk folder of its own, compares its digests and deletes it. Measured are how long it waits, what that costs the
service, and how long a small call takes meanwhile (_greeter.py). Baselines: one joiner alone, and nobody. Service and
joiners share this machine and no network is between them: a line of so many bytes per second may be what bounds them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from benchmarks._joiners import Joiner, Visit, make_joiners, most_at_once
from benchmarks.control_plane import ROOT, START_TIMEOUT_S, crowd_settings, quantile, served
from benchmarks.reporting import Figure, argument_parser, report
from coordinator.checkpoints.manifest import StoredCheckpoint
from coordinator.checkpoints.writing import take_snapshot, write_checkpoint
from coordinator.context.open_run import OpenRun, open_run
from coordinator.ledger.presence import record_checkpoint, write_swarm_status
from coordinator.run.directory import RunDirectory
from peer.config.run import BUILTIN_RUNS, RunConfig
from peer.data.tokenization.special_tokens import SpecialIds
from peer.models.build import build_model, checkpoint_config
from peer.models.optimizers import build_optimizer, parameter_groups

STEP = 1000  # of the checkpoint, and the swarm's
SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
LOOK_EVERY_S = 0.05
MAX_SPREAD_S = 3600.0
MIB = 2**20
ALONE, NOBODY = "one alone", "nobody joins"


@dataclass(frozen=True)
class Extent:
    """How much is measured."""

    run_file: str
    joiners: int
    spread_s: float  # they come at random moments within so long
    alone: int  # joiners who come one after another, for the baseline; one more comes before, who finds all cold
    idle_s: float  # nobody joins


WHOLE = Extent("albert-large.yaml", joiners=50, spread_s=60.0, alone=5, idle_s=10.0)
SMALL = Extent("demo.yaml", joiners=6, spread_s=2.0, alone=2, idle_s=1.0)


@dataclass(frozen=True)
class Outcome:
    """What came of joiners who came together."""

    visits: list[Visit]
    began_at: float  # Unix seconds
    seconds: float  # until the last one had all
    service_s: float  # processor time
    joiners_s: float  # theirs, all in this process
    grown_bytes: int  # the service's memory at its highest, above what it was before

    @property
    def size_bytes(self) -> int:
        """All that was served."""
        return sum(visit.size_bytes for visit in self.visits)


def main(arguments: Sequence[str] | None = None) -> None:
    """Let one come at a time, then all."""
    options = _options(arguments)
    whole = SMALL if options.quick else WHOLE
    joiners = whole.joiners if options.joiners is None else options.joiners
    spread_s = whole.spread_s if options.spread is None else options.spread
    extent = Extent(whole.run_file, joiners, spread_s, whole.alone, whole.idle_s)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), extent)
    when = f"within {spread_s:g} s" if spread_s else "at once"
    report(f"{joiners} volunteers join {when}", figures, options.json)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argument_parser("What it costs when fifty volunteers join within a minute.")
    parser.add_argument("--joiners", type=int, help="how many")
    parser.add_argument("--spread", type=float, metavar="S", help="seconds within which they come; 0: all at once")
    options = parser.parse_args(arguments)
    if options.joiners is not None and options.joiners < 1:
        parser.error(f"--joiners ({options.joiners}) must be at least 1")
    if options.spread is not None and not 0 <= options.spread <= MAX_SPREAD_S:
        parser.error(f"--spread ({options.spread}) must lie between 0 and {MAX_SPREAD_S:g}")
    return options


def measure(folder: Path, extent: Extent) -> list[Figure]:
    """The figures of a new run in this folder."""
    with new_run(folder / "run", extent.run_file) as run:
        stored = publish_checkpoint(run)
        joiners = make_joiners(run, 1 + extent.alone + extent.joiners, folder)
        first, *others = joiners[: 1 + extent.alone]
        moments = random.Random(7)
        delays_s = [moments.uniform(0.0, extent.spread_s) for _ in range(extent.joiners)]
        with served(run, folder, one_by_one=False) as service, greeting(run, folder) as greetings:
            asyncio.run(let_come([first], [0.0], service, stored))
            idle_from = time.time()
            time.sleep(extent.idle_s)
            idle_until = time.time()
            alone = [asyncio.run(let_come([each], [0.0], service, stored)) for each in others]
            crowd = asyncio.run(let_come(joiners[1 + extent.alone :], delays_s, service, stored))
        idle_s = calls_within(greetings, idle_from, idle_until)
        busy_s = calls_within(greetings, crowd.began_at, crowd.began_at + crowd.seconds)
    return figures_of(crowd, alone, busy_s, idle_s)


@contextmanager
def new_run(path: Path, run_file: str) -> Iterator[OpenRun]:
    """A run without a tokenizer, which nobody trains, served to a crowd."""
    RunDirectory.create(path, RunConfig.from_yaml(BUILTIN_RUNS / run_file), crowd_settings())
    with open_run(path) as run:
        yield run


def publish_checkpoint(run: OpenRun) -> StoredCheckpoint:
    """As the keeper does: the run's whole state, of random values, after the step that the swarm has just taken."""
    config, now = run.directory.config, time.time()
    model = build_model(config, config.tokenizer.vocab_size, SPECIAL)
    optimizer = build_optimizer(config, parameter_groups(model, config))
    for state in optimizer.state.values():
        for statistic in state.values():
            if isinstance(statistic, torch.Tensor):
                statistic.uniform_()
    stored = write_checkpoint(
        run.directory.checkpoints_dir,
        take_snapshot(STEP, model, optimizer),
        run=config.run.name,
        era=0,
        texts={"config.json": json.dumps(checkpoint_config(model)), "run.yaml": config.to_yaml()},
        tokenizer_dir=run.directory.tokenizer_dir,
        probe={},
        probe_loss=None,
        created_at=now,
    )
    record_checkpoint(
        run.database,
        step=STEP,
        size_bytes=stored.size_bytes,
        manifest_sha256=stored.manifest_sha256,
        now=now,
    )
    write_swarm_status(
        run.database,
        step=STEP,
        samples_accumulated=0,
        target_batch_size=config.averaging.target_batch_size,
        peers=1,
        samples_per_second=0.0,
        eta_s=None,
        addresses=(),
        now=now,
    )
    return stored


@contextmanager
def greeting(run: OpenRun, folder: Path) -> Iterator[Path]:
    """The file that grows by a line for each small call, until the end of the block."""
    path, link = folder / "greetings", str(run.directory.join_link)
    with path.open("w") as calls, (folder / "greeter.log").open("w") as log:
        process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "benchmarks._greeter", link], cwd=ROOT, stdout=calls, stderr=log
        )
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not path.stat().st_size:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the coordinator is not greeted: {(folder / 'greeter.log').read_text()}")
                time.sleep(0.1)
            yield path
        finally:
            process.terminate()
            process.wait()


def calls_within(greetings: Path, began_at: float, ended_at: float) -> list[float]:
    """How many seconds each small call took that was made in this time."""
    lines = [line.split() for line in greetings.read_text().splitlines()]
    calls = [(float(line[0]), float(line[1])) for line in lines if len(line) == 2]  # the last one may be cut off
    return [seconds for asked_at, seconds in calls if began_at <= asked_at < ended_at]


async def let_come(
    joiners: Sequence[Joiner], delays_s: Sequence[float], service: psutil.Process, stored: StoredCheckpoint
) -> Outcome:
    """Let each come after its delay, and wait for all; what fails for one ends the benchmark."""
    this = psutil.Process()
    peak = asyncio.create_task(_peak_bytes(service, ended := asyncio.Event()))
    before_bytes, service_s, joiners_s = int(service.memory_info().rss), _processor_time(service), _processor_time(this)
    began_at, began = time.time(), time.perf_counter()

    async def come(joiner: Joiner, delay_s: float) -> Visit:
        await asyncio.sleep(delay_s)
        return await joiner.join(stored.size_bytes)

    visits = await asyncio.gather(*map(come, joiners, delays_s))
    seconds = time.perf_counter() - began
    ended.set()
    return Outcome(
        visits=visits,
        began_at=began_at,
        seconds=seconds,
        service_s=_processor_time(service) - service_s,
        joiners_s=_processor_time(this) - joiners_s,
        grown_bytes=max(0, await peak - before_bytes),
    )


async def _peak_bytes(process: psutil.Process, ended: asyncio.Event) -> int:
    """The largest resident memory that a look found."""
    most = 0
    while not ended.is_set():
        most = max(most, int(process.memory_info().rss))
        await asyncio.sleep(LOOK_EVERY_S)
    return most


def _processor_time(process: psutil.Process) -> float:
    return sum(process.cpu_times()[:2])


def figures_of(
    crowd: Outcome, alone: Sequence[Outcome], busy_s: Sequence[float], idle_s: Sequence[float]
) -> list[Figure]:
    """The crowd's figures beside the medians of those who came alone."""

    def row(name: str, unit: str, read: Callable[[Outcome], float]) -> Figure:
        return Figure(name, read(crowd), unit, statistics.median(map(read, alone)), ALONE)

    def call(percent: int) -> Figure:
        idle_ms = 1000 * quantile(list(idle_s), percent)
        return Figure(f"a small call, p{percent}", 1000 * quantile(list(busy_s), percent), "ms", idle_ms, NOBODY)

    return [
        Figure("the checkpoint's state", crowd.visits[0].size_bytes / 1e6, "MB"),
        row("a joiner's download, p50", "s", lambda each: quantile([one.download_s for one in each.visits], 50)),
        row("a joiner's download, p95", "s", lambda each: quantile([one.download_s for one in each.visits], 95)),
        row("before it: joined, offer known, p95", "s", lambda each: quantile(_waits_s(each), 95)),
        Figure("downloads at once, at most", most_at_once(crowd.visits), ""),
        Figure("attempts that broke off", sum(visit.broken_off for visit in crowd.visits), ""),
        row("served", "MB/s", lambda each: each.size_bytes / each.seconds / 1e6),
        row("processor time of the service", "cores", lambda each: each.service_s / each.seconds),
        row("the same for each GB", "s", lambda each: each.service_s / each.size_bytes * 1e9),
        row("processor time of the joiners, together", "cores", lambda each: each.joiners_s / each.seconds),
        Figure("the service's memory, peak growth", crowd.grown_bytes / MIB, "MiB"),
        call(50),
        call(95),
    ]


def _waits_s(outcome: Outcome) -> list[float]:
    return [visit.offered_at - visit.came_at for visit in outcome.visits]


if __name__ == "__main__":
    main()
