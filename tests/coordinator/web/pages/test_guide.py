"""The guide is served as it was built: nothing beside it, and under a policy of its own."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from coordinator.web.app import create_app
from coordinator.web.http.headers import HEADERS
from coordinator.web.http.site import Guide
from coordinator.web.state.web_state import WebState
from tests.support.served_page import FakeRun

START, SCRIPT = "<title>Start</title><script>begin()</script>", "assets/bundle.0123abcd.min.js"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The folder of a small site, and a file beside it."""
    folder = tmp_path / "guide"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text(START)
    (folder / "volunteers.html").write_text('<script id="__config" type="application/json">{}</script>')
    (folder / SCRIPT).write_text("0")
    (tmp_path / "secret.html").write_text("secret")
    return folder


@pytest.fixture
def client(run: FakeRun, site: Path) -> Iterator[TestClient]:
    """A run whose coordinator has the site."""
    with TestClient(create_app(WebState(run.directory, run.services, guide=Guide(site)))) as made:
        yield made


def test_the_guide_begins_at_its_address(client: TestClient) -> None:
    """With and without the slash; relative, so that the run may be served below any path."""
    assert client.get("/guide", follow_redirects=False).headers["location"] == "guide/"
    assert client.get("/guide").text == START
    assert client.get("/guide/volunteers.html").headers["content-type"] == "text/html; charset=utf-8"


def test_pages_are_asked_for_again_and_hashed_files_are_kept(client: TestClient) -> None:
    """A page that has not changed is not sent twice; a file whose name changes with its content is kept for ever."""
    page = client.get("/guide/")
    assert page.headers["cache-control"] == "no-cache"
    assert client.get("/guide/", headers={"If-None-Match": page.headers["etag"]}).status_code == 304
    assert "immutable" in client.get(f"/guide/{SCRIPT}").headers["cache-control"]


@pytest.mark.parametrize(
    "name", ["secret.html", "..%2Fsecret.html", "assets/..%2f..%2Fsecret.html", "assets", "%2e%2e/secret.html"]
)
def test_nothing_beside_the_site_is_served(client: TestClient, name: str) -> None:
    """Neither a path that leads out nor a folder is a page of the guide."""
    response = client.get(f"/guide/{name}")
    assert response.status_code == 404
    assert "secret" not in response.text


def test_only_the_sites_own_scripts_may_run(client: TestClient) -> None:
    """The policy names the scripts inside the pages by their hashes, allows none else, and no other host."""
    digest = base64.b64encode(hashlib.sha256(b"begin()").digest()).decode()
    headers = client.get("/guide/").headers
    assert f"script-src 'self' 'sha256-{digest}';" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert "http" not in headers["content-security-policy"]
    assert headers.items() >= HEADERS.items()
    assert client.get("/").headers["content-security-policy"] != headers["content-security-policy"]


def test_the_footer_leads_to_the_guide_where_there_is_one(client: TestClient, run: FakeRun, tmp_path: Path) -> None:
    """Without a built site there is no link, and its address says how to build one."""
    assert '<a href="guide/">Guide</a>' in client.get("/").text
    with TestClient(create_app(WebState(run.directory, run.services, guide=Guide(tmp_path / "none")))) as bare:
        assert "guide/" not in bare.get("/").text
        assert bare.get("/guide").json()["detail"].startswith("This installation has no guide")
