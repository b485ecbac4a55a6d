"""Requests over HTTP against a real server: what is taken, and which sentence says what is not."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pytest

from auth.errors import UnreachableError
from peer.network.http import asking, beginning, download, fetch, reaching
from tests.support.web_files import WebFiles, serve_files

CONTENT = bytes(range(256)) * 1024


@pytest.fixture
def web() -> Iterator[WebFiles]:
    """A server with one file."""
    with serve_files() as served:
        served.files["file"] = CONTENT
        yield served


def test_a_file_comes_whole_and_in_pieces(web: WebFiles) -> None:
    """Also from another address than the one that was asked."""
    web.redirects["moved"] = web.url("file")
    assert fetch(web.url("moved")) == b"".join(download(web.url("file"), len(CONTENT))) == CONTENT


def test_this_machine_is_asked_without_a_proxy(web: WebFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment says; others are asked by the proxy, which is not there."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert fetch(web.url("file")) == CONTENT
    assert fetch(web.url("file").replace("127.0.0.1", "localhost")) == CONTENT
    with pytest.raises(UnreachableError, match="does not answer"):
        fetch("http://192.0.2.1/file")


def test_no_more_than_is_allowed_is_taken(web: WebFiles) -> None:
    """Of a whole answer nothing, of its beginning so much."""
    with pytest.raises(UnreachableError, match=f"file answers more than the {len(CONTENT) - 1} bytes"):
        fetch(web.url("file"), len(CONTENT) - 1)
    with asking("GET", web.url("file")) as answer:
        assert beginning(answer, 100) == CONTENT[:100]


def test_nothing_is_unpacked(web: WebFiles) -> None:
    """A small answer stays small, whatever the server says of it."""
    web.files["packed"] = gzip.compress(CONTENT)
    web.encodings["packed"] = "gzip"
    assert fetch(web.url("packed"), len(web.files["packed"])) == web.files["packed"]


def test_each_failure_is_one_sentence(web: WebFiles) -> None:
    """No such file, an end in the middle, a circle, nobody there, no address."""
    web.cut["file"] = 1
    web.redirects["circle"] = web.url("circle")
    for url, says in (
        (web.url("none"), "none answers 404: check the address"),
        (web.url("file"), "file does not answer"),
        (web.url("circle"), "circle does not answer"),
        ("http://127.0.0.1:1/x", "x does not answer"),
        ("http://", "http:// does not answer"),
        ("http://host:port/", "does not answer"),
        ("ftp://host/", "does not answer"),
    ):
        with pytest.raises(UnreachableError, match=says):
            fetch(url)


def test_a_server_that_says_nothing_is_given_up(web: WebFiles) -> None:
    """After the time that a step may take."""
    web.stalled.add("file")
    url = web.url("file")
    with (
        pytest.raises(UnreachableError, match="does not answer"),
        reaching(url),
        asking("GET", url, timeout_s=0.01) as answer,
    ):
        beginning(answer, 1)


def test_the_environments_proxy_is_used(web: WebFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its exceptions; a kind of proxy that cannot be used is said."""
    monkeypatch.setenv("http_proxy", web.address)
    web.files["http://elsewhere.invalid/x"] = b"by the proxy"
    assert fetch("http://elsewhere.invalid/x") == b"by the proxy"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert fetch(web.url("file")) == CONTENT
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:1")
    with pytest.raises(UnreachableError, match="does not answer"):
        fetch("http://elsewhere.invalid/x")
