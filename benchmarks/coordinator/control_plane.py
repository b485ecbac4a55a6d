"""Load test of one service: latency of reports, processor time and memory per session, delay of dashboard events.

    python -m benchmarks.coordinator.control_plane [--quick] [--json] [--sessions N ...] [--every S] [--spread S]
                                                   [--steps N] [--dashboards N]

The product's own service (`manyhands coordinator serve --service-only`, SQLite) and a crowd of simulated volunteers
(crowd.py) share this machine. As in a real run, each device reports a step every 30 seconds and sends a heartbeat every
3 seconds. Reports arrive evenly, or within `--spread` seconds of the step's end. At the end the ledger must contain
each acknowledged report exactly once.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil

from benchmarks.coordinator.crowd import (
    SAMPLES,
    Plan,
    Tally,
    Volunteer,
    Watched,
    call_again_and_again,
    keep,
    look_at_dashboard,
    look_for_ages,
    open_all,
    prepare,
)
from benchmarks.support.reporting import Figure, argument_parser, report
from benchmarks.support.service import served
from benchmarks.support.small_run import SMALL_RUN
from coordinator.context.open_run import OpenRun, create_run, make_settings, open_run
from coordinator.run.ports import free_ports
from coordinator.run.settings import Settings
from peer.config.run import RunConfig

HOST = "127.0.0.1"
ANSWERS_TIMEOUT_S = 60.0
MAX_SESSIONS = 20_000


@dataclass(frozen=True)
class Outcome:
    """Measurements at one number of sessions."""

    sessions: int  # number of accepted sessions
    opened_per_s: float
    tally: Tally
    watched: Watched
    seconds: float  # duration of the measurement
    cores: float  # average number of cores that the service used
    bytes_per_session: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the service with each number of sessions."""
    options = _options(arguments)
    _allow_many_files()
    plan = Plan(options.every, options.every if options.spread is None else options.spread, options.steps)
    figures = []
    for count in options.sessions:
        figures += figures_of(count, measure(count, plan, options.dashboards))
    report("the control plane", figures, options.json)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argument_parser("Load test of one service.")
    parser.add_argument("--sessions", type=int, nargs="+", help="numbers of volunteers, measured one after another")
    parser.add_argument("--every", type=float, help="seconds between two steps")
    parser.add_argument("--spread", type=float, help="seconds within which a step's reports arrive; default: evenly")
    parser.add_argument("--steps", type=int, help="number of steps")
    parser.add_argument("--dashboards", type=int, help="number of open dashboard pages")
    options = parser.parse_args(arguments)
    quick = {"sessions": [40], "every": 1.0, "steps": 4, "dashboards": 4}
    full = {"sessions": [100, 1000, 5000], "every": 30.0, "steps": 3, "dashboards": 20}
    for name, value in (quick if options.quick else full).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def measure(count: int, plan: Plan, dashboards: int) -> Outcome:
    """Serve a new run to `count` volunteers. Raises `RuntimeError` if ledger and acknowledgements differ."""
    with tempfile.TemporaryDirectory() as folder, new_run(Path(folder)) as run:
        volunteers = prepare(run, count)
        with served(run.directory, Path(folder) / "service.log") as service:
            outcome = asyncio.run(_play(run, service, volunteers, plan, dashboards))
        check_ledger(run, outcome.tally)
    return outcome


def check_ledger(run: OpenRun, tally: Tally) -> None:
    """Raise `RuntimeError` unless the ledger counts each acknowledged report exactly once."""
    counted = sum(row.samples for row in run.ledger.steps()) / SAMPLES
    acknowledged = len(tally.answers_s) - tally.refused
    if not acknowledged <= counted <= tally.sent:
        raise RuntimeError(f"{acknowledged} of {tally.sent} reports were accepted, and {counted:g} are counted")


def crowd_settings() -> Settings:
    """Return settings with limits that admit all simulated volunteers from one address."""
    control_port, web_port, swarm_port = free_ports(HOST, 3)
    return make_settings(
        public_host=HOST,
        bind_host=HOST,
        control_port=control_port,
        web_port=web_port,
        swarm_port=swarm_port,
        max_sessions=MAX_SESSIONS,
        calls_per_address=MAX_SESSIONS,
        calls_per_address_per_minute=1_000_000,
    )


@contextmanager
def new_run(folder: Path) -> Iterator[OpenRun]:
    """Create a small run with `crowd_settings`, open it and yield it."""
    config = RunConfig.from_yaml(SMALL_RUN)
    path = create_run(folder / "run", config, crowd_settings()).path
    with open_run(path) as run:
        yield run


