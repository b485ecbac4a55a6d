"""The public pages over a live run: they follow real volunteers, and come back when the coordinator does.

A coordinator with its keeper and two volunteers train steps of about two seconds, and the coordinator is started twice;
that is why it takes over a minute.
"""

from __future__ import annotations

import re

from playwright.sync_api import expect

from coordinator.web.pages.views import VIEWS
from tests.support.browser import chromium, fresh_page, keep_screenshot
from tests.support.commands import NAMES, Site
from tests.support.small_run import HOST


def test_the_pages_follow_a_live_run(site: Site) -> None:
    """Steps arrive by themselves, every view opens, and a coordinator that was killed is missed and found again."""
    coordinator = site.serve()
    for name in NAMES:
        site.join(name, first=True)
    address = f"http://{HOST}:{site.run.settings.web_port}/"
    complaints: list[str] = []
    with chromium() as browser, fresh_page(browser, complaints) as page:
        page.goto(address)
        chart, state = page.locator("#chart"), page.locator("#state")
        expect(chart).to_have_attribute("data-steps", re.compile(r"\d+"))
        drawn = chart.get_attribute("data-steps") or ""
        expect(chart).not_to_have_attribute("data-steps", drawn)
        expect(page.locator("#contributions li")).to_have_count(len(NAMES))
        keep_screenshot(page, "overview-live")
        for view in (view for view in VIEWS if view.in_navigation):
            page.goto(f"{address}{view.path}")
            expect(state).to_have_attribute("data-state", "live")
        assert complaints == []

        page.goto(address)
        expect(state).to_have_attribute("data-state", "live")
        coordinator.kill()
        expect(page.locator("#banner")).to_contain_text("tries to connect again")
        reached = site.ledger.last_step()
        site.serve()
        site.wait_until("another step is reported", lambda: site.ledger.last_step() > reached)
        expect(state).to_have_attribute("data-state", "live")
        expect(page.locator("#banner")).to_be_hidden()
