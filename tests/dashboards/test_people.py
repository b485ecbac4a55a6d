"""The views about people in a real browser: everybody, one member, how to join."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from benchmarks.coordinator.visit import NOTE_VITALS
from coordinator.ledger.ledger import count_losses
from coordinator.ledger.sessions import open_session
from coordinator.members.join_page import Invitation, QrCode
from coordinator.members.names import choose_name
from coordinator.statistics.people import HardwareClass
from coordinator.store.models import Device
from dashboards import WEB
from peer.runtime.software import install_commands
from tests.support.browser import SCREENS, barriers, fresh_page, keep_screenshot
from tests.support.crowds import touch
from tests.support.receipts import key_of
from tests.support.served_page import FakeRun, PageServer, fake_run
from tests.support.waiting import wait_until

HOSTILE = "<img src=x onerror=alert(1)>"
DRAWN = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
LEAST_SHIFT = 0.01  # the state's few words are of different widths


class Held:
    """Requests for an address that wait until they may go on."""

    def __init__(self, page: Page, address: str) -> None:
        self._page, self._address = page, address
        self._waiting: list[Route] = []
        page.route(address, lambda route: self._waiting.append(route))

    def release(self) -> None:
        """Let the first one go on, when it is there."""
        wait_until(f"the page asks for {self._address}", self._is_asked_for)
        self._waiting[0].continue_()

    def _is_asked_for(self) -> bool:
        self._page.evaluate(DRAWN)  # routes are told while the browser is talked to
        return bool(self._waiting)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeRun]:
    """Three members, one with a hostile name and one who is away; some steps, and some samples that were lost."""
    with fake_run(tmp_path_factory.mktemp("people")) as made:
        services = made.services
        for name in ("ada", HOSTILE):
            made.add_member(name)
        made.add_steps([9.0 - 0.1 * step for step in range(1, 13)])
        made.keeper_says(12, now=services.clock() + 3600)
        services.membership.join(key_of("cleo").public_key, services.membership.invite("cleo")[0])
        for name in ("ada", HOSTILE):
            stay = open_session(services.database, made.devices[name], "cuda:0 (Tesla T4)", "1", services.clock())
            touch(
                services.database,
                stay,
                step=12,
                own_samples=3,
                samples_per_second=4.5,
                state="training",
                now=services.clock() + 3600,
            )
        with services.database.begin() as session:
            lost = {"late": 30, "non-finite": 4, "averaging failed": 12}
            count_losses(session, made.devices["ada"], 9, lost, services.clock())
        yield made


@pytest.fixture(scope="module")
def server(run: FakeRun) -> Iterator[PageServer]:
    """The run's dashboard."""
    made = PageServer(run)
    yield made
    made.close()


def number_of(page: Page, name: str) -> int:
    """The number by which the public knows a member."""
    answer = page.request.get(f"{page.url.rsplit('/', 1)[0]}/api/v1/participants").json()
    return next(int(each["number"]) for each in answer["participants"] if each["member"] == name)


def test_everybody_is_a_bubble_that_leads_to_a_page(page: Page, server: PageServer, complaints: list[str]) -> None:
    """Who computes now has a square and a full colour; names are text; a click opens the member's page."""
    page.goto(f"{server.url}participants")
    bubbles = page.locator("#bubbles a.bubble")
    expect(bubbles).to_have_count(2)
    expect(page.locator("#bubbles .square")).to_have_count(2)
    assert page.locator("#bubbles img, #board img, #timeline img").count() == 0
    hostile = page.get_by_role("link", name=HOSTILE).first
    expect(hostile).to_be_visible()
    page.locator(f'#bubbles a[aria-label^="{HOSTILE}"]').click()
    expect(page.locator("#member-name")).to_have_text(HOSTILE)
    assert complaints == []


@pytest.mark.parametrize("screen", ["light", "phone"])
def test_the_leaderboard_does_not_move_when_the_bubbles_come(browser: Browser, server: PageServer, screen: str) -> None:
    """Their room is kept before they are drawn, and their colors are named from the beginning."""
    with fresh_page(browser, **SCREENS[screen]) as page:
        held: list[Route] = []
        page.route("**/api/v1/participants*", lambda route: held.append(route))
        page.goto(f"{server.url}participants")
        expect(page.locator("#state")).to_have_text("live")
        before = page.locator("#board-title").bounding_box()
        expect(page.locator("#hardware li")).to_have_text(["GPU: 2"])
        held[0].continue_()
        expect(page.locator("#bubbles svg")).to_be_visible()
        assert page.locator("#board-title").bounding_box() == before


