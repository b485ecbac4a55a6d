"""Cost and latency of the dashboard: on the server, on the network, in the browser, and with many viewers.

    python benchmarks/coordinator/dashboard.py [--quick] [--json]

The real service serves a synthetic live run of 20 000 steps (recorded_run.py). The benchmark measures response times,
the bytes of a first visit, the time until Debian's Chromium first paints and until it shows the chart (also emulating a
slow phone), the processor time of live updates in the browser, and the service's processor time with 500 viewers. The
baselines are our targets.
"""

from __future__ import annotations

import http.client
import re
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.coordinator.recorded_run import QUICK, Recording, go_on, record
from benchmarks.coordinator.viewers import watching
from benchmarks.coordinator.visit import DESKTOP, visit, visit_slowly
from benchmarks.support.reporting import Figure, argument_parser, report
from benchmarks.support.service import served
from coordinator.context.open_run import open_run

HOST = "127.0.0.1"
STEP_S = 15.0  # interval between steps of the live run
TARGET = "target"
OTHER_PAGES = {  # page -> the element that its script draws last
    "participants": "#timeline li",
    "member?number=1": "#own-curve svg",
    "model": "#take-all[href]",
    "history": "#people li",
    "join": "#step-time:not(:empty)",
}


@dataclass(frozen=True)
class Extent:
    """The size of the recorded run, and the number or duration of each measurement."""

    recording: Recording
    requests: int
    live_s: float
    viewers: int
    watched_s: float


WHOLE = Extent(Recording(), 300, 60.0, 500, 30.0)
SMALL = Extent(QUICK, 50, 5.0, 50, 5.0)


@dataclass(frozen=True)
class Served:
    """A run with its service in a separate process."""

    port: int
    service: psutil.Process
    invite: str  # an unused invite code


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all measurements, one after another."""
    options = argument_parser("Cost and latency of the dashboard.").parse_args(arguments)
    extent = SMALL if options.quick else WHOLE
    with tempfile.TemporaryDirectory() as directory, served_run(Path(directory), extent.recording) as run:
        figures = [
            *measure_answers(run.port, extent.requests),
            *measure_visit(run, extent.live_s),
            *measure_viewers(run, extent.viewers, extent.watched_s),
        ]
    report(f"the dashboard of a run of {extent.recording.steps} steps", figures, options.json)


@contextmanager
def served_run(directory: Path, recording: Recording) -> Iterator[Served]:
    """Serve a synthetic live run from a separate process."""
    run = record(directory / "run", recording, time.time())
    with open_run(run.path) as opened:
        [invite] = opened.membership.invite("guest")
    ended = threading.Event()
    living = threading.Thread(target=go_on, args=(run, STEP_S, ended.is_set))
    with served(run, directory / "serve.log") as service:
        living.start()
        try:
            yield Served(run.settings.web_port, service, invite)
        finally:
            ended.set()
            living.join()


def measure_answers(port: int, requests: int) -> list[Figure]:
    """Measure median times of sequential requests over one connection, alternating with a no-op request."""
    paths = ("/healthz", "/api/v1/overview", "/", "/api/v1/curve?points=1000")
    line = http.client.HTTPConnection(HOST, port, timeout=60)
    for path in paths:  # the first response of each path is computed, later ones come from the cache
        ask(line, path)
    taken: dict[str, list[float]] = {path: [] for path in paths}
    for _ in range(requests):
        for path in paths:
            time.sleep(0.12)  # the service allows 600 requests per minute and address
            taken[path].append(1000 * ask(line, path)[0])
    median = {path: statistics.median(times) for path, times in taken.items()}
    nothing = (median["/healthz"], "an answer of nothing")
    return [
        Figure("the overview's JSON, p50", median["/api/v1/overview"], "ms", 30.0, TARGET),
        Figure("the overview's page, p50", median["/"], "ms", *nothing),
        Figure("the curve's 1000 points, p50", median["/api/v1/curve?points=1000"], "ms", *nothing),
    ]


def ask(line: http.client.HTTPConnection, path: str) -> tuple[float, bytes]:
    """Return the duration in seconds and the body of a response. Raises `RuntimeError` if the request fails."""
    began = time.perf_counter()
    line.request("GET", path, headers={"Accept-Encoding": "gzip"})
    answer = line.getresponse()
    content = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status}")
    return time.perf_counter() - began, content


def measure_visit(run: Served, live_s: float) -> list[Figure]:
    """Measure a first visit with Chromium, and the processor time of the open page."""
    url = f"http://{HOST}:{run.port}/"
    seen, phone = visit(url, live_s), visit_slowly(url)
    return [
        Figure("transferred without Plotly", seen.own_bytes / 1024, "KiB", 250.0, TARGET),
        Figure("transferred by Plotly, once", seen.plotly_bytes / 1024, "KiB"),
        Figure("first contentful paint, curve included", seen.first_paint_s, "s"),
        Figure("chart drawn after", seen.chart_s, "s", 1.5, TARGET),
        Figure("chart drawn after, second visit", seen.again_s, "s", 1.5, TARGET),
        Figure("live updates cost the browser", 100 * (seen.live_cores - seen.idle_cores), "% of a core", 5.0, TARGET),
        Figure("a phone on Slow 4G: largest contentful paint", phone.largest_paint_s, "s", 2.5, TARGET),
        Figure("a phone on Slow 4G: layout shifts", phone.shifted, "", 0.1, TARGET),
        Figure("a phone on Slow 4G: transferred without Plotly", phone.own_bytes / 1024, "KiB", 250.0, TARGET),
        Figure("a phone on Slow 4G: chart drawn after", phone.there_s, "s"),
        *measure_other_pages(run),
    ]


def measure_other_pages(run: Served) -> Iterator[Figure]:
    """Measure the other pages' Web Vitals on an emulated phone, and their layout shifts on a desktop too."""
    invited = {f"join#invite={run.invite}": "#invited[data-state=open]"}
    for path, ready in (OTHER_PAGES | invited).items():
        name, url = re.split("[?=]", path)[0], f"http://{HOST}:{run.port}/{path}"
        seen, larger = visit_slowly(url, ready), visit_slowly(url, ready, DESKTOP)
        yield Figure(f"a phone on Slow 4G, {name}: largest contentful paint", seen.largest_paint_s, "s", 2.5, TARGET)
        yield Figure(f"a phone on Slow 4G, {name}: layout shifts", seen.shifted, "", 0.1, TARGET)
        yield Figure(f"a desktop on Slow 4G, {name}: layout shifts", larger.shifted, "", 0.1, TARGET)


def measure_viewers(run: Served, viewers: int, watched_s: float) -> list[Figure]:
    """Measure the service's processor time with many viewers and with none."""
    alone = cores(run.service, watched_s)
    with watching(HOST, run.port, viewers) as crowd:
        began = crowd.events
        used = cores(run.service, watched_s)
        events = crowd.events - began
    return [
        Figure(f"{viewers} viewers cost the service", used, "cores", 0.5, TARGET),
        Figure("of it, what it takes without viewers", alone, "cores"),
        Figure("events that each viewer got a second", events / viewers / watched_s, "1/s"),
    ]


def cores(process: psutil.Process, seconds: float) -> float:
    """Return the average number of cores that a process uses over this many seconds."""
    began, used = time.perf_counter(), sum(process.cpu_times()[:2])
    time.sleep(seconds)
    return (sum(process.cpu_times()[:2]) - used) / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
