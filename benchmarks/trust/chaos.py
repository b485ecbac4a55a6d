"""Chaos test of a real run: inject faults one after another, and measure the cost of each.

    python -m benchmarks.trust.chaos [--minutes 30 | --times N] [--seed 0] [--only WORD ...] [--keep DIR] [--quick]
                                     [--json]

The run (`manyhands coordinator init`, `serve`) has its own PostgreSQL, three volunteers (`manyhands join`) and a tiny
model. A command that exits is restarted, as by a service manager. The seed determines the order of faults; each lasts
some seconds, and the next follows when the run has taken a step. At the end all faults are removed, the run takes more
steps and is stopped gracefully. The benchmark's own SQL then looks for samples that were lost without a report or
counted twice. The exit code is 1 if there are any, if a device was suspected (all are honest), or if `serve` exited
although no fault had killed it.

A row's lost samples are those that volunteers reported as lost, plus an estimate for killed agents: the samples
computed since the last step, at the agent's rate.

Disk and network faults need root (hosts in network namespaces, network.py), and setting the coordinator's clock back
needs a C compiler (offset_clock.py). The p2p daemon is statically linked, so its clock does not change.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import SQLAlchemyError

from benchmarks.support.network import Host, HostPlan, Network
from benchmarks.support.reporting import aligned, argument_parser, exit_at_sigterm
from benchmarks.trust.chaos_audit import Check, Losses, audit, losses, named
from benchmarks.trust.chaos_faults import Fault, Heal, faults
from benchmarks.trust.chaos_site import NAMES, START_TIMEOUT_S, TARGET_BATCH_SIZE, ChaosSite
from tests.support.postgres import PostgresServer, binary, new_server
from tests.support.small_disks import small_disk
from tests.support.zygote import forking_python

HELD_S = (3.0, 15.0)  # minimum and maximum duration of a fault
NEXT_STEP_S = 600.0  # a run without a step for this long counts as stuck
LAST_STEPS = 5  # number of steps to take after all faults
DISK_BYTES = 96 * 2**20
QUICK_MINUTES = 0.5
MOST_LOG_BYTES_PER_HOUR = 2**20
NAMED_SHOWN = 20
MBIT_PER_SECOND = 200.0  # rate of each host's link
TRACES = ("*.log", "*.jsonl", "outbox.sqlite*")  # files to keep for examination


@dataclass
class Row:
    """The cost of one kind of fault so far."""

    fault: str
    times: int = 0
    steps_undone: int = 0
    samples_lost: float = 0.0
    longest_wait_s: float = 0.0  # longest time without a step
    named: int = 0  # number of suspicions, although all devices are honest


@dataclass
class Outcome:
    """The outcome of a whole run."""

    rows: list[Row]
    calm: Row  # figures before any fault
    checks: list[Check] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    log_bytes_per_hour: Mapping[str, float] = field(default_factory=dict)
    starts: Mapping[str, int] = field(default_factory=dict)
    steps: int = 0
    minutes: float = 0.0

    @property
    def holds(self) -> bool:
        """Return whether all checks pass and no device was suspected."""
        return all(check.holds for check in self.checks) and not self.names


def main(arguments: Sequence[str] | None = None) -> None:
    """Inject faults into a run, and print their cost."""
    options = _options(arguments)
    chosen = {
        name: fault
        for name, fault in faults().items()
        if not options.only or any(word in name for word in options.only)
    }
    if not chosen:
        sys.exit(f"--only {' '.join(options.only)}: no fault has such a name; there are: {', '.join(faults())}")
    with forking_python(), tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        Path(folder).chmod(0o755)
        outcome = measure(Path(folder), chosen, options)
    print(as_json_text(outcome) if options.json else as_table(outcome))
    if not outcome.holds:
        sys.exit(1)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argument_parser("The cost of each kind of fault to a run.")
    parser.add_argument("--minutes", type=float, default=30.0, help="minutes of fault injection (default: 30)")
    parser.add_argument("--times", type=int, help="inject each fault this many times, whatever the duration")
    parser.add_argument("--seed", type=int, default=0, help="seed of the faults' order and victims (default: 0)")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="only faults with one of these words in their name")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="copy all logs, outboxes and the database there")
    options = parser.parse_args(arguments)
    if options.quick:
        options.minutes = min(options.minutes, QUICK_MINUTES)
    if not options.minutes > 0:
        parser.error(f"--minutes ({options.minutes}) must be above 0")
    if options.times is not None and options.times < 1:
        parser.error(f"--times ({options.times}) must be at least 1")
    return options


def measure(folder: Path, chosen: Mapping[str, Fault], options: argparse.Namespace) -> Outcome:
    """Create a run in this folder and inject faults; copy the run's logs before its disks and database are removed."""
    with ExitStack() as stack:
        network, hosts = _make_hosts(chosen, stack)
        server = stack.enter_context(new_server())
        site = ChaosSite(folder, server, network, hosts)
        _make_small_disks(site, chosen, stack)
        if options.keep is not None:
            stack.callback(_keep, folder, server, options.keep)
        stack.callback(site.close)
        engine = create_engine(server.url(), pool_pre_ping=True, connect_args={"connect_timeout": 5})
        stack.callback(engine.dispose)
        site.make_small_run()
        site.serve()
        for name in NAMES:
            site.join(name)
        _require(site.wait_until(lambda: len(site.step_times()) >= 2, START_TIMEOUT_S), "the first two steps", site)
        outcome = Outcome([Row(name) for name in chosen], Row("nothing"))
        began = time.monotonic()
        Chaos(site, engine, chosen, random.Random(options.seed), outcome).go_on(options.minutes, options.times)
        outcome.minutes = (time.monotonic() - began) / 60
        _finish(site, engine, outcome)
        return outcome


