"""The public pages as the server draws them: whole without a script, in the reader's language, kept by browsers."""

from __future__ import annotations

import threading
from html.parser import HTMLParser
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from coordinator.context.services import open_run_services
from coordinator.run.directory import RunDirectory
from coordinator.run.settings import Settings
from coordinator.web.app import create_app
from coordinator.web.http.answers import Encoded
from coordinator.web.pages import views
from coordinator.web.pages.views import LANGUAGE_COOKIE, VIEWS, View
from coordinator.web.state.snapshot import STALE_AFTER_S
from coordinator.web.state.web_state import WebState
from dashboards import page_version
from peer.config.run import RunConfig
from tests.support.clocks import Clock
from tests.support.served_page import FakeRun, fake_run
from tests.support.stores import put_tables
from tests.support.waiting import PATIENCE_S

MARKUP = '<script>alert(1)</script> & "more"'


@pytest.fixture
def run(run: FakeRun) -> FakeRun:
    """A run of three steps."""
    run.add_member("ada")
    run.add_steps([7.0, 6.0, 5.0])
    return run


class Loaded(HTMLParser):
    """What a page loads, apart from what it links to."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Note the addresses of one tag."""
        found = dict(attributes)
        if tag == "link" and found.get("rel") in {"stylesheet", "preload", "icon"}:
            self.found.add(found["href"] or "")
        elif tag in {"script", "img"} and found.get("src"):
            self.found.add(found["src"] or "")


def test_a_silent_keeper_is_told_before_any_script_runs(run: FakeRun, clock: Clock) -> None:
    """The banner is a part of the page, so that nothing moves when the first event comes."""
    banners = []
    for silent_s in (0.0, STALE_AFTER_S + 1):
        clock.now += silent_s
        with TestClient(create_app(WebState(run.directory, run.services))) as client:
            banners.append(client.get("/join").text.split('id="banner"')[1].split("</p>")[0])
    assert banners[0].endswith(" hidden>")
    assert "has sent no news for a while" in banners[1]
    assert "hidden" not in banners[1]


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_all_that_a_page_loads_is_there(client: TestClient, view: View) -> None:
    """Every file, from here; no address begins with a slash, so that the run may be served below any path."""
    loaded = Loaded(client.get(f"/{view.path}", params={"number": 1}).text).found
    assert {address.rsplit("/", 1)[-1] for address in loaded} >= {"frame.js", f"{view.name}.js", f"{view.name}.css"}
    for address in loaded:
        assert not address.startswith(("/", "http"))
        assert client.get(f"/{address}").status_code == 200, address


def test_a_page_never_says_that_there_is_nothing_where_there_is(client: TestClient, tmp_path: Path) -> None:
    """Rows and labels stand in the page before the script fills them; only missing data is explained."""
    empty, there = 'id="no-contributions" class="muted">', 'id="no-contributions" class="muted" hidden>'
    assert there in client.get("/").text
    assert '<span class="who">ada</span>' in client.get("/").text
    assert "Waiting for the first global step" not in client.get("/history").text
    with (
        fake_run(tmp_path / "empty", Clock()) as run,
        TestClient(create_app(WebState(run.directory, run.services))) as made,
    ):
        html = made.get("/").text
    assert empty in html
    assert html.count('class="facts" hidden') == 3


def test_what_people_wrote_is_escaped(tmp_path: Path) -> None:
    """A run's description that is markup stays text."""
    config = RunConfig.from_mapping({"run": {"name": "test-run", "description": MARKUP}})
    directory = RunDirectory.create(tmp_path / "run", config, Settings(bind_host="127.0.0.1"), prepare=put_tables)
    with (
        open_run_services(directory, Clock()) as services,
        TestClient(create_app(WebState(directory, services))) as made,
    ):
        html = made.get("/").text
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp;" in html
    assert "<script>" not in html


