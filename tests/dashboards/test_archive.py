"""An archive in a real browser, from a web host that knows nothing but files: every page, and the people's views."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, Request, Response, expect

from coordinator.ledger.ledger import count_losses
from coordinator.members.names import choose_name, hide_name
from coordinator.store.models import Device
from dashboards import catalogs
from tests.support.archives import archived, plain_host
from tests.support.served_page import FakeRun, fake_run

HOSTILE = "<img src=x onerror=alert(1)>"
SHY, HIDDEN = "Shy Sheila", "Hidden Hubert"
LINKS = "links => links.map((link) => new URL(link.getAttribute('href'), document.baseURI).href)"


def be_anonymous(run: FakeRun, name: str) -> None:
    """The member's own wish."""
    with run.services.database() as session:
        key = session.get_one(Device, run.devices[name]).public_key
    choose_name(run.services.database, key, "", anonymous=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of a run with a hostile member, one who wants no name, and one whose name the operator hides."""
    place = tmp_path_factory.mktemp("archived")
    with fake_run(place) as run:
        for name in ("ada", HOSTILE, SHY, HIDDEN):
            run.add_member(name)
        run.add_steps([9.0 - 0.1 * step for step in range(1, 13)])
        run.add_checkpoint(12)
        run.add_validation(12)
        with run.services.database.begin() as session:
            count_losses(session, run.devices["ada"], 9, {"late": 30}, run.services.clock())
        be_anonymous(run, SHY)
        hide_name(run.services.database, HIDDEN, True, run.services.clock())
        archived(run, place / "www")
    return place / "www"


@pytest.fixture(scope="module")
def host(folder: Path) -> Iterator[str]:
    """Where it is served."""
    with plain_host(folder) as address:
        yield address


@pytest.fixture
def page(page: Page, host: str, complaints: list[str]) -> Page:
    """A fresh page that may ask nobody but the host, and there for nothing that is not."""

    def check(response: Response) -> None:
        if response.status >= 400 or not response.url.startswith(host):
            complaints.append(f"{response.status} {response.url}")

    def fail(request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # by whoever went on to another page
            complaints.append(f"{request.failure} {request.url}")

    page.on("response", check)
    page.on("requestfailed", fail)
    return page


def number_of(folder: Path, name: str) -> int:
    """The number by which the public knows who is shown so."""
    members = json.loads((folder / "api/v1/participants.json").read_text())["participants"]
    return next(int(each["number"]) for each in members if each["member"] == name)


@pytest.mark.parametrize("language", sorted(catalogs()))
def test_every_page_opens(page: Page, host: str, folder: Path, complaints: list[str], language: str) -> None:
    """Nothing is asked for that is not in the folder, and nothing complains."""
    names = sorted(path.name for path in folder.glob("*.html"))
    mine = [name for name in names if f'lang="{language}"' in (folder / name).read_text().split(">")[1]]
    assert len(mine) * len(catalogs()) == len(names)
    for name in (each for each in mine if not each.startswith("404")):
        page.goto(f"{host}{name}" + ("?number=1" if name.startswith("member") else ""))
        expect(page.locator("#state")).to_have_attribute("data-state", "archived")
        page.wait_for_load_state("networkidle")
        assert page.locator("img").count() == 0, name
    assert complaints == []


def test_every_link_between_pages_leads_somewhere(page: Page, host: str, folder: Path, complaints: list[str]) -> None:
    """From all pages, with what their scripts have drawn."""
    seen: set[str] = set()
    for name in ("index.html", "participants.html", "member.html?number=1"):
        page.goto(f"{host}{name}")
        page.wait_for_load_state("networkidle")
        seen.update(page.eval_on_selector_all("a[href]", LINKS))
    inside = {urlsplit(address).path.lstrip("/") for address in seen if address.startswith(host)}
    assert {"participants.html", "member.html"} <= inside
    assert [path for path in inside if not (folder / (path or "index.html")).is_file()] == []
    assert complaints == []


def test_who_took_part_can_be_looked_at(page: Page, host: str, complaints: list[str]) -> None:
    """Bubbles lead to pages, these lead back and to themselves in another language; a hostile name stays text."""
    page.goto(host)
    page.get_by_role("link", name="Participants").click()
    expect(page.locator("#bubbles a.bubble")).to_have_count(4)
    expect(page.locator("#timeline li .name")).to_have_count(4)
    page.locator(f'#bubbles a[aria-label^="{HOSTILE}"]').click()
    expect(page.locator("#member-name")).to_have_text(HOSTILE)
    expect(page.locator("#own-curve svg .own")).to_have_count(1)
    page.get_by_role("link", name="Español").click()
    expect(page.locator("html")).to_have_attribute("lang", "es")
    expect(page.locator("#member-name")).to_have_text(HOSTILE)
    page.get_by_role("link", name="Todos los participantes").click()
    expect(page.locator("#board th a")).to_have_count(4)
    assert urlsplit(page.url).path == "/participants.es.html"
    page.locator("#board th a").first.click()
    expect(page.locator("#member")).to_be_visible()
    assert page.locator("main img").count() == 0
    assert complaints == []


def test_every_choice_has_its_answer(page: Page, host: str, complaints: list[str]) -> None:
    """All days on all hardware, and all spans of the timeline."""
    page.goto(f"{host}participants.html")
    board = page.locator("#board")
    expect(board).to_have_attribute("data-window", "all")
    choices = page.locator("#board-choices")
    options = "options => options.map((option) => option.value)"
    for window in choices.locator("select[name=window] option").evaluate_all(options):
        choices.locator("select[name=window]").select_option(window)
        for kind in choices.locator("select[name=kind] option").evaluate_all(options):
            choices.locator("select[name=kind]").select_option(kind)
            expect(board).to_have_attribute("data-window", window)
            expect(board).to_have_attribute("data-kind", kind)
            expect(board.locator("tr")).to_have_count(4 if kind in {"", "cpu"} else 0)
    for days in page.locator("#timeline-choices option").evaluate_all(options):
        with page.expect_response(re.compile(r"/api/v1/stays,")) as answered:
            page.locator("#timeline-choices select").select_option(days if days != "14" else "1")
            page.locator("#timeline-choices select").select_option(days)
        assert answered.value.ok
        expect(page.locator("#timeline li .name")).to_have_count(4)
        expect(page.locator("#timeline-note")).to_have_text("")
    assert complaints == []


def test_a_members_page_has_nothing_that_needs_a_coordinator(page: Page, host: str, folder: Path) -> None:
    """Nobody signs certificates here; what was given, and why not all counted, is there."""
    page.goto(f"{host}member.html?number={number_of(folder, 'ada')}")
    expect(page.locator("#member-name")).to_have_text("ada")
    expect(page.locator("#why tr")).to_have_count(1)
    expect(page.locator("#why-note")).to_contain_text("30 of")
    expect(page.locator("#certificate-title")).to_have_count(0)
    assert page.locator("#content a, #content form, #content button").count() == 1  # back to everybody


def test_nobodys_page_says_so(page: Page, host: str, complaints: list[str]) -> None:
    """An archive has one page for all members."""
    page.goto(f"{host}member.html?number=99")
    expect(page.locator("#member-note")).to_contain_text("No member has this number")
    expect(page.locator("#member")).to_be_hidden()
    assert [each for each in complaints if "404" not in each] == []


def test_whoever_has_no_name_outside_has_none_here(folder: Path) -> None:
    """In no file, whatever its format; under their numbers they are there."""
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for name in (SHY, HIDDEN):
        assert [path for path, content in files.items() if name.encode() in content] == []
    members = json.loads((folder / "api/v1/participants.json").read_text())["participants"]
    unnamed = [each["number"] for each in members if each["member"] == f"Anonymous {each['number']}"]
    assert len(unnamed) == 2
    assert all((folder / "api" / "v1" / "participants" / f"{number}.json").is_file() for number in unnamed)