def _make_hosts(chosen: Mapping[str, Fault], stack: ExitStack) -> tuple[Network | None, Mapping[str, Host]]:
    """Create hosts for the coordinator and each volunteer if links are to be cut; enter the coordinator's host."""
    if not any(name.startswith("cut line") for name in chosen):
        return None, {}
    network = Network([HostPlan(name, MBIT_PER_SECOND) for name in ("serve", *NAMES)])
    hosts = stack.enter_context(network)
    stack.enter_context(hosts["serve"].entered())
    return network, hosts


def _make_small_disks(site: ChaosSite, chosen: Mapping[str, Fault], stack: ExitStack) -> None:
    """Create a disk for the coordinator and each volunteer if disks are to be filled."""
    if any(name.startswith("full disk") for name in chosen):
        for path in (site.coordinator_dir, *map(site.state_dir, NAMES)):
            path.mkdir(exist_ok=True)
            stack.enter_context(small_disk(path, DISK_BYTES))


@dataclass
class Chaos:
    """A chaos test that injects one fault after another and records the cost of each."""

    site: ChaosSite
    engine: Engine
    chosen: Mapping[str, Fault]
    chance: random.Random
    outcome: Outcome
    before: Losses | None = None

    def go_on(self, minutes: float, times: int | None) -> None:
        """Inject faults for this many minutes, or each this many times; inject every kind before repeating one."""
        deadline = time.monotonic() + 60 * minutes
        self.before = self._losses()
        self._book(self.outcome.calm, time.monotonic(), 0.0)
        rows = {row.fault: row for row in self.outcome.rows}
        for number, name in enumerate(self._drawn()):
            if time.monotonic() >= deadline if times is None else number >= times * len(self.chosen):
                return
            self._inject(rows[name], self.chosen[name])

    def _drawn(self) -> Iterator[str]:
        while True:
            yield from self.chance.sample(list(self.chosen), len(self.chosen))

    def _inject(self, row: Row, fault: Fault) -> None:
        heals: list[Heal] = []

        def injected() -> bool:
            heal = fault(self.site, self.chance)
            heals.extend([heal] if heal is not None else [])
            return bool(heals)

        _require(self.site.wait_until(injected, START_TIMEOUT_S), f"the victim of `{row.fault}`", self.site)
        began, starts = time.monotonic(), self.site.starts()
        newest = {name: self.site.newest_of(name) for name in NAMES}
        self.site.run_for(self.chance.uniform(*HELD_S))
        for heal in heals:
            heal()
        healed = time.monotonic()
        killed = set(NAMES) & set(self.site.ended(starts))
        forgotten = sum((began - told.at) * told.samples_per_second for name in killed if (told := newest[name]))
        self.site.wait_until(lambda: any(at > healed for at in self.site.step_times()), NEXT_STEP_S)
        row.times += 1
        self._book(row, began, forgotten)

    def _book(self, row: Row, began: float, forgotten: float) -> None:
        after, before = self._losses(), self.before
        if before is None:
            return
        row.steps_undone += after.steps_undone - before.steps_undone
        row.samples_lost += after.samples - before.samples + forgotten
        row.named += after.suspicions - before.suspicions
        row.longest_wait_s = max(row.longest_wait_s, longest_wait(self.site.step_times(), began, time.monotonic()))
        self.before = after

    def _losses(self) -> Losses:
        found: list[Losses] = []

        def asked() -> bool:
            try:
                found.append(losses(self.engine))
            except SQLAlchemyError:  # the database is still recovering
                return False
            return True

        _require(self.site.wait_until(asked, START_TIMEOUT_S), "an answer of the database", self.site)
        return found[0]


