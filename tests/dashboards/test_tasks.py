"""How checkpoints do on the run's tasks, in a real browser: curves, earlier models, numbers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from coordinator.context.services import open_run_services
from coordinator.evaluation.evaluations import EvaluationRow, record_evaluation
from coordinator.ledger.recorded_checkpoints import record_checkpoint
from coordinator.run.directory import RunDirectory
from tests.support.browser import SCREENS, barriers, fresh_page, keep_screenshot
from tests.support.evaluated_runs import FILL, NER, made_up, set_tasks
from tests.support.served_page import FakeRun, PageServer, fake_run
from tests.support.waiting import PATIENCE_S

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[FakeRun]:
    """A run with two tasks, and three checkpoints that nobody has evaluated yet."""
    with fake_run(tmp_path, fresh_for_s=PATIENCE_S) as made:
        directory = made.directory
    set_tasks(directory.path, [NER, FILL])
    with open_run_services(RunDirectory.open(directory.path), time.time) as services:
        for step in (5, 10, 15):
            record_checkpoint(services.database, step=step, size_bytes=1, manifest_sha256=digest(step), now=0.0)
        yield FakeRun(RunDirectory.open(directory.path), services, {})


def digest(step: int) -> str:
    """Of that step's manifest."""
    return f"{step:02d}" * 32


def evaluate(run: FakeRun, step: int, *values: float, failed: int = 0) -> None:
    """An evaluator has judged a checkpoint by the first task."""
    row = EvaluationRow(step, digest(step), HOSTILE, made_up(NER, *values, failed=failed), time.time())
    assert record_evaluation(run.services.database, row)


@pytest.mark.parametrize("screen", SCREENS)
def test_curves_come_by_themselves(browser: Browser, run: FakeRun, server: PageServer, screen: str) -> None:
    """A number with the first point, a chart with the second; names are text, and axe-core finds no barrier."""
    complaints: list[str] = []
    with fresh_page(browser, complaints, **SCREENS[screen]) as page:
        page.goto(f"{server.url}model")
        articles = page.locator("#tasks article")
        expect(articles).to_have_count(2)
        evaluate(run, 5, 0.5, 0.7, failed=1)
        expect(articles.first).to_contain_text("0.600")
        evaluate(run, 10, 0.8, 0.8)
        evaluate(run, 15, 0.9, 0.91)
        expect(articles.first.locator(".chart")).to_have_attribute("data-points", "3")
        expect(articles.first.locator(".chart")).to_contain_text("an earlier model")
        expect(articles.nth(1)).to_contain_text("No checkpoint has been evaluated yet.")
        articles.first.get_by_text("The numbers as a table").click()
        rows = articles.first.locator("tbody tr")
        expect(rows).to_have_count(3)
        expect(rows.first).to_contain_text(HOSTILE)
        keep_screenshot(page, f"tasks-{screen}")
        assert page.evaluate("document.documentElement.scrollWidth") <= SCREENS[screen]["viewport"]["width"]
        assert barriers(page) == []
    assert complaints == []