def test_the_leaderboard_follows_its_choices(page: Page, server: PageServer, complaints: list[str]) -> None:
    """Equals share a rank; on other hardware there is nobody, and the page says so."""
    page.goto(f"{server.url}participants")
    expect(page.locator("#board")).to_have_attribute("data-window", "all")
    expect(page.locator("#board tr")).to_have_count(2)
    expect(page.locator("#board td:first-child")).to_have_text(["1", "1"])
    expect(page.locator("#board th a")).to_have_text(["ada", HOSTILE])
    page.locator("#board-choices select[name=kind]").select_option("tpu")
    expect(page.locator("#board-empty")).to_be_visible()
    expect(page.locator("#board tr")).to_have_count(0)
    page.locator("#board-choices select[name=kind]").select_option("gpu")
    page.locator("#board-choices select[name=window]").select_option("week")
    expect(page.locator("#board")).to_have_attribute("data-kind", "gpu")
    expect(page.locator("#board tr")).to_have_count(2)
    assert complaints == []


def test_a_member_finds_the_own_row_and_page(page: Page, server: PageServer, complaints: list[str]) -> None:
    """By a part of the name, or a device's number, though nothing was given yet; Enter opens the only one's page."""
    page.goto(f"{server.url}participants")
    expect(page.locator("#board tr")).to_have_count(2)
    expect(page.locator("#online")).to_have_text("2 of 3 members online")
    find = page.get_by_label("find me, or anybody")
    find.fill("#3")  # the keeper has 2
    expect(page.locator("#board th a")).to_have_text(["cleo"])
    expect(page.locator("#board-found")).to_have_text("1 member has this name or device.")
    find.fill("nobody")
    expect(page.locator("#board tr")).to_have_count(0)
    expect(page.locator("#board-found")).to_have_text("0 members have this name or device.")
    find.fill("ÁDA")
    expect(page.locator("#board th a")).to_have_text(["ada"])
    find.press("Enter")
    expect(page.locator("#member-name")).to_have_text("ada")
    assert complaints == []


def test_who_is_online_is_marked_and_can_be_chosen(page: Page, server: PageServer) -> None:
    """Bubbles have the color of their hardware, which a list names."""
    page.goto(f"{server.url}participants")
    expect(page.locator("#board .here")).to_have_count(2)
    page.get_by_label("find me, or anybody").fill("c")
    expect(page.locator("#board th a")).to_have_text([HOSTILE, "cleo"])
    page.get_by_label("online only").check()
    expect(page.locator("#board th a")).to_have_text([HOSTILE])
    expect(page.locator("#hardware li")).to_have_text(["GPU: 2"])
    expect(page.locator('#bubbles a[data-hardware="gpu"] .square[data-hardware="gpu"]')).to_have_count(2)


def test_people_are_found_in_every_script(page: Page, server: PageServer) -> None:
    """Without regard to case or accents, but with the signs of other scripts; a number is a device's, and a name's."""
    names = ["Lucía", "মৌমিতা", "volunteer-12", "Ελένη", "ada"]
    people = json.dumps([{"member": name, "device_numbers": [place + 10]} for place, name in enumerate(names)])
    script = f"(text) => m.found({people}, text).map((each) => each.member)"
    asked = ["lucia", "মৌ", "ম", "12", "#12", "ΕΛΕΝΗ", "  ", "#1", "nobody"]
    found = module(page, server, "people_search.js", f"{json.dumps(asked)}.map({script})")
    assert found == [
        ["Lucía"],
        ["মৌমিতা"],
        ["মৌমিতা"],
        ["volunteer-12"],
        ["volunteer-12"],
        ["Ελένη"],
        names,
        [],
        [],
    ]
    here = "[{ active: [], n: 1 }, { active: [1], n: 2 }, { active: [], n: 3 }, { active: [1], n: 4 }]"
    assert module(page, server, "people_search.js", f"m.onlineFirst({here}).map((each) => each.n)") == [2, 4, 1, 3]


def test_the_timeline_shows_who_was_here(page: Page, server: PageServer, complaints: list[str]) -> None:
    """A row for each member with a stay, also for who reads with ears; another span asks anew."""
    page.goto(f"{server.url}participants")
    expect(page.locator("#timeline li .name")).to_have_count(2)
    expect(page.locator("#timeline .stay.online")).to_have_count(2)
    expect(page.locator("#timeline .visually-hidden").first).to_contain_text("session")
    page.locator("#timeline-choices select").select_option("1")
    expect(page.locator("#timeline .ticks span")).to_have_count(5)
    assert complaints == []


