"""Administration over the web: who may, from where, by whose form; and the pages in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from html import unescape
from typing import Any

import pytest
from argon2 import PasswordHasher
from fastapi.testclient import TestClient
from playwright.sync_api import Page, expect

from auth.errors import ConfigError
from coordinator.members.administrators import Administrators
from coordinator.members.audit import audit_log
from coordinator.members.join_page import Invitation, QrCode
from coordinator.members.names import display_names
from coordinator.members.quarantine import SuspicionReport, hear
from coordinator.statistics.alarms import MODEL_KINDS, Alarm, write_alarms
from coordinator.web.app import create_app
from coordinator.web.http.login import TRIES_PER_MINUTE
from coordinator.web.state.web_state import WebState
from tests.support.browser import barriers, chromium, fresh_page, keep_screenshot
from tests.support.receipts import key_of
from tests.support.served_page import FakeRun, PageServer
from tests.support.waiting import wait_until

PASSWORD = "correct horse battery"
HTTPS = "https://run.example.org"
HOSTILE = "<img src=x onerror=alert(1)>"
TABLES_FIT = "[...document.querySelectorAll('.scroll')].every((each) => each.scrollWidth <= each.clientWidth)"
PAGES = (
    "/admin",
    "/admin/devices",
    "/admin/quarantine",
    "/admin/checkpoints",
    "/admin/steering",
    "/admin/refusals",
    "/admin/audit",
)
ACTS = ("invite", "revoke", "revoke-device", "quarantine", "lift", "display-name", "hide-name", "erase")


@pytest.fixture
def run(run: FakeRun) -> FakeRun:
    """A run with an administrator and two members, one with a hostile name."""
    quick = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    Administrators(run.services.database, hasher=quick).set_password("grace", PASSWORD)
    run.add_member("ada")
    run.add_member(HOSTILE)
    return run


@pytest.fixture
def client(run: FakeRun) -> Iterator[TestClient]:
    """A browser's requests over HTTPS, not logged in."""
    app = create_app(WebState(run.directory, run.services))
    with TestClient(app, base_url=HTTPS, follow_redirects=False, headers={"origin": HTTPS}) as made:
        yield made


@pytest.fixture
def csrf(client: TestClient) -> str:
    """Log in; returns what forms must bring along."""
    assert log_in(client).status_code == 303
    return client.get("/admin").text.split('name="csrf" value="')[1].split('"')[0]


def log_in(client: TestClient, password: str = PASSWORD, **headers: str) -> Any:
    return client.post("/admin/login", data={"name": "grace", "password": password}, headers=headers)


def test_nothing_is_shown_or_done_without_a_login(client: TestClient, run: FakeRun) -> None:
    """Pages send to the form, and no act is done."""
    for path in PAGES:
        answer = client.get(path)
        assert (answer.status_code, answer.headers["location"]) == (303, "/admin/login")
    for act in ACTS:
        assert client.post(f"/admin/{act}", data={"name": "ada", "confirmation": "ada"}).status_code == 401
    assert audit_log(run.services.database, 10) == []


def test_a_page_that_there_is_not_leads_back(client: TestClient) -> None:
    """To a browser as a page, which says nothing that a login would be needed for."""
    answer = client.get("/admin/nothing", headers={"accept": "text/html"})
    assert answer.status_code == 404
    assert 'href="/admin"' in answer.text
    assert "csrf" not in answer.text


