"""What the swarm costs: workers that average with each other and a keeper, against as many that train alone.

    python benchmarks/trainer_swarm.py [--quick] [--json]

All train a small ALBERT on random batches, one thread each, with one optimizer step for each target batch: in the
swarm they fill it together, alone each fills its part of it. _swarm_worker.py is what each process runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from auth.keys import AuthorityKey
from benchmarks._members import admit
from benchmarks._small_run import SMALL_RUN
from benchmarks.reporting import Figure, argument_parser, report
from peer.config.run import RunConfig

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Plan:
    """What one process does."""

    kind: str  # "keeper", "swarm", "alone"
    steps: int
    workers: int  # that fill the target batch together
    credentials_dir: str = ""
    initial_peers: tuple[str, ...] = ()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure both ways, for one worker and (unless `--quick`) for two, and compare the samples per second."""
    options = argument_parser("What the swarm costs a worker.").parse_args(arguments)
    figures = []
    for workers in (1,) if options.quick else (1, 2):
        figures += _compare(workers, steps=5 if options.quick else 20)
    report("trainer in the swarm", figures, options.json)


def _compare(workers: int, steps: int) -> list[Figure]:
    alone = _run_together([Plan("alone", steps, workers)] * workers)
    with tempfile.TemporaryDirectory() as directory:
        swarm = _run_swarm(Path(directory), workers, steps)
    ours, theirs = (sum(outcome["samples_per_second"] for outcome in outcomes) for outcomes in (swarm, alone))
    averaging = max(outcome["averaging_share"] for outcome in swarm)
    name = f"{workers} worker{'s' if workers > 1 else ''}"
    return [
        Figure(f"{name}: speed in the swarm", ours, "samples/s", theirs, "each alone"),
        Figure(f"{name}: time spent in averaging", 100 * averaging, "%"),
    ]


def _run_swarm(directory: Path, workers: int, steps: int) -> list[dict[str, Any]]:
    """The outcomes of workers that train with each other and a keeper."""
    authority, run = AuthorityKey.generate(), small_config().run.name
    keeper_plan = Plan("keeper", steps, workers, admit(directory / "keeper", authority, "keeper", run))
    with ExitStack() as stack:
        keeper = stack.enter_context(_start(keeper_plan))
        assert keeper.stdout is not None
        addresses = tuple(json.loads(keeper.stdout.readline()))
        devices = [admit(directory / f"worker-{number}", authority, "trainer", run) for number in range(workers)]
        outcomes = _run_together([Plan("swarm", steps, workers, device, addresses) for device in devices])
        assert keeper.stdin is not None
        keeper.stdin.close()  # the keeper leaves when its input ends
    return outcomes


def _run_together(plans: Sequence[Plan]) -> list[dict[str, Any]]:
    """Start a process for each plan; all outcomes."""
    with ExitStack() as stack:
        processes = [stack.enter_context(_start(plan)) for plan in plans]
        return [json.loads(process.communicate()[0]) for process in processes]


def _start(plan: Plan) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks._swarm_worker", json.dumps(asdict(plan))]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603


def small_config() -> RunConfig:
    """The run that is measured."""
    return RunConfig.from_yaml(SMALL_RUN)


if __name__ == "__main__":
    main()