def longest_wait(times: Sequence[float], began: float, ended: float) -> float:
    """Return the longest time without a step in a period, counted from the last step before the period."""
    before = max((at for at in times if at <= began), default=began)
    moments = [before, *sorted(at for at in times if began < at <= ended), ended]
    return max(later - earlier for earlier, later in pairwise(moments))


def _finish(site: ChaosSite, engine: Engine, outcome: Outcome) -> None:
    """Let the run recover, stop it gracefully, and run all checks."""
    wanted = len(site.step_times()) + LAST_STEPS
    goes_on = site.wait_until(lambda: len(site.step_times()) >= wanted, NEXT_STEP_S)
    last_of_all = max(told.step for told in site.told)
    all_work = site.wait_until(
        lambda: all((told := site.newest_of(name)) and told.step > last_of_all for name in NAMES), NEXT_STEP_S
    )
    outcome.log_bytes_per_hour = site.log_bytes_per_hour()
    outcome.starts = site.starts()
    codes = site.stop_in_order()
    outcome.steps = len(site.step_times())
    loud = sorted(name for name, rate in outcome.log_bytes_per_hour.items() if rate > MOST_LOG_BYTES_PER_HOUR)
    outcome.checks = [
        Check(f"the run takes {LAST_STEPS} more steps after all faults", goes_on, right=True),
        Check("each volunteer takes part in them", all_work, right=True),
        Check("exit codes of `serve` where no fault had killed it", site.kept["serve"].own_ends, []),
        Check("exit codes after SIGTERM", json.dumps(codes), json.dumps(dict.fromkeys(codes, 0))),
        *audit(engine, site.told, site.device_ids()),
        Check("logs that grow by more than 1 MiB an hour", ", ".join(loud), ""),
    ]
    outcome.names = named(engine)


def _require(came: bool, what: str, site: ChaosSite) -> None:
    if not came:
        ends = [
            f"--- {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in sorted(site.base.glob("*.log"))
        ]
        raise RuntimeError("\n".join([f"timed out waiting for {what}", *ends]))


def _keep(folder: Path, server: PostgresServer, target: Path) -> None:
    """Copy the run's logs, event logs and outboxes, and the database as SQL."""
    for path in [found for kind in TRACES for found in folder.rglob(kind)]:
        to = target / path.relative_to(folder)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, to)
    address = server.url().replace("+psycopg", "")
    subprocess.run([binary("pg_dump"), "--inserts", f"--file={target / 'database.sql'}", address], check=False)  # noqa: S603


def as_table(outcome: Outcome) -> str:
    """Return a table of the faults, followed by the checks."""
    head = ("fault", "times", "steps undone", "samples lost", "longest wait for a step", "devices named")
    table = aligned([head, *map(_row, [*outcome.rows, outcome.calm])])
    total = sum(row.times for row in outcome.rows)
    title = f"{total} faults in {outcome.minutes:.0f} minutes, {outcome.steps} steps of {TARGET_BATCH_SIZE} samples"
    checks = [f"{'ok   ' if check.holds else 'WRONG'}  {check.question}: {check.found}" for check in outcome.checks]
    logs = [f"{name}: {rate / 1000:.0f} kB/h" for name, rate in outcome.log_bytes_per_hour.items()]
    starts = [f"{name}: {count}" for name, count in outcome.starts.items()]
    names = [f"{len(outcome.names)} suspicions:", *outcome.names[:NAMED_SHOWN]] if outcome.names else []
    after = ["", *checks, f"logs: {', '.join(logs)}", f"starts of commands: {', '.join(starts)}", *names]
    return "\n".join([title, *table, *after])


def _row(row: Row) -> tuple[str, ...]:
    wait = f"{row.longest_wait_s:.1f} s" if row.times or row.longest_wait_s else ""
    return row.fault, str(row.times), str(row.steps_undone), f"{row.samples_lost:.0f}", wait, str(row.named)


def as_json_text(outcome: Outcome) -> str:
    """Return the outcome as one JSON object."""
    machine = {"platform": platform.platform(), "python": platform.python_version()}
    checks = [asdict(check) | {"holds": check.holds} for check in outcome.checks]
    return json.dumps({"benchmark": "chaos", "machine": machine, **asdict(outcome), "checks": checks}, indent=2)


if __name__ == "__main__":
    exit_at_sigterm()
    main()
