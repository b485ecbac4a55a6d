"""Answers that many ask for are built once, compressed once, and not sent to whoever has them."""

from __future__ import annotations

import asyncio
import base64
import gzip
import threading

import pytest
from fastapi import Request
from hypothesis import given, strategies as st
from pydantic import BaseModel

from auth.errors import RequestError
from coordinator.web.http.answers import AnswerCache, answer, cursor_of, encode, key_of
from tests.support.waiting import PATIENCE_S


class Sum(BaseModel):
    """An answer."""

    value: int


def asked(**headers: str) -> Request:
    """A request with these headers."""
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": raw})


def test_whoever_has_it_gets_no_body() -> None:
    """Compared weakly, alone or in a list, also by a star."""
    made = encode(Sum(value=1))
    strong = made.etag.removeprefix("W/")
    for known in (made.etag, strong, f'"other", {made.etag}', "*"):
        assert answer(asked(if_none_match=known), made).status_code == 304
    for unknown in ('"other"', ""):
        assert answer(asked(if_none_match=unknown), made).status_code == 200


def test_it_is_compressed_where_that_is_understood_and_pays() -> None:
    """Long ones for those who take gzip; caches are told that it depends on this."""
    long, short = encode(b"a" * 5000), encode(b"a" * 50)
    packed = answer(asked(accept_encoding="br, gzip"), long)
    assert gzip.decompress(packed.body) == long.content
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["vary"] == "Accept-Encoding"
    assert answer(asked(), long).body == long.content
    assert answer(asked(accept_encoding="gzip"), short).body == short.content


@pytest.mark.parametrize(
    ("accepted", "is_packed"),
    [
        ("gzip", True),
        ("GZIP;q=0.5, identity", True),
        ("br ; q=1 , gzip ; q=0.001", True),
        ("*", True),
        ("gzip, *;q=0", True),
        ("gzip;q=0", False),
        ("br, gzip; q=0.000", False),
        ("gzip;q=0, *", False),
        ("*;q=0", False),
        ("identity", False),
        ("not-gzip", False),
        ("", False),
    ],
)
def test_who_refuses_gzip_gets_none(accepted: str, is_packed: bool) -> None:
    """A weight of 0 refuses a coding; a star stands for those that are not named."""
    response = answer(asked(accept_encoding=accepted), encode(b"a" * 5000))
    assert ("content-encoding" in response.headers) == is_packed


def test_codings_in_several_headers_are_one_list() -> None:
    """As of any header that is a list."""
    headers = [(b"accept-encoding", b"br"), (b"accept-encoding", b"gzip")]
    response = answer(Request({"type": "http", "headers": headers}), encode(b"a" * 5000))
    assert response.headers["content-encoding"] == "gzip"


async def test_of_many_who_ask_one_builds() -> None:
    """All get the same, and so does who comes later; another version is built anew."""
    built, go = [], threading.Event()

    def make() -> Sum:
        go.wait(PATIENCE_S)
        built.append(1)
        return Sum(value=len(built))

    cache = AnswerCache()
    waiting = [asyncio.create_task(cache.get("question", 1, make)) for _ in range(5)]
    await asyncio.sleep(0)
    go.set()
    found = {(await each).content for each in waiting}
    assert found == {b'{"value":1}'}
    assert (await cache.get("question", 1, make)).content == b'{"value":1}'
    assert (await cache.get("question", 2, make)).content == b'{"value":2}'
    assert len(built) == 2


async def test_whoever_goes_away_takes_nothing_along() -> None:
    """The one who asked first is cut off; the others still get their answer."""
    go = threading.Event()

    def make() -> Sum:
        go.wait(PATIENCE_S)
        return Sum(value=7)

    cache = AnswerCache()
    first, second = (asyncio.create_task(cache.get("question", 1, make)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    go.set()
    assert (await second).content == b'{"value":7}'


async def test_a_failure_is_not_kept() -> None:
    """The next who asks tries again."""
    tries: list[int] = []

    def make() -> Sum:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("gone")
        return Sum(value=1)

    cache = AnswerCache()
    with pytest.raises(OSError, match="gone"):
        await cache.get("question", 1, make)
    assert (await cache.get("question", 1, make)).content == b'{"value":1}'


async def test_it_keeps_nothing_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for many large answers does not fill the memory: these are built each time."""
    monkeypatch.setattr("coordinator.web.http.answers.MOST_KEPT_BYTES", 100)
    built: list[int] = []

    def make(size: int) -> bytes:
        built.append(size)
        return b"x" * size

    cache = AnswerCache()
    for size in (100, 100, 101, 101):
        assert len((await cache.get(size, 1, lambda size=size: make(size))).content) == size  # type: ignore[misc]
    assert built == [100, 101, 101]


async def test_it_keeps_only_so_many() -> None:
    """What was asked least recently goes first."""
    built: list[str] = []
    cache = AnswerCache(most=2)
    for question in ("a", "b", "a", "c", "a", "b"):
        await cache.get(question, 1, lambda question=question: built.append(question) or Sum(value=1))  # type: ignore[misc]
    assert built == ["a", "b", "c", "b"]


@given(st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=40))
def test_a_cursor_is_its_key(moment: float, name: str) -> None:
    """Whatever the row is ordered by."""
    assert key_of(cursor_of((moment, name)), (float, str)) == (moment, name)


def test_the_first_page_has_none() -> None:
    """Nobody needs one to begin."""
    assert key_of("", (int,)) is None


@pytest.mark.parametrize("text", ["x", "é", "{}", "[1]", "[1,2,3]", '["a",2]', "[true,2]", "[" * 200])
def test_what_is_no_cursor_is_refused(text: str) -> None:
    """Neither other text, nor another list's cursor."""
    encoded = base64.urlsafe_b64encode(text.encode()).decode()
    for cursor in (text, encoded):
        with pytest.raises(RequestError, match="must be the `next` of a page"):
            key_of(cursor, (int, int))
