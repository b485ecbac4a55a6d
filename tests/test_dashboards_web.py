"""The page in a real browser: Debian's headless Chromium over a real server with a real store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.served_page import FakeRun, PageServer, fake_run

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[FakeRun]:
    """An empty run."""
    with fake_run(tmp_path) as made:
        yield made


@pytest.fixture
def server(run: FakeRun) -> Iterator[PageServer]:
    """The run's dashboard."""
    made = PageServer(run)
    yield made
    made.close()


@pytest.fixture
def complaints() -> list[str]:
    """What the browser's console says is wrong: errors, warnings, violations of the content security policy."""
    return []


@pytest.fixture
def page(browser: Browser, complaints: list[str]) -> Iterator[Page]:
    """A fresh page whose complaints are collected."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()

    def note(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            complaints.append(message.text)

    page.on("console", note)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    context.close()


def fill(run: FakeRun, steps: int) -> None:
    """Two members, one with a hostile name, and some steps."""
    run.add_member("ada")
    run.add_member(HOSTILE)
    for step in range(1, steps + 1):
        run.add_step(step, 9.0 - 0.1 * step)
    run.add_checkpoint(steps)


def test_empty_run_waits(page: Page, server: PageServer, run: FakeRun, complaints: list[str]) -> None:
    """Without data the page says what it waits for instead of showing empty charts."""
    run.keeper_says(0, samples=0)
    page.goto(server.url)
    expect(page.locator("#state")).to_have_text("waiting for the first global step")
    expect(page.locator("#no-contributions")).to_be_visible()
    expect(page.locator("#no-checkpoint")).to_be_visible()
    expect(page.locator("#data-wait")).to_have_text("-")
    expect(page.locator("#curve")).to_be_visible()
    assert complaints == []


def test_numbers_and_curve_are_live(page: Page, server: PageServer, run: FakeRun, complaints: list[str]) -> None:
    """Plotly draws every step, and a step that completes later arrives by itself."""
    fill(run, 12)
    page.goto(server.url)
    chart = page.locator("#chart")
    expect(chart).to_have_attribute("data-steps", "12", timeout=20_000)
    expect(chart.locator(".scatterlayer .trace")).to_have_count(1)
    expect(page.locator("#state")).to_have_text("live")
    expect(page.locator("#loss")).to_have_text("7.800")
    expect(page.locator("#batch-samples")).to_have_text("40 samples")
    expect(page.locator("#data-wait")).to_have_text("1.3%")
    expect(page.locator("#checkpoint-step")).to_have_text("12")
    run.add_step(13, 7.5)
    expect(chart).to_have_attribute("data-steps", "13", timeout=20_000)
    expect(page.locator("#loss")).to_have_text("7.500")
    expect(page.locator("#next-step")).to_have_text("14")
    assert complaints == []


def test_held_out_text_is_shown_beside_training(
    page: Page, server: PageServer, run: FakeRun, complaints: list[str]
) -> None:
    """A second line with a legend, and the newest checkpoint's numbers; one more arrives by itself."""
    fill(run, 12)
    page.goto(server.url)
    chart = page.locator("#chart")
    expect(chart).to_have_attribute("data-validations", "0", timeout=20_000)
    expect(page.locator("#no-validation")).to_be_visible()
    for step in (5, 10):
        run.add_validation(step, 8.0 - step / 10)
    expect(chart).to_have_attribute("data-validations", "2", timeout=20_000)
    expect(chart.locator(".scatterlayer .trace")).to_have_count(2)
    expect(chart.locator(".legend .legendtext")).to_have_text(["training", "held-out text"])
    expect(page.locator("#validation-step")).to_have_text("10")
    expect(page.locator("#validation-loss")).to_have_text("7.500")
    expect(page.locator("#validation-perplexity")).to_have_text("1,100")
    expect(page.locator("#validation-accuracy")).to_have_text("12.5%")
    expect(page.locator("#validation-order")).to_have_text("75%")
    run.add_validation(12, None, sop_accuracy=None)
    expect(page.locator("#validation-loss")).to_have_text("-", timeout=20_000)
    expect(page.locator("#validation-order")).to_have_text("-")
    assert complaints == []


def test_a_phase_is_marked_where_it_begins(page: Page, tmp_path: Path, complaints: list[str]) -> None:
    """The chart has a line and a name at the boundary that is passed, none at one to come; the batch tells which."""
    phases = [{"from_step": 4, "sequence_length": 256}, {"from_step": 100, "optimizer": "fresh"}]
    with fake_run(tmp_path / "phased", phases=phases) as run:
        fill(run, 8)
        server = PageServer(run)
        page.goto(server.url)
        chart = page.locator("#chart")
        expect(chart).to_have_attribute("data-steps", "8", timeout=20_000)
        expect(chart.locator(".shapelayer path")).to_have_count(1)
        expect(chart.locator(".annotation")).to_have_text("phase 2")
        expect(page.locator("#phase")).to_have_text("phase 2 of 3: 256 tokens, 100 samples a step")
        server.close()
    assert complaints == []


def test_hostile_name_stays_text(page: Page, server: PageServer, run: FakeRun, complaints: list[str]) -> None:
    """A member named like markup is shown as it is spelt; nothing of it is run or loaded."""
    fill(run, 2)
    page.goto(server.url)
    expect(page.get_by_text(HOSTILE, exact=True)).to_be_visible()
    assert page.locator("#contributions img").count() == 0
    assert complaints == []


def test_lost_connection_is_visible_and_heals(page: Page, server: PageServer, run: FakeRun) -> None:
    """While the coordinator is away the page says that it reconnects; afterwards it is live again."""
    fill(run, 3)
    page.goto(server.url)
    expect(page.locator("#state")).to_have_text("live")
    server.close()
    expect(page.locator("#banner")).to_contain_text("reconnecting", timeout=20_000)
    expect(page.locator("#state")).to_have_attribute("data-state", "disconnected")
    run.add_step(4, 5.0)
    server.start()
    expect(page.locator("#state")).to_have_text("live", timeout=30_000)
    expect(page.locator("#banner")).to_be_hidden()
    expect(page.locator("#loss")).to_have_text("5.000")


def test_silent_keeper_is_visible(page: Page, server: PageServer, run: FakeRun) -> None:
    """When the keeper says nothing, the page does not pretend to be live."""
    fill(run, 2)
    run.keeper_says(2, now=1_000.0)
    page.goto(server.url)
    expect(page.locator("#state")).to_have_text("keeper silent")
    expect(page.locator("#banner")).to_contain_text("Training may well go on")


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (2560, "light")])
def test_fits_the_screen(browser: Browser, server: PageServer, run: FakeRun, width: int, scheme: str) -> None:
    """Nothing is cut off or scrolls sideways, on a phone as on a wall, in the dark as in the light."""
    fill(run, 5)
    run.add_validation(5)
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(server.url)
    expect(page.locator("#chart")).to_have_attribute("data-steps", "5", timeout=20_000)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    context.close()


def test_keyboard_reaches_everything(page: Page, server: PageServer, run: FakeRun) -> None:
    """The first Tab offers to skip to the curve, and smoothing is switched by the space bar."""
    fill(run, 30)
    page.goto(server.url)
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.locator("#smooth").focus()
    page.keyboard.press("Space")
    expect(page.locator("#chart .scatterlayer .trace")).to_have_count(2, timeout=20_000)