def test_the_language_that_was_chosen_is_kept(client: TestClient) -> None:
    """First the browser's, then the chosen one; one that is not there changes nothing."""
    assert '<html lang="es"' in client.get("/", headers={"Accept-Language": "es-AR"}).text
    chosen = client.get("/", params={"lang": "bn"})
    assert '<html lang="bn"' in chosen.text
    assert "HttpOnly" in chosen.headers["set-cookie"]
    assert "SameSite=lax" in chosen.headers["set-cookie"]
    assert client.cookies[LANGUAGE_COOKIE] == "bn"
    again = client.get("/", headers={"Accept-Language": "es-AR"})
    assert '<html lang="bn"' in again.text
    assert again.headers["vary"] == "Accept-Encoding, Accept-Language, Cookie"
    wrong = client.get("/", params={"lang": "xx"})
    assert "set-cookie" not in wrong.headers
    assert client.get("/", params={"lang": "x" * 100}).status_code == 422
    assert client.get("/", headers={"Cookie": f"{LANGUAGE_COOKIE}={'x' * 500}"}).status_code == 200


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("/nothing", ""),
        ("/some/thing/else", "../../"),
        ("/member", ""),
        ("/member?number=99", ""),
        ("/static/no.js", "../"),
    ],
)
def test_a_browser_gets_a_page_where_there_is_none(client: TestClient, path: str, root: str) -> None:
    """In its language, with the way back from any path, and nothing that would not load; status 404."""
    answer = client.get(path, headers={"Accept": "text/html,*/*;q=0.8", "Accept-Language": "es"})
    assert answer.status_code == 404
    assert '<html lang="es"' in answer.text
    assert "No hay ninguna página en esta dirección." in answer.text
    assert f'<a href="{root}./">Volver al resumen</a>' in answer.text
    loaded = Loaded(answer.text).found
    assert {address.rsplit("/", 1)[-1] for address in loaded} == {"icon.svg", "style.css"}
    for address in loaded:
        assert client.get(str(answer.url.join(address))).status_code == 200
    assert '<html lang="bn"' in client.get(path, params={"lang": "bn"}, headers={"Accept": "text/html"}).text


DEEP = "/x" * 17


@pytest.mark.parametrize("path", ["/api/v1/nothing", "/api/v1/participants/99", "/nothing", "/member?number=99", DEEP])
def test_a_program_gets_json_where_there_is_nothing(client: TestClient, path: str) -> None:
    """The API always, elsewhere who does not ask for a page, or asks so deep that the page's links would be long."""
    accepted = "text/html" if path == DEEP or path.startswith("/api/") else "*/*"
    answer = client.get(path, headers={"Accept": accepted})
    assert answer.status_code == 404
    assert answer.json().keys() == {"detail"}


@pytest.mark.parametrize("number", ["", "0", "-1", "1.5", "x", "²", "9999999999", "9" * 40])
def test_what_is_no_members_number_has_no_page(client: TestClient, number: str) -> None:
    """However it is written."""
    assert client.get("/member", params={"number": number}, headers={"Accept": "text/html"}).status_code == 404


def test_files_of_this_version_are_kept_for_ever(client: TestClient) -> None:
    """Their address changes with them; of another version, or of none, browsers ask again."""
    kept = client.get(f"/static/{page_version()}/frame.js")
    assert "immutable" in kept.headers["cache-control"]
    for address in ("/static/frame.js", "/static/0123456789ab/frame.js"):
        assert client.get(address).headers["cache-control"] == "no-cache"
        assert client.get(address).content == kept.content
    assert "immutable" in client.get(f"/plotly.min.js?{page_version()}").headers["cache-control"]


class WatchedLock:
    """A lock that tells of the second who asks for it."""

    def __init__(self, second: threading.Event) -> None:
        self._lock = threading.Lock()
        self._second = second

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._second.set()
            self._lock.acquire()

    def __exit__(self, *_raised: object) -> None:
        self._lock.release()


def test_the_charts_are_compressed_once_for_all_who_ask_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks while another's request compresses them waits for that."""
    begun: list[str] = []
    second_came = threading.Event()
    later = threading.Thread(target=views.plotly_script)

    def compress(_content: bytes, media_type: str) -> Encoded:
        begun.append(media_type)
        if len(begun) == 1:
            later.start()
            assert second_came.wait(PATIENCE_S)  # to the lock, or to this function
        second_came.set()
        return Encoded(b"", media_type, "", None)

    views.compressed_plotly.cache_clear()
    monkeypatch.setattr(views, "_COMPRESSING", WatchedLock(second_came))
    monkeypatch.setattr(views, "encode", compress)
    try:
        views.plotly_script()
        later.join()
    finally:
        views.compressed_plotly.cache_clear()
    assert len(begun) == 1
