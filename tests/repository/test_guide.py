"""The guide builds from `docs/` without a broken link, and needs no other host."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from coordinator.web.http.site import Guide
from tests.support.browser import SCREENS, barriers, fresh_page, keep_screenshot, moving
from tests.support.served_page import FakeRun, PageServer

ROOT = Path(__file__).resolve().parents[2]
DRAWN = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guide as `make docs` builds it: a link, or an anchor, that leads nowhere fails."""
    folder = tmp_path_factory.mktemp("guide")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_the_guide_loads_nothing_from_elsewhere(site: Path) -> None:
    """Every script, style, font and image that a page loads is a file of the site."""
    for page in site.rglob("*.html"):
        tags = re.findall(r"<(?:script|img|link) [^>]*>", page.read_text(encoding="utf-8"))
        loaded = [address for tag in tags for address in re.findall(r'\s(?:src|href)="([^"]+)"', tag)]
        assert loaded
        assert [address for address in loaded if not (page.parent / address).is_file()] == []
    styles = "".join(style.read_text(encoding="utf-8") for style in site.rglob("*.css"))
    assert not re.search(r"url\([\"']?(https?:)?//|@import", styles)


def test_the_coordinator_can_serve_all_of_it(site: Path) -> None:
    """Each file has a media type, each page's own scripts are in the policy, and no page has a style inside."""
    guide = Guide(site)
    names = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    assert {name for name in names if guide.file(name) is None} <= {"sitemap.xml"}  # for search engines
    assert guide.policy.count("sha256-") >= 3
    for page in site.rglob("*.html"):
        assert not re.search(r"<style|\sstyle=|\son\w+=", page.read_text(encoding="utf-8")), page


@pytest.mark.parametrize("screen", ["dark", "phone"])  # both themes, wide and narrow
def test_everybody_can_search_and_read_it(browser: Browser, run: FakeRun, site: Path, screen: str) -> None:
    """The search needs no other host, axe-core finds no barrier, nothing moves, and the policy forbids nothing used.

    Curves are drawn by the coordinator's Plotly.
    """
    complaints: list[str] = []
    server = PageServer(run, site)
    try:
        with fresh_page(browser, complaints, reduced_motion="reduce", **SCREENS[screen]) as page:
            page.goto(f"{server.url}guide")
            assert moving(page) == []
            assert barriers(page) == []
            keep_screenshot(page, f"guide-{screen}")
            page.keyboard.press("/")
            page.keyboard.type("erase")
            expect(page.locator(".md-search-result__item").first).to_contain_text("erase", ignore_case=True)
            for name in ("operators/several-machines", "reference/commands", "security"):  # wide code, wide tables
                page.goto(f"{server.url}guide/{name}.html")
                page.evaluate(DRAWN)  # guide.js looks at widths when the page is drawn
                assert barriers(page) == []
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            page.goto(f"{server.url}guide/results.html")
            expect(page.locator(".js-plotly-plot .legend")).to_be_visible()
            assert page.locator("img[data-curves]").count() == 0
            assert barriers(page) == []
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            page.locator(".js-plotly-plot").scroll_into_view_if_needed()
            keep_screenshot(page, f"guide-results-{screen}")
    finally:
        server.close()
    assert complaints == []