def test_a_member_sees_why_samples_did_not_count(page: Page, server: PageServer, complaints: list[str]) -> None:
    """Every cause with its samples, the gravest first, and in words what helps; the curve's own parts are marked."""
    page.goto(f"{server.url}participants")
    page.goto(f"{server.url}member?number={number_of(page, 'ada')}")
    expect(page.locator("#member-name")).to_have_text("ada")
    causes = page.locator("#why tr")
    expect(causes).to_have_count(3)
    assert [causes.nth(place).get_attribute("data-cause") for place in range(3)] == [
        "late",
        "averaging failed",
        "non-finite",
    ]
    expect(causes.first.locator("td").first).to_have_text("30")
    expect(page.locator("#why-note")).to_contain_text("46 of 658 samples")
    expect(page.locator("#member-samples")).to_have_text("612")
    expect(page.locator("#member-rank")).to_have_text("1 of 2")
    expect(page.locator("#own-curve svg .own")).to_have_count(1)
    expect(page.locator("#days svg rect.lost")).to_have_count(1)
    expect(page.locator("#devices tr")).to_have_count(1)
    expect(page.locator("#devices")).to_contain_text("training, 4.5 samples a second")
    assert complaints == []


def test_a_certificate_can_be_downloaded(page: Page, server: PageServer) -> None:
    """Beside the button stands how to check it."""
    page.goto(f"{server.url}participants")
    number = number_of(page, "ada")
    page.goto(f"{server.url}member?number={number}")
    expect(page.locator("#certificate-command")).to_contain_text(f"verify certificate-{number}.json")
    with page.expect_download() as download:
        page.locator("#certificate").click()
    assert '"member":"ada"' in json.loads(download.value.path().read_text())["body"]
    assert download.value.suggested_filename == f"certificate-{number}.json"


def test_a_chosen_name_is_seen_everywhere(page: Page, server: PageServer, run: FakeRun, complaints: list[str]) -> None:
    """A member who wants to be anonymous is, within seconds, and without a reload."""
    page.goto(f"{server.url}participants")
    expect(page.locator("#board th a")).to_have_text(["ada", HOSTILE])
    services = run.services
    with services.database() as session:
        key = session.get_one(Device, run.devices["ada"]).public_key
    try:
        shown = choose_name(services.database, key, "", anonymous=True).shown
        expect(page.locator("#board th a")).to_have_text([shown, HOSTILE])
        expect(page.locator("main")).not_to_contain_text("ada")
    finally:
        choose_name(services.database, key, "", anonymous=False)
    assert complaints == []


def test_an_invited_person_sees_the_own_commands(
    page: Page, server: PageServer, run: FakeRun, complaints: list[str]
) -> None:
    """Behind the link, one in each tab, which the keyboard reaches; the code is in no address that the server gets."""
    code = run.services.membership.invite(HOSTILE + "2")[0]
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{server.url}join#invite={code}")
    command = page.locator("#invited-terminal")
    expect(command).to_contain_text(f"manyhands join '{run.directory.join_link}' --invite {code}")
    link, services = str(run.directory.join_link), run.services
    said = Invitation.of(code, "trainer", link, services.web_address, services.software_address)
    expect(command).to_have_text(said.one_line)
    page.get_by_role("tab", name="Terminal", exact=True).focus()
    for name, text in (("uv", said.with_uv), ("in_notebook", code), ("container", said.container)):
        page.keyboard.press("ArrowRight")
        expect(page.locator(f"#tab-{name}")).to_be_focused()
        expect(page.locator(f"#tab-{name}")).to_have_attribute("aria-selected", "true")
        expect(page.locator("[role=tabpanel]:visible code")).to_have_text(text)
    page.keyboard.press("ArrowRight")
    expect(page.locator("[role=tabpanel]:visible code")).to_have_text(said.one_line)
    page.keyboard.press("End")
    expect(page.locator("#way-container")).to_be_visible()
    page.locator("#tab-terminal").click()
    expect(page.locator("#way-container")).to_be_hidden()
    page.locator("#invited summary").click()
    expect(page.locator("#invited-qr path")).to_have_attribute("d", QrCode.of(said.page).path)
    expect(page.locator("#invited-text")).to_contain_text(HOSTILE + "2")
    assert page.locator("#invited img").count() == 0
    assert not any(code in url.split("#")[0] for url in asked)
    assert complaints == []


