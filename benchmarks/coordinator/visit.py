"""A visit to the dashboard with a real browser: paint times, bytes loaded, and processor time of the open page."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil
from playwright.sync_api import Page, sync_playwright

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
PATIENCE_MS = 120_000
SETTLING_S = 3.0
CHART = "#chart[data-steps]"
# Records the time, in milliseconds since the navigation began, at which an element exists.
NOTE_ELEMENT = """new MutationObserver((_, observer) => {
  if (!document.querySelector("%s")) return;
  window.thereAt = performance.now();
  observer.disconnect();
}).observe(document, { subtree: true, childList: true, attributes: true });"""
# Records the largest contentful paint so far and the sum of all layout shifts (Web Vitals).
NOTE_VITALS = """window.largestPaintAt = 0;
window.shifted = 0;
const note = (type, take) =>
  new PerformanceObserver((list) => list.getEntries().forEach(take)).observe({ type, buffered: true });
note("largest-contentful-paint", (entry) => { window.largestPaintAt = entry.startTime; });
note("layout-shift", (entry) => { if (!entry.hadRecentInput) window.shifted += entry.value; });"""
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
DESKTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}}
# Lighthouse's phone: Slow 4G, and a processor slowed down four times.
SLOW_4G = {"offline": False, "latency": 150, "downloadThroughput": 1.6e6 / 8, "uploadThroughput": 750e3 / 8}
SLOWER = 4
FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


class _Wire:
    """A record of the bytes, headers included, of each response that a page loads."""

    def __init__(self, page: Page) -> None:
        self.urls: dict[str, str] = {}
        self.sizes: dict[str, float] = {}
        self.session = page.context.new_cdp_session(page)
        self.session.on("Network.responseReceived", self._name)
        self.session.on("Network.dataReceived", self._add)
        self.session.send("Network.enable")

    def _name(self, event: dict[str, Any]) -> None:
        self.urls[event["requestId"]] = event["response"]["url"]
        self.sizes[event["requestId"]] = event["response"]["encodedDataLength"]

    def _add(self, event: dict[str, Any]) -> None:
        size = event.get("encodedDataLength") or 0.0
        self.sizes[event["requestId"]] = self.sizes.get(event["requestId"], 0.0) + size

    def total(self, which: Callable[[str], bool]) -> float:
        """Return the total bytes of the responses with an address that satisfies `which`."""
        return sum(size for request, size in self.sizes.items() if which(self.urls.get(request, "")))


@dataclass(frozen=True)
class Visit:
    """Measurements of a visit: times, bytes on the wire, and shares of a core."""

    own_bytes: float
    plotly_bytes: float
    first_paint_s: float
    chart_s: float
    again_s: float  # time until the chart is drawn, with a warm browser cache
    idle_cores: float
    live_cores: float


def visit(url: str, live_s: float) -> Visit:
    """Open the page twice in a new browser, then leave it open for `live_s` seconds."""
    with _new_page(DESKTOP) as page:
        page.goto("about:blank")
        time.sleep(SETTLING_S)
        idle_cores = _browser_cores(live_s)
        wire = _Wire(page)
        chart_s = _open(page, url, CHART)
        first_paint_s = page.evaluate(FIRST_PAINT) / 1000
        plotly_bytes = wire.total(lambda address: "plotly" in address)
        own_bytes = wire.total(lambda address: "plotly" not in address)
        again_s = _open(page, url, CHART)
        time.sleep(SETTLING_S)
        live_cores = _browser_cores(live_s)
    return Visit(own_bytes, plotly_bytes, first_paint_s, chart_s, again_s, idle_cores, live_cores)


@dataclass(frozen=True)
class SlowVisit:
    """A first visit over a slow connection, with a slow processor."""

    largest_paint_s: float
    there_s: float  # time until the awaited element exists
    shifted: float  # sum of all layout shifts
    own_bytes: float  # bytes loaded, without Plotly


def visit_slowly(url: str, ready: str = CHART, screen: dict[str, Any] = PHONE) -> SlowVisit:
    """Open a page in a new browser that emulates a phone; wait for an element, then a short time longer."""
    with _new_page(screen) as page:
        page.add_init_script(NOTE_VITALS)
        wire = _Wire(page)
        wire.session.send("Network.emulateNetworkConditions", SLOW_4G)
        wire.session.send("Emulation.setCPUThrottlingRate", {"rate": SLOWER})
        there_s = _open(page, url, ready)
        time.sleep(SETTLING_S)
        largest_paint_s = page.evaluate("window.largestPaintAt") / 1000
        shifted = float(page.evaluate("window.shifted"))
    return SlowVisit(largest_paint_s, there_s, shifted, wire.total(lambda address: "plotly" not in address))


@contextmanager
def _new_page(screen: Mapping[str, Any]) -> Iterator[Page]:
    """Yield a page of a new browser, which is closed when the context exits."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=PATIENCE_MS)
        context = browser.new_context(**screen)
        context.set_default_timeout(PATIENCE_MS)
        yield context.new_page()
        browser.close()


def _open(page: Page, url: str, ready: str) -> float:
    """Open an address; return the number of seconds until the element exists."""
    page.add_init_script(NOTE_ELEMENT % ready)
    page.goto(url)
    page.wait_for_selector(ready, state="attached")
    return float(page.evaluate("window.thereAt")) / 1000


def _browser_cores(seconds: float) -> float:
    """Return the average number of cores that the browser's processes use over this many seconds."""
    began, used = time.perf_counter(), _browser_seconds()
    time.sleep(seconds)
    return (_browser_seconds() - used) / (time.perf_counter() - began)


def _browser_seconds() -> float:
    children = psutil.Process().children(recursive=True)
    return sum(sum(child.cpu_times()[:2]) for child in children if "chrom" in child.name())
