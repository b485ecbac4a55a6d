"""The time machine in a real browser, served by a coordinator and as an archive of plain files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from coordinator.web.state.frozen import answer_name
from tests.support.archives import archived, plain_host
from tests.support.browser import SCREENS, barriers, fresh_page, keep_screenshot
from tests.support.served_page import FakeRun, PageServer, fake_run
from tests.support.waiting import PATIENCE_S

HOSTILE = "<img src=x onerror=alert(1)>"
STEPS = 104


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeRun]:
    """A run of two stretches with a hostile member."""
    with fake_run(tmp_path_factory.mktemp("history"), fresh_for_s=PATIENCE_S) as made:
        made.add_member("ada")
        made.add_member(HOSTILE)
        made.add_steps([9.0 - step / 50 for step in range(1, STEPS + 1)])
        yield made


@pytest.fixture
def url(run: FakeRun) -> Iterator[str]:
    """The view's address."""
    server = PageServer(run)
    yield f"{server.url}history"
    server.close()


def expect_step(page: Page, step: int) -> None:
    """The page shows that moment."""
    expect(page.locator("#where")).to_contain_text(re.compile(rf"^Step {step}, "))
    expect(page.locator("#moment")).to_have_attribute("data-step", str(step))


def test_any_step_can_be_looked_at(page: Page, url: str, complaints: list[str]) -> None:
    """By address, keys, number, buttons and milestones; the address follows, so that it can be shared."""
    page.goto(f"{url}#7")
    expect_step(page, 7)
    expect(page.locator("#loss")).to_have_text("8.860")
    expect(page.locator("#batch-share")).to_have_text("102%")
    expect(page.locator("#people .who")).to_have_text([HOSTILE, "ada"])
    expect(page.locator("#groups li")).to_have_count(1)
    expect(page.locator("#groups .members")).to_contain_text(HOSTILE)
    expect(page.locator("#nothing-failed")).to_be_visible()
    page.locator("#step").focus()
    page.keyboard.press("ArrowRight")
    expect_step(page, 8)
    assert page.url.endswith("#8")
    page.locator("#step-number").fill("103")
    page.get_by_role("button", name="Go").click()
    expect_step(page, 103)
    page.get_by_role("button", name="Earlier step").click()
    expect_step(page, 102)
    page.get_by_role("button", name="The first global step").click()
    expect_step(page, 1)
    page.get_by_role("button", name="Milestone after").click()
    expect_step(page, 10)  # the first one with a thousand samples
    assert page.locator("main img").count() == 0
    assert complaints == []


def test_it_plays(page: Page, url: str) -> None:
    """Step after step until it is told to pause."""
    page.goto(f"{url}#1")
    expect_step(page, 1)
    page.get_by_role("button", name="Play").click()
    expect(page.locator("#moment")).to_have_attribute("data-step", re.compile(r"^([4-9]|\d\d+)$"))
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Play")).to_be_visible()


def test_the_newest_step_is_followed(page: Page, url: str, run: FakeRun) -> None:
    """Until somebody looks at an earlier one."""
    last = max(row.step for row in run.services.ledger.steps())
    page.goto(url)
    expect_step(page, last)
    run.add_step(last + 1, 5.0)
    expect_step(page, last + 1)
    page.get_by_role("button", name="Earlier step").click()
    run.add_step(last + 2, 5.0)
    expect(page.locator("#step")).to_have_attribute("max", str(last + 2))
    expect_step(page, last)


def test_a_run_that_has_not_begun(page: Page, tmp_path: Path, complaints: list[str]) -> None:
    """It says so, and begins with the first step."""
    with fake_run(tmp_path, fresh_for_s=PATIENCE_S) as run:
        run.add_member("ada")
        run.keeper_says(0)
        server = PageServer(run)
        page.goto(f"{server.url}history")
        expect(page.locator("#where")).to_have_text("No global step has been taken yet.")
        expect(page.locator("#moment")).to_be_hidden()
        expect(page.locator("#strip")).to_be_hidden()
        run.add_step(1, 9.0)
        expect_step(page, 1)
        assert complaints == []
        server.close()


