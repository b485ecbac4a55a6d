"""Files as streams of bytes: on disk, in storage, on the web, packed and damaged."""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import zstandard

from auth.errors import ConfigError
from peer.config.data import Source
from peer.data.sources.streams import open_at, size_if_divisible
from peer.network.remote_files import FileLocation, find_files
from tests.support.web_files import WebFiles, serve_files

CONTENT = b"".join(b"line %d of a text\n" % number for number in range(200_000))
HALF = len(CONTENT) // 2


def in_gzip(content: bytes) -> bytes:
    """Two members, as `cat a.gz b.gz` gives them."""
    return gzip.compress(content[:HALF], 1) + gzip.compress(content[HALF:], 1)


def in_zstd(content: bytes) -> bytes:
    """Two frames, as pzstd writes them."""
    return zstandard.compress(content[:HALF], 1) + zstandard.compress(content[HALF:], 1)


PACKED = {"a.txt": CONTENT, "a.txt.gz": in_gzip(CONTENT), "a.txt.zst": in_zstd(CONTENT)}


def address(path: str) -> FileLocation:
    """A file as a source names it."""
    return find_files(Source(kind="text", path=(path,)))[0]


def read(path: str, offset: int = 0) -> bytes:
    """All of a file's content from a byte on."""
    with open_at(address(path), offset) as file:
        return file.read()


@pytest.fixture
def web() -> Iterator[WebFiles]:
    """The files on the web."""
    with serve_files() as web:
        web.files.update(PACKED)
        yield web


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("offset", [0, 1, HALF + 7, len(CONTENT)])
def test_content_is_read_from_any_byte_on(tmp_path: Path, web: WebFiles, name: str, offset: int) -> None:
    """From a disk and from the web, packed or not, with and without requests for ranges."""
    (tmp_path / name).write_bytes(PACKED[name])
    assert read(str(tmp_path / name), offset) == CONTENT[offset:]
    assert read(web.url(name), offset) == CONTENT[offset:]
    web.without_ranges.add(name)
    assert read(web.url(name), offset) == CONTENT[offset:]


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.zst"])
@pytest.mark.parametrize("cut", [1, 1000])
def test_an_archive_that_ends_too_early_is_an_error(tmp_path: Path, name: str, cut: int) -> None:
    """Not a shorter text."""
    (tmp_path / name).write_bytes(PACKED[name][:-cut])
    with pytest.raises(EOFError):
        read(str(tmp_path / name))


@pytest.mark.parametrize("without_ranges", [False, True])
def test_an_answer_that_is_cut_off_is_an_error(web: WebFiles, without_ranges: bool) -> None:
    """Never a shorter text."""
    web.cut["a.txt"] = 100
    if without_ranges:
        web.without_ranges.add("a.txt")
    with pytest.raises((aiohttp.ClientError, EOFError)):
        read(web.url("a.txt"))


def test_a_missing_file_on_the_web_is_an_error(web: WebFiles) -> None:
    """The file is named."""
    with pytest.raises(FileNotFoundError, match="nothing"):
        read(web.url("nothing.txt"))


def test_a_file_that_has_become_shorter_is_an_error(tmp_path: Path) -> None:
    """A packed file whose content ends before the wanted byte."""
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"short"))
    with pytest.raises(EOFError, match="shorter"):
        read(str(tmp_path / "a.txt.gz"), 10)


def test_only_plain_files_can_be_divided(tmp_path: Path, web: WebFiles) -> None:
    """Those on the web, if the server gives ranges."""
    for name, content in PACKED.items():
        (tmp_path / name).write_bytes(content)
    assert size_if_divisible(address(str(tmp_path / "a.txt"))) == len(CONTENT)
    assert size_if_divisible(address(web.url("a.txt"))) == len(CONTENT)
    assert size_if_divisible(address(str(tmp_path / "a.txt.gz"))) is None
    assert size_if_divisible(address(web.url("a.txt.zst"))) is None
    web.without_ranges.add("a.txt")
    assert size_if_divisible(address(web.url("a.txt"))) is None


def test_a_part_of_a_large_file_costs_a_part_of_its_traffic(web: WebFiles) -> None:
    """Whoever reads a line in the middle does not fetch all that comes before."""
    web.files["large.txt"] = CONTENT * 4
    with open_at(address(web.url("large.txt")), 3 * len(CONTENT)) as file:
        assert file.readline() == b"line 0 of a text\n"
    assert web.bytes_sent["large.txt"] < len(CONTENT) * 1.5


def zipped(*names: str) -> bytes:
    """An archive of members of these names."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in names:
            archive.writestr(name, "text")
    return content.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"%PDF-1.7",
        gzip.compress(b"%PDF-1.7"),
        gzip.compress(zipped("a.txt")),
        zipped("a.txt", "b.csv"),
        zipped("a")[:9],
    ],
    ids=["foreign", "packed", "nested-zip", "mixed-zip", "damaged-zip"],
)
def test_a_refused_file_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """At once, not when nobody has the error any more."""
    (tmp_path / "a").write_bytes(content)
    place, opened = address(str(tmp_path / "a")), []
    open_file = place.filesystem.open

    def remember(*path: Any, **options: Any) -> Any:
        opened.append(open_file(*path, **options))
        return opened[-1]

    monkeypatch.setattr(place.filesystem, "open", remember)
    with pytest.raises((ConfigError, zipfile.BadZipFile)) as refusal:  # whoever keeps it keeps what was open
        open_at(place, 0)
    assert refusal.value
    assert [file.closed for file in opened] == [True] * max(1, len(opened))
