"""Remote files of a source, and connections that end only at public addresses, whatever the name or redirect."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import fsspec
import pytest

from auth.errors import ConfigError
from peer.config.data import Source
from peer.network.public_web import public_client
from peer.network.remote_files import find_files, storage_options
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
    with pytest.raises(aiohttp.ClientConnectorError, match="is not a public address"):
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


def urls(kind: str, *paths: str) -> list[str]:
    """The files that a source's paths name."""
    return [file.url for file in find_files(Source.model_validate({"kind": kind, "path": paths}))]


@pytest.fixture
def bucket() -> Iterator[fsspec.AbstractFileSystem]:
    """Object storage, in memory."""
    filesystem = fsspec.filesystem("memory")
    yield filesystem
    filesystem.rm("/", recursive=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of several kinds, and one in a folder below."""
    (tmp_path / "below").mkdir()
    for name in ("b.txt.gz", "a.txt", "c.jsonl", "d.jsonl.zst", "e.parquet", "notes.md", "below/f.txt"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "names"),
    [("text", ["a.txt", "b.txt.gz"]), ("jsonl", ["c.jsonl", "d.jsonl.zst"]), ("parquet", ["e.parquet"])],
)
def test_a_folder_stands_for_its_files_of_the_kind(folder: Path, kind: str, names: list[str]) -> None:
    """By their endings, packed or not, in order."""
    assert urls(kind, str(folder)) == [str(folder / name) for name in names]


def test_a_pattern_may_reach_into_folders(folder: Path) -> None:
    """Two stars stand for any folders, and nothing but files is found."""
    assert urls("text", f"{folder}/**/*.txt") == [str(folder / "a.txt"), str(folder / "below" / "f.txt")]
    assert str(folder / "below") not in urls("text", f"{folder}/*")


def test_several_paths_are_one_source(folder: Path) -> None:
    """In the order of the run file, and none twice."""
    paths = [str(folder / "below" / "f.txt"), str(folder / "a.txt"), f"{folder}/*.txt"]
    assert urls("text", *paths) == paths[:2]


def test_a_missing_file_is_one_sentence(folder: Path) -> None:
    """The message names the path, and that it is this machine's."""
    for path in ("missing.txt", "*.csv", "below/*/x.txt"):
        with pytest.raises(
            ConfigError, match=r"No file on this machine matches the data source `.*`: check its `path`"
        ):
            urls("text", str(folder / path))


def test_object_storage_is_named_by_its_scheme(bucket: fsspec.AbstractFileSystem) -> None:
    """Folder and pattern work there as on a disk."""
    for name in ("/texts/b.txt", "/texts/a.txt.gz", "/texts/c.json"):
        bucket.pipe(name, b"")
    expected = ["memory:///texts/a.txt.gz", "memory:///texts/b.txt"]
    assert urls("text", "memory://texts") == urls("text", "memory://texts/*.txt*") == expected
    with pytest.raises(ConfigError, match=r"No file matches the data source `memory://texts/none\.txt`"):
        urls("text", "memory://texts/none.txt")


def test_a_web_address_is_taken_at_its_word() -> None:
    """No request is needed to know a file by its address."""
    source = Source(kind="text", path=("http://127.0.0.1:1/a.txt.gz?download=1",))
    (file,) = find_files(source)
    assert file.url == "http://127.0.0.1:1/a.txt.gz?download=1"


def test_a_star_in_a_web_address_asks_the_page_for_its_links() -> None:
    """As directories are listed on the web."""
    with serve_files() as web:
        web.files["data/"] = b'<a href="a.txt">a</a> <a href="b.txt.gz">b</a> <a href="c.md">c</a>'
        web.files["data/a.txt"] = web.files["data/b.txt.gz"] = b""
        assert urls("text", web.url("data/*.txt*")) == [web.url("data/a.txt"), web.url("data/b.txt.gz")]


def test_what_is_not_installed_is_one_sentence() -> None:
    """Object storage needs a package of its own, which the message names."""
    with pytest.raises(ConfigError, match=r"Cannot open the data source `az://box/a.txt`: .*adlfs"):
        urls("text", "az://box/a.txt")