def test_a_member_who_has_given_nothing(page: Page, tmp_path: Path, complaints: list[str]) -> None:
    """The page keeps the room while it loads; then each part says that there is nothing, and none shows a bare dash."""
    with fake_run(tmp_path, fresh_for_s=PATIENCE_S) as run:
        run.add_member("ada")
        server = PageServer(run)
        held: list[Route] = []
        page.route("**/api/v1/participants/1", lambda route: held.append(route))
        page.emulate_media(reduced_motion="reduce")
        page.goto(f"{server.url}member?number=1")
        loading = page.locator("#member-loading")
        expect(loading).to_be_visible()
        assert loading.evaluate("each => getComputedStyle(each).animationName") == "none"
        for route in held:
            route.continue_()
        page.unroute("**/api/v1/participants/1")
        expect(page.locator("#member-rank")).to_have_text("none yet")
        expect(loading).to_be_hidden()
        expect(page.locator("#no-days")).to_be_visible()
        expect(page.locator("#days")).to_be_hidden()
        assert "–" not in page.locator("#member .tiles").inner_text()
        assert barriers(page) == []
        assert complaints == []
        server.close()


@pytest.mark.parametrize("screen", SCREENS)
def test_it_fits_every_screen_and_everybody(browser: Browser, url: str, screen: str) -> None:
    """Nothing scrolls sideways, and axe-core finds no barrier."""
    complaints: list[str] = []
    with fresh_page(browser, complaints, **SCREENS[screen]) as page:
        page.goto(f"{url}#50")
        expect_step(page, 50)
        expect(page.locator(".course polyline")).to_be_visible()
        expect(page.locator("#milestones button").first).to_be_visible()
        keep_screenshot(page, f"history-{screen}")
        assert page.evaluate("document.documentElement.scrollWidth") <= SCREENS[screen]["viewport"]["width"]
        assert barriers(page) == []
    assert complaints == []


def test_an_archive_needs_no_coordinator(page: Page, run: FakeRun, tmp_path: Path, complaints: list[str]) -> None:
    """Below any path of any host the views work and lead to each other, in every language; nothing asks elsewhere."""
    made = archived(run, tmp_path / "www" / "some" / "run")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    with plain_host(tmp_path / "www") as host:
        page.goto(f"{host}some/run/")
        expect(page.locator("#state")).to_have_text("archive")
        expect(page.locator("#banner")).to_contain_text("nothing here changes any more")
        expect(page.locator("#chart")).to_have_attribute("data-steps", str(made.step))
        page.get_by_role("link", name="Time machine").click()
        expect_step(page, made.step)
        page.goto(f"{host}some/run/history.html#3")
        expect_step(page, 3)
        page.get_by_role("link", name="Español").click()
        expect(page.locator("h1")).to_have_text("Máquina del tiempo")
        page.get_by_role("link", name="Modelo", exact=True).click()
        expect(page.locator("#try-off")).to_be_visible()
        expect(page.locator("html")).to_have_attribute("lang", "es")
        assert all(address.startswith(f"{host}some/run/") for address in asked)
    assert complaints == []


def test_scripts_name_answers_as_the_archive_does(page: Page, run: FakeRun, tmp_path: Path) -> None:
    """Whatever is asked for, however it is spelt."""
    archived(run, tmp_path / "www")
    questions = [
        ("moments/3", {}),
        ("curve", {"smoothing": 20, "points": 9}),
        ("members/ä~ b/%2e", {"window": "7 d,ক"}),
        ("participants", {"window": "all", "kind": "large-gpu", "cursor": "Wy0xMiwwLDNd"}),
    ]
    script = """async ([path, parameters]) => {
        const { src } = document.querySelector("script[src$='frame.js']");
        const { address } = await import(src.replace("frame.js", "api.js"));
        return address(path, { ...parameters, nothing: null }).href;
    }"""
    with plain_host(tmp_path / "www") as host:
        page.goto(host)
        for path, parameters in questions:
            named = page.evaluate(script, [path, parameters])
            assert named == f"{host}api/v1/{answer_name(path, parameters)}"