@pytest.mark.parametrize(("name", "is_open"), [("erin", True), ("finn", False)])
def test_nothing_moves_when_an_invitation_comes(
    page: Page, server: PageServer, run: FakeRun, name: str, is_open: bool
) -> None:
    """Before any module runs, the page behind an invite link waits; then it shows the rest below the invitation."""
    code = run.services.membership.invite(name)[0]
    if not is_open:
        run.services.membership.join(key_of(name).public_key, code)
    module, answer = Held(page, "**/join.js"), Held(page, "**/api/v1/invite")
    page.add_init_script(NOTE_VITALS)
    page.goto(f"{server.url}join#invite={code}", wait_until="commit")
    for held in (module, answer):
        expect(page.locator("#invited-title")).to_be_visible()
        expect(page.locator(".columns")).to_be_hidden()
        page.evaluate(DRAWN)
        held.release()
    expect(page.locator("#invited-how")).to_be_visible(visible=is_open)
    expect(page.locator(".columns")).to_be_visible()
    page.evaluate(DRAWN)
    assert page.evaluate("window.shifted") < LEAST_SHIFT
    page.evaluate("window.location.hash = ''")
    expect(page.locator("#invited")).to_be_hidden()
    expect(page.locator(".columns")).to_be_visible()


def test_nothing_moves_when_a_members_page_is_filled(page: Page, server: PageServer) -> None:
    """All of it comes at once, the curve as well."""
    curve = Held(page, "**/api/v1/curve?*")
    page.add_init_script(NOTE_VITALS)
    page.goto(f"{server.url}member?number=2")
    expect(page.locator("#state")).to_have_text("live")
    expect(page.locator("#member-loading")).to_be_visible()
    page.evaluate(DRAWN)
    curve.release()
    expect(page.locator("#own-curve svg")).to_be_visible()
    page.evaluate(DRAWN)
    assert page.evaluate("window.shifted") < LEAST_SHIFT


def test_a_used_or_unknown_code_shows_no_command(page: Page, server: PageServer, run: FakeRun) -> None:
    """It says what to do instead."""
    membership = run.services.membership
    code = membership.invite("dora")[0]
    membership.join(key_of("dora").public_key, code)
    page.goto(f"{server.url}join#invite={code}")
    expect(page.locator("#invited-text")).to_contain_text("used already")
    expect(page.locator("#invited-how")).to_be_hidden()
    page.goto(f"{server.url}join#invite=AAAAA-AAAAA-AAAAA-AAAAA")
    expect(page.locator("#invited-text")).to_contain_text("not known here")


def test_without_an_invite_the_page_says_how_to_join(page: Page, server: PageServer, run: FakeRun) -> None:
    """The command for this very run; what it uses; no buttons that lead nowhere."""
    page.goto(f"{server.url}join")
    expect(page.locator("#command")).to_contain_text(f"manyhands join '{run.directory.join_link}'")
    expect(page.locator("#invited")).to_be_hidden()
    expect(page.locator("#software")).to_have_text(run.services.software_address)
    expect(page.locator("#install")).to_have_text("\n".join(install_commands(run.services.software_address)))
    with page.expect_download() as download:
        page.locator("#notebook").click()
    assert download.value.suggested_filename == "join.ipynb"
    expect(page.locator("#colab")).to_have_count(0)
    expect(page.locator("#state-size, #step-time").first).to_be_attached()


def luminance(color: str) -> float:
    """The relative luminance of a color `#rrggbb` (WCAG 2.2)."""
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_color_of_hardware_stands_out() -> None:
    """Each has a contrast of 3 to 1 to the card in light and in dark, and no two are alike."""
    styles = [(WEB / name).read_text().split("prefers-color-scheme: dark", 1) for name in ("style.css", "people.css")]
    for scheme in (0, 1):
        sheet = "".join(style[scheme] for style in styles)
        [card] = re.findall(r"--card: (#\w{6});", sheet)
        colors = re.findall(r"--hardware-[a-z-]+: (#\w{6});", sheet)
        assert len(set(colors)) == len(HardwareClass)
        for color in colors:
            low, high = sorted([luminance(card), luminance(color)])
            assert (high + 0.05) / (low + 0.05) >= 3, color


VIEWS = {
    "participants": ("participants", "#timeline li"),
    "member": ("member?number=2", "#own-curve svg"),
    "join": ("join", "#command"),
}


