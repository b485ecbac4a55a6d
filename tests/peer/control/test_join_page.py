"""The address of an invitation's page in place of a join link: what it leads to, and which addresses are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from auth.errors import LinkError, UnreachableError
from auth.join_link import JoinLink
from peer.control.join_page import API, MAX_ANSWER_BYTES, parse_page, read_link
from tests.support.web_files import WebFiles, serve_files

LINK = JoinLink("example.org", 7443, "demo", "ab" * 32)
CODE = "7K2QM-AAAAA-BBBBB-CCCCC"
ASKED = API.lstrip("/")


@pytest.fixture
def site() -> Iterator[WebFiles]:
    """The web port of a run on this machine."""
    with serve_files() as served:
        served.files[ASKED] = json.dumps({"run": "demo", "join_link": str(LINK), "more": 1}).encode()
        yield served


@pytest.mark.parametrize("page", ["join", "join/", "join?lang=es"])
def test_a_pages_address_leads_to_the_join_link(site: WebFiles, page: str) -> None:
    """With the code behind the #, or without one; a join link stays what it is, and nobody is asked."""
    assert read_link(f" {site.url(page)}#invite={CODE}\n") == (LINK, CODE)
    assert read_link(site.url(page)) == (LINK, "")
    assert read_link(str(LINK)) == (LINK, "")


def test_the_code_stays_out_of_what_is_asked() -> None:
    """The site has neither the query nor what stands behind the #; it may lie below a path."""
    for page in ("https://run.example/here/join?lang=bn", "HTTPS://run.example/here/join/"):
        assert parse_page(f"{page}#invite={CODE}") == ("https://run.example/here", CODE)
    assert parse_page(f"https://[2001:db8::1]:8443/join#invite={CODE}&x=1") == ("https://[2001:db8::1]:8443", CODE)


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("http://run.example/join", "without encryption.*join link that the page shows"),
        ("http://192.168.1.5:8080/join", "without encryption"),
        ("http://127.0.0.1.example.org/join", "without encryption"),
        ("https://run.example/", "nor the address of a run's page"),
        ("https:///join", "nor the address of a run's page"),
        ("https://run.example:port/join", "nor the address of a run's page"),
        ("https://run.example@evil.example/join", "nor the address of a run's page"),
        ("https://run.example/jo in", "nor the address of a run's page"),
        ("https://run.example/join#invite=7K2", "copy the whole address"),
        ("https://run.example/join#7K2QM-AAAAA-BBBBB-CCCCC", "copy the whole address"),
        ("ftp://run.example/join", "does not begin with manyhands://"),
    ],
)
def test_what_is_no_safe_address_is_not_asked(address: str, says: str) -> None:
    """One sentence says why; a code that stands there is not repeated."""
    with pytest.raises(LinkError, match=says) as refused:
        read_link(address)
    assert "7K2" not in str(refused.value)


@pytest.mark.parametrize(
    "content", [b"<!doctype html>", b"{}", b"[]", b'{"join_link": 1}', b'{"join_link": ""}', b"\xff"]
)
def test_a_page_of_something_else_is_no_run(site: WebFiles, content: bytes) -> None:
    """Whatever it answers."""
    site.files[ASKED] = content
    with pytest.raises(LinkError, match="not the page of a manyhands run"):
        read_link(site.url("join"))


def test_neither_a_redirect_nor_a_long_answer_is_followed(site: WebFiles) -> None:
    """A redirect might lead out of HTTPS; of an answer without an end the beginning is read."""
    site.files[ASKED] = b" " * MAX_ANSWER_BYTES + site.files[ASKED]
    with pytest.raises(LinkError, match="not the page of a manyhands run"):
        read_link(site.url("join"))
    site.redirects[ASKED] = site.url("elsewhere")
    site.files["elsewhere"] = json.dumps({"join_link": str(LINK)}).encode()
    with pytest.raises(LinkError, match="not the page of a manyhands run"):
        read_link(site.url("join"))


def test_a_run_that_does_not_answer_is_tried_again(site: WebFiles) -> None:
    """By the person, whom one sentence without the code tells so."""
    site.failures[ASKED] = 1
    with pytest.raises(UnreachableError, match="answers 503: try again"):
        read_link(site.url("join"))
    with pytest.raises(UnreachableError, match="does not answer") as failed:
        read_link(f"http://127.0.0.1:1/join#invite={CODE}")
    assert CODE not in str(failed.value)
