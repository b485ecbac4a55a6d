"""The model's view in a real browser, over real checkpoints that a real answerer is asked."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from playwright.sync_api import Browser, Page, expect

from coordinator.context.services import open_run_services
from coordinator.playground.answerer import open_answerer
from coordinator.store.models import Checkpoint
from tests.support.browser import SCREENS, barriers, fresh_page, keep_screenshot
from tests.support.served_page import FakeRun, PageServer
from tests.support.small_checkpoints import add_checkpoint
from tests.support.small_run import make_small_run
from tests.support.waiting import wait_until

HOSTILE = "<img src=x>"  # short, for the small model reads 32 tokens
SENTENCE = f"{HOSTILE} ___ hands."


@contextmanager
def served(directory: Path, try_it: bool = True) -> Iterator[tuple[FakeRun, PageServer]]:
    """A small run and its page."""
    made = make_small_run(directory, try_it=try_it)
    with open_run_services(made, time.time) as services:
        run = FakeRun(made, services, {})
        run.keeper_says(10)
        server = PageServer(run)
        try:
            yield run, server
        finally:
            server.close()


@pytest.fixture(scope="module")
def run_and_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeRun, PageServer]]:
    """A run with checkpoints of three steps, the middle one withheld, and the answerer of it."""
    with served(tmp_path_factory.mktemp("model")) as (run, server):
        for step in (5, 7, 10):
            add_checkpoint(run.directory, run.services.database, step, seed=step)
        withhold(run, 7)
        stop = threading.Event()
        answering = threading.Thread(target=open_answerer(run.directory.path).run, args=(stop,))
        answering.start()
        try:
            yield run, server
        finally:
            stop.set()
            answering.join()


@pytest.fixture
def run(run_and_server: tuple[FakeRun, PageServer]) -> FakeRun:
    """The run."""
    return run_and_server[0]


@pytest.fixture
def url(run_and_server: tuple[FakeRun, PageServer]) -> str:
    """The view's address."""
    return f"{run_and_server[1].url}model"


def withhold(run: FakeRun, step: int) -> None:
    """As the keeper does with a checkpoint that does not pass the gate."""
    with run.services.database.begin() as session:
        row = session.get(Checkpoint, step)
        assert row is not None
        row.withheld = "its loss rose"


def test_a_visitor_may_ask_before_the_facts_are_there(url: str) -> None:
    """The page itself says which checkpoints can be asked; on a slow line the rest comes seconds later."""

    def says_which() -> bool:
        with urlopen(url) as page:  # noqa: S310 - the test's own server
            return 'data-steps="5 10"' in page.read().decode()

    wait_until("the page names the checkpoints that can be asked", says_which)


def test_a_visitor_sees_the_model_learn(page: Page, url: str, complaints: list[str]) -> None:
    """The newest published checkpoint answers, then those before but what is withheld; markup stays text."""
    page.goto(url)
    page.get_by_label("Sentence").fill(SENTENCE)
    page.get_by_label("Sentence").press("Enter")
    newest = page.locator(".answer").first
    expect(newest.locator(".filled")).to_contain_text(HOSTILE)
    expect(newest.locator(".guesses li")).to_have_count(5)
    expect(newest.get_by_role("heading")).to_have_text("step 10, the newest")
    page.get_by_role("button", name="Ask earlier checkpoints, too").click()
    expect(page.locator(".answer .filled")).to_have_count(2)
    assert [place.get_attribute("data-step") for place in page.locator(".answer").all()] == ["10", "5"]
    expect(page.get_by_role("button", name="Ask earlier checkpoints, too")).to_be_hidden()
    assert page.locator(".answer img").count() == 0
    assert complaints == []


def test_what_cannot_be_answered_is_said(page: Page, url: str) -> None:
    """A sentence without a blank is refused by the service, one that is too long by the model."""
    page.goto(url)
    page.get_by_label("Sentence").fill("No blank in here.")
    page.get_by_label("Sentence").press("Enter")
    expect(page.locator("#try-problem")).to_contain_text("0 blanks")
    expect(page.locator(".answer")).to_have_count(0)
    page.get_by_label("Sentence").fill(f"{'many hands ' * 25}___")
    page.get_by_label("Sentence").press("Enter")
    expect(page.locator("#try-problem")).to_contain_text("this run's model reads 32")