async def _play(
    run: OpenRun, service: psutil.Process, volunteers: Sequence[Volunteer], plan: Plan, dashboards: int
) -> Outcome:
    settings, tally, watched = run.directory.settings, Tally(), Watched()
    certificate = run.directory.tls_cert_path.read_bytes()
    empty_bytes, began = int(service.memory_info().rss), time.perf_counter()
    present = await open_all(volunteers, f"{HOST}:{settings.control_port}", certificate)
    opened_per_s = len(present) / (time.perf_counter() - began)
    gc.freeze()  # garbage collection in the process of all volunteers must not add to the measured times
    gc.disable()
    readers = [asyncio.create_task(volunteer.read(tally)) for volunteer in present]
    began, count, spent_s = time.perf_counter(), len(volunteers), _processor_time(service)
    talking = [asyncio.create_task(volunteer.say_it_is_here(count, began)) for volunteer in present]
    talking += [
        asyncio.create_task(look_at_dashboard(HOST, settings.web_port, number, watched)) for number in range(dashboards)
    ]
    talking.append(asyncio.create_task(keep(run, plan.every_s, began, count)))
    talking.append(asyncio.create_task(call_again_and_again(run, watched)))
    talking.append(asyncio.create_task(look_for_ages(run, watched)))
    await asyncio.gather(*(volunteer.report(plan, count, began, tally) for volunteer in present))
    await _answered(tally)
    seconds = time.perf_counter() - began
    outcome = Outcome(
        sessions=len(present) - tally.lost,
        opened_per_s=opened_per_s,
        tally=tally,
        watched=watched,
        seconds=seconds,
        cores=(_processor_time(service) - spent_s) / seconds,
        bytes_per_session=(int(service.memory_info().rss) - empty_bytes) / max(1, len(present)),
    )
    await _hang_up(talking + readers, volunteers)
    gc.enable()
    gc.unfreeze()
    return outcome


async def _answered(tally: Tally) -> None:
    """Wait for the remaining acknowledgements, up to a timeout."""
    deadline = time.monotonic() + ANSWERS_TIMEOUT_S
    while len(tally.answers_s) < tally.sent and time.monotonic() < deadline:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.1)


async def _hang_up(tasks: Sequence[asyncio.Task[None]], volunteers: Sequence[Volunteer]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    with suppress(grpc.RpcError):
        await asyncio.gather(*(volunteer.close() for volunteer in volunteers))


def figures_of(count: int, outcome: Outcome) -> list[Figure]:
    """Return the figures of one measurement for the report."""

    def row(name: str, unit: str, read: Callable[[Outcome], float]) -> Figure:
        return Figure(f"{count} sessions: {name}", read(outcome), unit)

    return [
        row("accepted and kept", "sessions", lambda each: each.sessions),
        row("opened", "per s", lambda each: each.opened_per_s),
        row("reports acknowledged", "per s", lambda each: len(each.tally.answers_s) / each.seconds),
        row("reports without an answer", "", lambda each: each.tally.sent - len(each.tally.answers_s)),
        row("a report's answer, p50", "ms", lambda each: 1000 * quantile(each.tally.answers_s, 50)),
        row("a report's answer, p95", "ms", lambda each: 1000 * quantile(each.tally.answers_s, 95)),
        row("a report's answer, p99", "ms", lambda each: 1000 * quantile(each.tally.answers_s, 99)),
        row("a small call, p50", "ms", lambda each: 1000 * quantile(each.watched.calls_s, 50)),
        row("a small call, p95", "ms", lambda each: 1000 * quantile(each.watched.calls_s, 95)),
        row("age of a device's last word, p95", "s", lambda each: quantile(each.watched.ages_s, 95)),
        row("processor time of the service", "cores", lambda each: each.cores),
        row("its memory", "KiB per session", lambda each: each.bytes_per_session / 1024),
        row("events to dashboards", "per s", lambda each: each.watched.events / each.seconds),
        row("between a dashboard's events, p95", "s", lambda each: quantile(each.watched.gaps_s, 95)),
        row("an event", "KiB", lambda each: each.watched.event_bytes / max(1, each.watched.events) / 1024),
    ]


def quantile(values: Sequence[float], percent: int) -> float:
    """Return a quantile by linear interpolation, or NaN without values."""
    if len(values) < 2:
        return values[0] if values else float("nan")
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def _processor_time(process: psutil.Process) -> float:
    return sum(process.cpu_times()[:2])


def _allow_many_files() -> None:
    """Raise the limit on open files, because each simulated volunteer has a connection."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    main()
