"""A real Chromium for tests of pages: Debian's, driven by Playwright; what it complains of, and what axe-core finds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from tests.support.programs import require
from tests.support.waiting import PATIENCE_S

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
# To compile Plotly takes seconds. A process keeps what it has compiled, so one process serves all pages of a context;
# and it notes at once where in the source an instruction stands, else it would parse all again to tell of an error.
ARGUMENTS += ["--process-per-site", "--js-flags=--no-enable-lazy-source-positions"]
BLANK = "about:blank"
SCREENSHOTS = Path(__file__).resolve().parent.parent.parent / "build" / "screenshots"
PATIENCE_MS = 1000 * PATIENCE_S
SCREENS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 360, "height": 780}, "color_scheme": "light", "has_touch": True},
    "wall": {"viewport": {"width": 2560, "height": 1300}, "color_scheme": "dark"},
}
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]  # the tags of axe's rules for WCAG 2.2 AA

# Elements that could move by themselves, by their style or by a script.
MOVING = """() => [
  ...document.getAnimations().map((each) => String(each.effect?.target?.outerHTML).slice(0, 99)),
  ...[...document.querySelectorAll("*")].filter((each) => {
    const { animationName, animationDuration, transitionDuration, scrollBehavior } = getComputedStyle(each);
    const takes = (durations) => durations.split(",").some((each) => parseFloat(each) > 0);
    const animated = animationName !== "none" && takes(animationDuration);
    return animated || takes(transitionDuration) || scrollBehavior !== "auto";
  }).map((each) => each.outerHTML.slice(0, 99)),
]"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser."""
    require("chromium")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=ARGUMENTS, timeout=PATIENCE_MS
        )
        yield browser
        browser.close()


@cache
def _context(browser: Browser, options: str) -> BrowserContext:
    """The browser's context with these options, as JSON; all pages with the same options share it."""
    context = browser.new_context(**json.loads(options))
    context.set_default_timeout(PATIENCE_MS)
    return context


def _forget(context: BrowserContext, page: Page) -> None:
    """Delete everything that earlier pages of the context have left in the browser."""
    devtools = context.new_cdp_session(page)
    devtools.send("Storage.clearDataForOrigin", {"origin": "*", "storageTypes": "all"})
    devtools.send("Network.clearBrowserCache")
    devtools.detach()
    context.clear_cookies()
    context.clear_permissions()


@contextmanager
def fresh_page(browser: Browser, complaints: list[str] | None = None, **context: Any) -> Iterator[Page]:
    """A page without history, on a screen of 1280 × 900 unless told; `complaints` takes what its console says is wrong.

    That is errors, warnings, and violations of the content security policy. The page before is closed only when the
    next one is open, so that the process that both share stays.
    """
    options = {"viewport": {"width": 1280, "height": 900}, "locale": "en", **context}
    shared = _context(browser, json.dumps(options, sort_keys=True))
    left = [page for page in shared.pages if page.url == BLANK]
    page = shared.new_page()
    for earlier in left:
        earlier.close()
    _forget(shared, page)

    def note(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"} and complaints is not None:
            complaints.append(message.text)

    page.on("console", note)
    page.on("pageerror", lambda error: complaints is None or complaints.append(str(error)))
    yield page
    page.goto(BLANK)


def barriers(page: Page) -> list[str]:
    """What of WCAG 2.2 AA the page does not meet, as far as axe-core can tell: rule, what it means, and where."""
    found = Axe().run(page, options={"runOnly": {"type": "tag", "values": WCAG}})
    return [
        f"{violation['id']}: {violation['help']}: {node['target']} {node.get('failureSummary', '')}"
        for violation in found.response["violations"]
        for node in violation["nodes"]
    ]


def moving(page: Page) -> list[str]:
    """Elements of the page that are animated, or would be."""
    found: list[str] = page.evaluate(MOVING)
    return found


def keep_screenshot(page: Page, name: str) -> None:
    """Write the whole page to `build/screenshots` for people to look at."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)