def test_checkpoints_can_be_taken_along(page: Page, url: str, run: FakeRun, complaints: list[str]) -> None:
    """Each with its digest and its files; one that is withheld says why and has no files."""
    page.goto(url)
    items = page.locator("#checkpoints > li")
    expect(items.locator("h3")).to_have_text(["step 10", "step 7", "step 5"])
    expect(items.nth(1)).to_contain_text("Withheld: its loss rose")
    expect(items.nth(1).get_by_text("Files", exact=True)).to_have_count(0)
    expect(items.nth(1).get_by_text("Download all files")).to_have_count(0)
    items.first.get_by_text("Files", exact=True).click()
    link = items.first.get_by_role("link", name="model.safetensors")
    with page.expect_download() as download:
        link.click()
    stored = run.directory.checkpoints_dir / "step-00000010" / "model.safetensors"
    assert Path(download.value.path()).read_bytes() == stored.read_bytes()
    assert complaints == []


def test_what_is_offered_works_when_it_is_pasted(
    page: Page, url: str, run: FakeRun, tmp_path: Path, complaints: list[str]
) -> None:
    """One button downloads the newest published checkpoint as a whole; the code below it loads just that in Python."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(url)
    button = page.locator("#take-all")
    expect(button).to_contain_text("Download the newest checkpoint: step 10")
    with page.expect_download() as download:
        button.click()
    assert download.value.suggested_filename == "small-step-10.tar"
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    code = page.evaluate("navigator.clipboard.readText()")
    assert "small-step-10" in code
    said = f"{code}\nprint(type(model).__name__, model.config.hidden_size, tokenizer.mask_token, flush=True)"
    pasted = subprocess.run([sys.executable, "-c", said], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert pasted.stdout.split() == ["AlbertForMaskedLM", "32", "[MASK]"], pasted.stderr
    stored = run.directory.checkpoints_dir / "step-00000010"
    assert (tmp_path / "small-step-10" / "manifest.json").read_bytes() == (stored / "manifest.json").read_bytes()
    assert complaints == []


def test_the_best_checkpoint_is_that_of_the_newest_held_out_text(page: Page, url: str) -> None:
    """Losses on other samples are not compared, what is withheld is not chosen, and one alone is not the best."""
    script = """async (url) => {
        const m = await import(url);
        const checkpoint = (digest, withheld = "") => ({ manifest_sha256: digest, withheld });
        const row = (digest, loss, set = "new", at = 5, samples = 500) =>
            ({ manifest_sha256: digest, loss, set_sha256: set, evaluated_at: at, samples });
        const kept = [checkpoint("a"), checkpoint("b"), checkpoint("c"), checkpoint("d", "broken"), checkpoint("e")];
        const found = (rows) => m.best(kept, rows)?.manifest_sha256 ?? null;
        return [
            found([row("a", 1, "old", 1), row("b", 3), row("c", 2.5), row("d", 2), row("e", null), row("gone", 1)]),
            found([row("b", 3), row("c", 3)]),
            found([row("a", 1, "old", 1), row("b", 3)]),
            found([]),
            m.fewSamples([row("a", 1, "old", 1, 5), row("b", 1, "new", 2, 500)]),
            m.fewSamples([row("b", 1, "new", 2, 99), row("a", 1, "old", 1, 500)]),
            m.fewSamples([row("b", 1, "new", 2, 100)]),
            m.fewSamples([]),
            m.snippet("x", "y", "AutoModelForCausalLM").includes("AutoModelForCausalLM.from_pretrained"),
        ];
    }"""
    page.goto(url)
    found = page.evaluate(script, f"{url.removesuffix('model')}static/checkpoint_choice.js")
    assert found == ["c", "c", None, None, None, 99, None, None, True]


def test_evaluations_come_by_themselves(page: Page, url: str, run: FakeRun, complaints: list[str]) -> None:
    """A table with the first, a chart beside it with the second; what is no number is a dash."""
    page.goto(url)
    expect(page.locator("#no-evaluations")).to_be_visible()
    run.add_validation(5, 7.0)
    rows = page.locator("#evaluations tr")
    expect(rows).to_have_count(1)
    expect(rows.first.locator("td")).to_have_text(["7.500", "1,100", "12.5%", "75%", "64"])
    run.add_validation(10, None, sop_accuracy=None)
    expect(page.locator("#evaluation-chart")).to_have_attribute("data-points", "2")
    expect(rows.nth(1).locator("td")).to_have_text(["–", "–", "12.5%", "–", "64"])
    expect(page.locator("#few-samples")).to_have_text("Measured on only 64 samples: take these figures as rough.")
    assert complaints == []


def test_the_best_is_marked_and_offered(page: Page, url: str, run: FakeRun) -> None:
    """By its loss on held-out text; digests are folded away."""
    rows = run.services.database
    with rows() as session:
        digests = {step: session.get_one(Checkpoint, step).manifest_sha256 for step in (5, 10)}
    for step, loss in ((5, 4.0), (10, 5.0)):
        run.add_validation(step, loss, manifest_sha256=digests[step], set_sha256="ef" * 32, evaluated_at=2e9 + step)
    page.goto(url)
    expect(page.locator("#checkpoints .best")).to_have_count(1)
    expect(page.locator("#checkpoints h3").last).to_have_text("step 5 best")
    expect(page.locator("#take-all")).to_contain_text("Download the best checkpoint: step 5")
    expect(page.locator("#checkpoints .digest code").first).to_be_hidden()
    page.locator("#checkpoints .digest summary").first.click()
    expect(page.locator("#checkpoints .digest code").first).to_be_visible()


@pytest.mark.parametrize("screen", SCREENS)
def test_it_fits_every_screen_and_everybody(browser: Browser, url: str, screen: str) -> None:
    """Nothing scrolls sideways, and axe-core finds no barrier, with answers as without."""
    complaints: list[str] = []
    with fresh_page(browser, complaints, **SCREENS[screen]) as page:
        page.goto(url)
        expect(page.locator("#checkpoints .facts")).to_have_count(3)
        page.get_by_role("button", name="Ask the model").click()
        expect(page.locator(".answer .filled")).to_be_visible()
        page.get_by_role("button", name="Ask earlier checkpoints, too").click()
        expect(page.locator(".answer .filled")).to_have_count(2)
        keep_screenshot(page, f"model-{screen}")
        assert page.evaluate("document.documentElement.scrollWidth") <= SCREENS[screen]["viewport"]["width"]
        assert barriers(page) == []
    assert complaints == []


def test_a_run_without_checkpoints_says_so(page: Page, tmp_path: Path, complaints: list[str]) -> None:
    """And offers what it can as soon as there is one."""
    with served(tmp_path) as (run, server):
        page.goto(f"{server.url}model")
        expect(page.locator("#try-off")).to_contain_text("no published checkpoint yet")
        expect(page.locator("#try")).to_be_hidden()
        expect(page.locator("#no-checkpoints")).to_be_visible()
        run.add_checkpoint(10)
        expect(page.locator("#try")).to_be_visible()
    assert [each for each in complaints if "ERR_CONNECTION" not in each and "INCOMPLETE_CHUNKED" not in each] == []


def test_the_switch_turns_it_off(page: Page, tmp_path: Path) -> None:
    """`dashboard.try_it: false` in the run file."""
    with served(tmp_path, try_it=False) as (run, server):
        run.add_checkpoint(10)
        page.goto(f"{server.url}model")
        expect(page.locator("#try-off")).to_have_text("Visitors cannot try this run's model.")
        expect(page.locator("#checkpoints > li .digest")).to_contain_text("ab" * 32)
        expect(page.locator("#try")).to_be_hidden()
