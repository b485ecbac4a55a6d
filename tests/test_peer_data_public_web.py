"""Connections of sources on the web end at public addresses, whatever name or redirect leads there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import aiohttp
import pytest

from peer.config.data import Source
from peer.data.addresses import storage_options
from peer.data.public_web import public_client
from tests.support.web_files import WebFiles, serve_files


@pytest.fixture
def web() -> Iterator[WebFiles]:
    with serve_files() as served:
        served.files["a.txt"] = b"private"
        yield served


async def fetch(url: str) -> bytes:
    async with await public_client() as session, session.get(url) as response:
        return await response.read()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_private_address_is_not_connected_to(web: WebFiles, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By number, and by a name that is looked up."""
    monkeypatch.delenv("http_proxy", raising=False)
    monkeypatch.delenv("HTTP_PROXY", raising=False)
    url = web.url("a.txt").replace("127.0.0.1", host)
    with pytest.raises(aiohttp.ClientConnectorError, match="none of the public web"):
        asyncio.run(fetch(url))
    assert not web.bytes_sent


def test_a_proxy_that_the_machine_names_may_be_anywhere(web: WebFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its address is the owner's choice and not the run's."""
    monkeypatch.setenv("http_proxy", web.address)
    assert asyncio.run(fetch(web.url("a.txt"))) == b"private"


def test_only_what_the_run_names_as_private_goes_without_the_guard() -> None:
    """The owner was asked about that one."""
    public, private = (
        storage_options(Source(kind="text", path=(f"http://{host}/a.txt",))) for host in ("example.org", "10.0.0.1")
    )
    assert public["get_client"] is public_client
    assert "get_client" not in private


@pytest.mark.parametrize(
    ("path", "options", "expected"),
    [
        ("s3://b/a.txt", {}, {"anon": True}),
        ("s3://b/a.txt", {"key": "k"}, {"key": "k"}),
        ("gs://b/a.txt", {}, {"token": "anon"}),
        ("az://b/a.txt", {"sas_token": "t"}, {"sas_token": "t"}),
        ("hf://datasets/o/n/a.txt", {}, {}),
    ],
)
def test_a_volunteers_login_is_never_used(path: str, options: dict[str, str], expected: dict[str, object]) -> None:
    """Object storage is read anonymously unless the run brings a key of its own."""
    assert storage_options(Source(kind="text", path=(path,), storage_options=options)) == expected