@pytest.mark.parametrize("screen", SCREENS)
def test_no_view_has_a_barrier_or_is_wider_than_its_screen(
    browser: Browser, server: PageServer, run: FakeRun, screen: str
) -> None:
    """On each screen nothing scrolls sideways and axe-core finds no barrier; a picture of each view is kept."""
    with fresh_page(browser, **SCREENS[screen]) as page:
        for name, (path, ready) in VIEWS.items():
            page.goto(f"{server.url}{path}")
            expect(page.locator(ready).first).to_be_attached()
            width = SCREENS[screen]["viewport"]["width"]
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            keep_screenshot(page, f"{name}-{screen}")
            assert barriers(page) == [], name
        page.goto(f"{server.url}join#invite={run.services.membership.invite(screen)[0]}")
        page.locator("#invited summary").click()
        for way in ("container", "in_notebook", "terminal"):
            page.locator(f"#tab-{way}").click()
            assert page.evaluate("document.documentElement.scrollWidth") <= width, way
            keep_screenshot(page, f"invited-{way}-{screen}")
        assert barriers(page) == []


def test_long_words_of_other_languages_fit(browser: Browser, server: PageServer) -> None:
    """A small phone, in Spanish; the page says everything in that language."""
    with fresh_page(browser, **SCREENS["phone"]) as page:
        for path, ready in VIEWS.values():
            page.goto(f"{server.url}{path}{'&' if '?' in path else '?'}lang=es")
            expect(page.locator(ready).first).to_be_attached()
            assert page.evaluate("document.documentElement.scrollWidth") <= SCREENS["phone"]["viewport"]["width"]
        expect(page.locator("h1")).to_have_text("Participar")


def module(page: Page, server: PageServer, name: str, script: str) -> object:
    """What a function of one of the pages' modules gives: `script` is an expression over `m`."""
    page.goto(f"{server.url}join")
    return page.evaluate(f"async () => {{ const m = await import('{server.url}static/{name}'); return {script}; }}")


def test_bubbles_do_not_touch_and_areas_are_in_proportion(page: Page, server: PageServer) -> None:
    """A quarter of the samples is half the radius; nobody vanishes; however many there are, none lies on another."""
    assert module(page, server, "bubbles.js", "m.radii([100, 25, 0])") == [90, 45, pytest.approx(8.1)]
    items = "Array.from({ length: 120 }, (_, index) => ({ radius: 8 + ((index * 37) % 60) }))"
    circles = module(page, server, "bubbles.js", f"m.pack({items}, 2)")
    assert isinstance(circles, list)
    assert len(circles) == 120
    for place, one in enumerate(circles):
        for other in circles[:place]:
            assert math.hypot(one["x"] - other["x"], one["y"] - other["y"]) >= one["radius"] + other["radius"]


def test_nothing_was_in_the_future(page: Page, server: PageServer) -> None:
    """A clock that is behind the coordinator's does not read of what is yet to come."""
    assert module(page, server, "format.js", "[m.ago(1000, 996), m.ago(1000, 1003)]") == ["now", "3 sec. ago"]


def test_days_without_anything_are_empty_bars(page: Page, server: PageServer) -> None:
    """Between the first day and the last none is left out; of very many the newest are shown."""
    day = "{{ began_at: {at} * 86400, samples: 5, pending_samples: 0, lost: {{ late: 2 }} }}".format
    days = f"[{day(at=3)}, {day(at=6)}]"
    found = module(page, server, "day_bars.js", f"m.withoutHoles({days}).map((each) => each.samples)")
    assert found == [5, 0, 0, 5]
    assert module(page, server, "day_bars.js", f"m.withoutHoles({days}, 2).map((each) => each.samples)") == [0, 5]
    assert module(page, server, "day_bars.js", "m.withoutHoles([])") == []
    assert module(page, server, "day_bars.js", f"m.lostOf({day(at=1)})") == 2


def test_ones_own_part_of_the_curve_reaches_the_next_point(page: Page, server: PageServer) -> None:
    """So that a single step is a line, and not nothing."""
    curve = "{ step: [1, 2, 3, 5, 8], loss: [5, 4, 3, 2, 1] }"
    for ranges, places in (("[2, 3]", [1, 2, 3]), ("[8, 9]", [4]), ("[6, 7]", [])):
        assert module(page, server, "own_curve.js", f"m.within({curve}, {ranges})") == places