def test_the_cookie_is_the_servers_alone(client: TestClient) -> None:
    """Over HTTPS no script, no other site, no other host and no plain connection ever gets it."""
    cookie = log_in(client).headers["set-cookie"]
    assert cookie.startswith("__Host-manyhands-admin=")
    assert {"HttpOnly", "Secure", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert "Domain" not in cookie


@pytest.mark.usefixtures("no_patience")
def test_a_wrong_password_and_too_many_are_refused(client: TestClient) -> None:
    """Both in the same words whoever is named, and soon not at all."""
    wrong = log_in(client, "wrong")
    unknown = client.post("/admin/login", data={"name": "nobody", "password": "wrong"})
    assert (wrong.status_code, wrong.text) == (unknown.status_code, unknown.text)
    assert "wrong" in wrong.text
    answers = [log_in(client, "wrong").status_code for _ in range(TRIES_PER_MINUTE)]
    assert answers[-1] == 429
    assert log_in(client).status_code == 429


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://run.example.org", ""])
def test_another_pages_forms_do_nothing(client: TestClient, csrf: str, run: FakeRun, origin: str) -> None:
    """Even with the right second token: who sends is not ours. The login's own form is no exception."""
    for act in (*ACTS, "logout"):
        answer = client.post(f"/admin/{act}", data={"name": "ada", "csrf": csrf}, headers={"origin": origin})
        assert answer.status_code == 403
    assert log_in(client, origin=origin).status_code == 403
    assert audit_log(run.services.database, 10) == []


def test_a_form_without_its_token_does_nothing(client: TestClient, csrf: str, run: FakeRun) -> None:
    """None, an empty one, another's: 403; no form at all: 400."""
    for data in ({"name": "ada"}, {"name": "ada", "csrf": ""}, {"name": "ada", "csrf": csrf[:-1]}):
        assert client.post("/admin/revoke", data=data).status_code == 403
    assert client.post("/admin/revoke", content=b"\xff\xfe").status_code == 400
    assert client.post("/admin/revoke", content=b"&".join([b"a=b"] * 5000)).status_code == 400
    assert audit_log(run.services.database, 10) == []


def test_plain_http_is_for_this_machine_only(run: FakeRun) -> None:
    """No password and no cookie crosses a network in the open."""
    app = create_app(WebState(run.directory, run.services))
    for address, status in (("127.0.0.1", 200), ("::1", 200), ("192.0.2.1", 403), ("testclient", 403)):
        with TestClient(app, base_url="http://run.example.org", client=(address, 50_000)) as client:
            assert client.get("/admin/login").status_code == status


def test_a_proxy_on_this_machine_is_not_this_machine(run: FakeRun) -> None:
    """Plain HTTP that a proxy passes on came over a network, whoever the proxy is."""
    app = create_app(WebState(run.directory, run.services))
    with TestClient(app, client=("127.0.0.1", 50_000)) as client:
        assert client.get("/admin/login", headers={"x-forwarded-for": "127.0.0.1"}).status_code == 403


def test_a_name_made_to_mean_this_machine_reaches_no_form(run: FakeRun) -> None:
    """A page whose name now means the coordinator's machine (DNS rebinding) is refused, here as everywhere."""
    app = create_app(WebState(run.directory, run.services))
    with TestClient(app, base_url="http://evil.example", client=("127.0.0.1", 50_000)) as client:
        assert client.get("/admin/login").status_code == client.get("/healthz").status_code == 421


def test_members_are_changed_by_forms(client: TestClient, csrf: str, run: FakeRun) -> None:
    """Invite, public name, revocation and erasure, each on record under the administrator's name."""

    def post(act: str, **fields: str) -> Any:
        return client.post(f"/admin/{act}", data=fields | {"csrf": csrf})

    def public_name() -> str | None:
        return display_names(run.services.database).get("ada")

    assert re.search(r"(?:[0-9A-Z]{5}-){3}[0-9A-Z]{5}", post("invite", name="joan", role="trainer", days="7").text)
    assert post("display-name", name="ada", display_name="Owl").headers["location"] == "/admin"
    assert public_name() == "Owl"
    post("hide-name", name="ada", hidden="yes")
    assert str(public_name()).startswith("Anonymous ")
    post("hide-name", name="ada", hidden="no")
    assert public_name() == "Owl"
    assert "lists what there is." in post("revoke-device", name=HOSTILE, device=run.devices["ada"]).text
    post("revoke", name="ada", reason="why")
    for act, fields, reason in (
        ("erase", {"name": "ada", "confirmation": "adam"}, "type exactly the same name again"),
        ("revoke", {"name": "eve"}, "No member is called"),
        ("invite", {"name": "joan", "role": "admin", "days": "7"}, "cannot be invited"),
        ("invite", {"name": "joan", "role": "trainer", "days": "1e9"}, "valid for up to"),
        ("invite", {"name": "joan", "role": "trainer", "days": "soon"}, "days must be a number"),
    ):
        answer = post(act, **fields)
        assert (answer.status_code, reason in answer.text) == (400, True)
    assert post("erase", name="ada", confirmation="ada").status_code == 303
    names = {row.name for row in run.services.membership.members()}
    assert ("joan" in names, "ada" in names) == (True, False)
    rows = audit_log(run.services.database, 20)[::-1]
    assert {row.actor for row in rows} == {"web:grace"}
    acts = ["invite", "display-name", "hide-name", "show-name", "revoke-device", "revoke", "revoke", "invite", "invite"]
    assert [row.act for row in rows] == [*acts, "erase"]
    refused = [row.detail.startswith("refused: ") for row in rows]
    assert refused == [False] * 4 + [True, False] + [True] * 3 + [False]


def test_an_invitation_shows_every_way_to_join(client: TestClient, csrf: str, run: FakeRun) -> None:
    """The lines of the join page for a terminal, uv and a container, the page's address, and its QR code."""
    fields = {"name": "joan", "role": "trainer", "days": "7", "csrf": csrf}
    text = client.post("/admin/invite", data=fields).text
    code = re.search(r'<code id="code">([^<]*)</code>', text)
    assert code is not None
    link, services = str(run.directory.join_link), run.services
    said = Invitation.of(code[1], "trainer", link, services.web_address, services.software_address)
    shown = [unescape(part) for part in re.findall(r"<code[^>]*>([^<]*)</code>", text)]
    for line in (said.code, said.page, said.one_line, said.with_uv, said.container, said.command):
        assert line in shown
    assert f'<path d="{QrCode.of(said.page).path}" />' in text


def test_members_are_searched_and_paged(client: TestClient, csrf: str, run: FakeRun) -> None:
    """By a text that stays text, in pages of fifty; nonsense in the address is the list's beginning."""
    for number in range(60):
        run.services.membership.invite(f"helper {number:02}")
    first = client.get("/admin", params={"search": "HELPER"}).text
    assert ("helper 49" in first, "helper 50" in first, "<h3>ada</h3>" in first) == (True, False, False)
    address = re.search(r'href="(/admin\?[^"]*)" rel="next"', first)
    assert address is not None
    second = client.get(address[1].replace("&amp;", "&")).text
    assert ("helper 49" in second, "helper 59" in second, 'rel="next"' in second) == (False, True, False)
    for page in ("x", "-1", "0", "²", "9" * 30):
        assert "<h3>ada</h3>" in client.get("/admin", params={"page": page}).text
    for path in ("/admin", "/admin/devices", "/admin/refusals", "/admin/audit"):
        none = client.get(path, params={"search": HOSTILE + "\0?"})
        assert (none.status_code, "Nothing contains" in none.text, HOSTILE in none.text) == (200, True, False)
        assert "There is nothing on this page." in client.get(path, params={"page": 10_000}).text
        assert client.get(path, params={"search": "x" * 5000}).status_code == 200


def test_members_are_listed_with_their_contributions(client: TestClient, csrf: str, run: FakeRun) -> None:
    """Under the name that the administrator knows, also where the public sees another."""
    assert client.get("/admin").text.count("No contribution yet.") == 2
    run.add_step(1, 5.0)
    client.post("/admin/display-name", data={"name": "ada", "display_name": "Owl", "csrf": csrf})
    page = client.get("/admin", params={"search": "owl"}).text
    assert "<h3>ada</h3>" in page
    assert re.search(r"51 samples confirmed.*?hours of training", page, re.DOTALL)
    assert page.count("<h3>") == 1


def test_refusals_say_who_was_refused_and_why(client: TestClient, csrf: str, run: FakeRun) -> None:
    """A device by its member, with a link to it; a stranger as unknown; and each can be searched for."""
    membership = run.services.membership
    membership.record_refusal("join", ConfigError(f"No such code {HOSTILE}."))
    membership.record_refusal("report", ConfigError("The step is not plausible."), run.devices["ada"])
    page = client.get("/admin/refusals").text
    assert f'search={run.devices["ada"]}">ada, {run.devices["ada"][:8]}</a>' in page
    assert "unknown" in page
    assert HOSTILE not in page
    for search, told in (("ADA", "plausible"), (run.devices["ada"][:8], "plausible"), ("such code", "unknown")):
        found = client.get("/admin/refusals", params={"search": search}).text
        assert told in found
        assert found.count("<tr>") == 2  # the head, and one row
    link = re.search(r'href="(/admin/devices[^"]*)"', client.get("/admin/refusals", params={"search": "ada"}).text)
    assert link is not None
    assert "Revoke " + run.devices["ada"][:8] in client.get(link[1].replace("&amp;", "&")).text


def test_names_are_text_and_pages_are_not_kept(client: TestClient, csrf: str) -> None:
    """A hostile name is escaped; no cache keeps a page, no script may run on it, nobody may frame it."""
    for path in PAGES:
        answer = client.get(path)
        assert answer.status_code == 200
        assert HOSTILE not in answer.text
        assert answer.headers["cache-control"] == "no-store"
        policy = answer.headers["content-security-policy"]
        assert "script-src" not in policy
        assert "default-src 'none'" in policy
        assert "form-action 'self'" in policy


def test_a_device_is_revoked_on_its_page(client: TestClient, csrf: str, run: FakeRun) -> None:
    """The form leads back to the member's devices; a mistake is told there; the member stays."""
    device = run.devices["ada"]
    wrong = client.post("/admin/revoke-device", data={"name": "ada", "device": "0", "csrf": csrf})
    assert (wrong.status_code, "too short" in wrong.text) == (400, True)
    answer = client.post("/admin/revoke-device", data={"name": "ada", "device": device, "reason": "lost", "csrf": csrf})
    assert (answer.status_code, answer.headers["location"]) == (303, "/admin/devices?member=ada")
    page = client.get(answer.headers["location"]).text
    assert device[:8] in page
    assert "Revoked" in page
    assert "lost" in page
    assert run.devices[HOSTILE][:8] not in page
    assert [row.revoked_at for row in run.services.membership.members()] == [None, None]


def test_a_device_is_quarantined_and_released_on_its_pages(client: TestClient, csrf: str, run: FakeRun) -> None:
    """Its page says so, the list of quarantines shows who did it and lifts it, and each act is on record."""
    device = run.devices["ada"]
    form = {"name": "ada", "device": device, "csrf": csrf}
    services = run.services
    hear(
        services.database,
        services.quarantine,
        SuspicionReport(key_of("ada").peer_id, "step", 7, HOSTILE),
        run.devices[HOSTILE],
        services.clock(),
    )
    answer = client.post("/admin/quarantine", data=form | {"reason": "overheats"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/admin/devices?member=ada")
    assert re.search(r"quarantine.*overheats", client.get(answer.headers["location"]).text, re.DOTALL)
    listed = client.get("/admin/quarantine").text
    assert "By web:grace" in listed
    assert "(step 7)" in listed
    assert HOSTILE not in listed
    assert run.devices[HOSTILE][:8] not in listed
    lifted = client.post("/admin/lift", data=form)
    assert (lifted.status_code, lifted.headers["location"]) == (303, "/admin/quarantine")
    assert "No device is in quarantine" in client.get("/admin/quarantine").text
    again = client.post("/admin/lift", data=form)
    assert (again.status_code, "no such device in quarantine" in again.text) == (400, True)
    acts = [row.act for row in audit_log(run.services.database, 9)]
    assert acts == ["lift-quarantine", "lift-quarantine", "quarantine"]


def test_going_back_takes_the_step_twice(client: TestClient, csrf: str, run: FakeRun) -> None:
    """The page shows who contributed since, and undoes nothing without a checkpoint and a confirmation."""
    run.add_step(1, 5.0)
    run.add_step(2, 5.0)
    page = client.get("/admin/checkpoints?step=1").text
    assert "Go back to step 1" in page
    assert HOSTILE not in page
    for form, reason in (
        ({"step": "1", "confirmation": "2"}, "type its step again"),
        ({"step": "-1", "confirmation": "-1"}, "type its step again"),
        ({"step": "1", "confirmation": "1"}, "no checkpoint of step 1"),
    ):
        answer = client.post("/admin/rewind", data=form | {"csrf": csrf})
        assert (answer.status_code, reason in answer.text) == (400, True)
    assert client.post("/admin/rewind", data={"step": "1", "confirmation": "1"}).status_code == 403
    suspects = {f"suspect-{number:032x}": "on" for number in range(500)}
    answer = client.post("/admin/rewind", data={"step": "1", "confirmation": "1", "csrf": csrf} | suspects)
    assert "no checkpoint of step 1" in answer.text
    assert run.services.ledger.current_era() == 0


def test_an_alarm_leads_to_the_checkpoint_from_before(client: TestClient, csrf: str, run: FakeRun) -> None:
    """By a link to the form; where none is old enough, the page says so."""
    for step in (40, 50):
        run.add_checkpoint(step)
    alarms = [Alarm("loss_diverges", 45, "the loss is 9"), Alarm("update_norm", 30, "step 30 moved the parameters")]
    run.services.database.transact(lambda session: write_alarms(session, MODEL_KINDS, alarms, 1.0))
    link = '<a href="/admin/checkpoints?step=40">go back to step 40</a>'
    wait_until("the page has both alarms", lambda: client.get("/admin/checkpoints").text.count(link) == len(alarms))
    page = client.get("/admin/checkpoints").text
    assert f"<p>{link}</p>" in page
    assert f"No sound checkpoint precedes the alarm. The oldest sound one: {link}" in page


def test_the_run_is_steered(client: TestClient, csrf: str, run: FakeRun) -> None:
    """What cannot be is refused in words, and every act is on record."""
    run.add_step(1, 5.0)
    assert client.post("/admin/steer", data={"act": "pause", "csrf": csrf}).headers["location"] == "/admin/steering"
    assert "Paused." in client.get("/admin/steering").text
    again = client.post("/admin/steer", data={"act": "pause", "csrf": csrf})
    assert (again.status_code, "paused already" in again.text) == (400, True)
    assert client.post("/admin/steer", data={"act": "resume", "csrf": csrf}).status_code == 303
    change = {"act": "change", "step": "9", "learning_rate_scale": "0.5", "target_batch_size": "", "csrf": csrf}
    assert client.post("/admin/steer", data=change).status_code == 303
    assert client.post("/admin/steer", data=change | {"step": "soon"}).status_code == 400
    code = {"step": "10", "compression": "8bit-blockwise", "powersgd_rank": "0"}
    assert client.post("/admin/steer", data=change | code).status_code == 303
    assert client.post("/admin/steer", data={"act": "announce", "text": HOSTILE, "csrf": csrf}).status_code == 303
    page = client.get("/admin/steering").text
    assert "From step 9 on: learning rate times 0.5." in page
    assert "From step 10 on: learning rate times 0.5, compression 8bit-blockwise, PowerSGD rank 0." in page
    assert HOSTILE not in page
    assert client.post("/admin/steer", data={"act": "pause"}).status_code == 403
    assert client.post("/admin/steer", data={"act": "sink", "csrf": csrf}).status_code == 400
    acts = [row.act for row in audit_log(run.services.database, 9)]
    assert acts == ["steer"] * 5


def test_a_change_far_from_what_holds_is_confirmed_on_the_page(client: TestClient, csrf: str, run: FakeRun) -> None:
    """The page says what the change would do, in the command's words, and a second form does it."""
    change = {"act": "change", "learning_rate_scale": "1000", "target_batch_size": "", "csrf": csrf}
    asked = client.post("/admin/steer", data=change)
    assert asked.status_code == 409
    assert "The next steps would be 1,000 times as long as now: the loss most likely diverges." in asked.text
    assert "--yes" not in asked.text
    assert client.get("/admin/steering").text.count("learning rate times") == 0
    second = asked.text.split('aria-labelledby="asked-title"')[1].split("</form>")[0]
    fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', second))
    assert fields == {"csrf": csrf, "confirmed": "yes", "act": "change", "learning_rate_scale": "1000"}
    assert client.post("/admin/steer", data=fields).status_code == 303
    assert "learning rate times 1000" in client.get("/admin/steering").text


def test_logging_out_ends_the_login_on_the_server(client: TestClient, csrf: str) -> None:
    """A copy of the cookie is worth nothing afterwards."""
    cookies = dict(client.cookies)
    assert client.post("/admin/logout", data={"csrf": csrf}).headers["location"] == "/admin/login"
    client.cookies.update(cookies)
    assert client.get("/admin").headers["location"] == "/admin/login"


def width(page: Page) -> int:
    """The page's, with its style: a click is over before that has come."""
    page.wait_for_load_state()
    return int(page.evaluate("document.documentElement.scrollWidth"))


@pytest.mark.thorough
def test_a_person_administers_the_run_in_a_browser(run: FakeRun) -> None:
    """From login to invitation, revocation and erasure on a phone's screen, with nothing blocked or cut off."""
    complaints: list[str] = []
    for suspect in (None, run.devices["ada"]):
        run.services.membership.record_refusal("join", ConfigError("The step is not plausible, at all."), suspect)
    with (
        closing(PageServer(run)) as server,
        chromium() as browser,
        fresh_page(browser, complaints, viewport={"width": 360, "height": 740}) as page,
    ):
        page.goto(f"{server.url}admin")
        page.get_by_label("Name").fill("grace")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("heading", name=HOSTILE)).to_be_visible()
        page.get_by_label("Name", exact=True).fill("joan")
        page.get_by_role("button", name="Make an invite code").click()
        expect(page.locator("#code")).to_have_text(re.compile(r"(?:\w{5}-){3}\w{5}"))
        page.get_by_text("QR code of the page").click()
        expect(page.locator(".qr svg")).to_be_visible()
        assert barriers(page) == []
        keep_screenshot(page, "admin-invited-phone")
        page.get_by_text("Container", exact=True).click()
        expect(page.locator("#invited-container")).to_contain_text("docker run")
        expect(page.locator("li", has_text="Change joan")).to_contain_text("1 open invite, last seen never.")
        assert width(page) <= 360
        page.locator("li", has_text="Change ada").get_by_role("link", name="1 device").click()
        page.locator("summary", has_text="Quarantine").click()
        page.locator("details[open]").get_by_label("Reason").fill("overheats")
        page.get_by_role("button", name="Cut this device off until you lift it").click()
        expect(page.get_by_text("overheats")).to_be_visible()
        page.get_by_role("link", name="Quarantine").first.click()
        expect(page.get_by_role("button", name="Lift the quarantine")).to_be_visible()
        assert width(page) <= 360
        page.get_by_role("button", name="Lift the quarantine").click()
        expect(page.get_by_text("No device is in quarantine.")).to_be_visible()
        page.get_by_role("link", name="Members").click()
        page.locator("li", has_text="Change ada").get_by_role("link", name="1 device").click()
        page.locator("summary", has_text="Revoke").click()
        page.locator("details[open]").get_by_label("Reason").fill("stolen")
        assert width(page) <= 360
        page.get_by_role("button", name="Revoke this device for good").click()
        expect(page.get_by_text("stolen")).to_be_visible()
        page.get_by_role("link", name="Members").click()
        page.get_by_text("Change ada").click()
        page.locator("details[open]").get_by_label("Reason").fill("sends garbage")
        page.locator("details[open]").get_by_role("button", name="Revoke").click()
        expect(page.get_by_text("sends garbage")).to_be_visible()
        page.get_by_text("Change ada").click()
        page.locator("details[open]").get_by_label("To erase").fill("ada")
        page.locator("details[open]").get_by_role("button", name="Erase").click()
        expect(page.get_by_role("heading", name=re.compile("erased-"))).to_be_visible()
        page.get_by_role("link", name="Audit log").click()
        expect(page.get_by_role("row", name="web:grace erase")).to_be_visible()
        page.get_by_label("Search").fill("nobody has done this")
        page.get_by_role("button", name="Search").click()
        expect(page.get_by_text("Nothing contains")).to_be_visible()
        assert width(page) <= 360
        for path in PAGES:
            page.goto(f"{server.url}{path.lstrip('/')}")
            assert barriers(page) == [], path
            assert width(page) <= 360, path
            assert page.evaluate(TABLES_FIT), path
            keep_screenshot(page, f"admin{path.removeprefix('/admin').replace('/', '-')}-phone")
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    assert complaints == []
