"""Text and JSON Lines as units."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard

from peer.config.data import Source
from peer.data.sources import files as file_units
from peer.data.sources.documents import open_units
from peer.data.sources.files import Range, cut_files, decode_json
from peer.data.sources.units import MANY_FILES, MIN_UNITS
from peer.network.remote_files import find_files
from tests.support.units_of_text import check_resumption, read, read_all
from tests.support.web_files import serve_files

DOCUMENTS = [f"document {number} {'x' * (number % 50)}|" for number in range(3000)]
PACKERS = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}
FORMS = {
    ("text", "line"): "\n".join(DOCUMENTS),
    ("text", "paragraph"): "\n \r\n\n".join(document.replace(" ", "\n") for document in DOCUMENTS),
    ("jsonl", "paragraph"): "\n".join(json.dumps({"text": document, "id": 1}) for document in DOCUMENTS),
}


def source(kind: str, *paths: Path | str, **keys: Any) -> Source:
    """A source of files."""
    return Source.model_validate({"kind": kind, "path": tuple(map(str, paths)), **keys})


@pytest.fixture
def short_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are cut into ranges of a few documents."""
    monkeypatch.setattr(file_units, "MIN_RANGE_BYTES", 1001)


@pytest.mark.usefixtures("short_ranges")
@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize("form", FORMS)
def test_the_units_together_are_the_file(tmp_path: Path, form: tuple[str, str], ending: str) -> None:
    """Every document comes once, and a unit goes on wherever it was left."""
    path = tmp_path / f"a.{form[0]}{ending}"
    path.write_bytes(PACKERS[ending](FORMS[form].encode()))
    kind, documents = form
    units = open_units(source(kind, path, documents=documents))
    assert len(units) >= (60 if ending == "" else MIN_UNITS)
    assert sorted(text.replace("\n", " ") for text in read_all(units) if text) == sorted(DOCUMENTS)
    check_resumption(units)


@pytest.mark.usefixtures("short_ranges")
@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("form", FORMS)
def test_a_long_document_comes_in_pieces(
    tmp_path: Path, form: tuple[str, str], ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is lost, no device reads what another does, and a unit goes on in the middle of a document."""
    monkeypatch.setattr(file_units, "MAX_DOCUMENT_BYTES", 20)
    path = tmp_path / f"a.{form[0]}{ending}"
    content = FORMS[form][: FORMS[form].rindex("\n", 0, 9000)]
    path.write_bytes(PACKERS[ending](content.encode()))
    kind, documents = form
    units = open_units(source(kind, path, documents=documents))
    found = [text for text in read_all(units) if text]
    assert all(len(text) <= 20 for text in found)
    texts = [json.loads(line)["text"] for line in content.splitlines()] if kind == "jsonl" else [content]
    assert sorted("".join("".join(found).split())) == sorted("".join("".join(texts).split()))
    check_resumption(units)


def test_a_document_longer_than_wanted_is_not_wanted_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its last piece would be short enough."""
    monkeypatch.setattr(file_units, "MAX_DOCUMENT_BYTES", 20)
    (tmp_path / "a.txt").write_text(f"short\n\n{'x' * 42}\n\nlast", encoding="utf-8")
    for max_characters, pieces in ((5, ["", "", ""]), (None, ["x" * 20, "x" * 20, "xx"])):
        units = open_units(source("text", tmp_path, filters={"max_characters": max_characters}))
        assert sorted(map(str, read_all(units))) == sorted(["short", *pieces, "last"])


def test_many_files_are_a_unit_each(tmp_path: Path) -> None:
    """There are units enough, so no file is asked for its size or read twice."""
    files = [tmp_path / f"{number}.txt" for number in range(MANY_FILES)]
    for file in files:
        file.write_text(f"of {file.name}", encoding="utf-8")
    units = open_units(source("text", *files))
    assert [read(units, unit)[0] for unit in range(len(units))] == [[f"of {file.name}"] for file in files]
    assert units.name(3) == f"`{files[3]}`"


def test_large_files_are_cut_into_ranges_of_about_the_same_length(tmp_path: Path) -> None:
    """A small file is one, and an empty one too."""
    for name, megabytes in (("a.txt", 40), ("b.txt", 0.1), ("c.txt", 0)):
        (tmp_path / name).write_bytes(b"x" * int(megabytes * 1_000_000))
    cut = cut_files([Range(file) for file in find_files(source("text", tmp_path))])
    assert [span.address.path.rpartition("/")[2] for span in cut] == ["a.txt"] * 39 + ["b.txt", "c.txt"]


def test_a_file_that_cannot_be_asked_for_its_size_spoils_no_other() -> None:
    """It is one unit, which fails when it is read; that all fail is said at once."""
    with serve_files() as web:
        web.files["a.txt"] = b"x" * 2_500_000
        files = [Range(file) for file in find_files(source("text", web.url("gone.txt"), web.url("a.txt")))]
        assert [span.end for span in cut_files(files)] == [None, 1 << 20, 2 << 20, 3 << 20]
        with pytest.raises(FileNotFoundError, match="gone"):
            cut_files(files[:1])


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    """One bad byte costs a character, and a mark at the file's beginning is no text."""
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfgood\n\nb\xffd\r\n")
    assert sorted(map(str, read_all(open_units(source("text", tmp_path))))) == ["b\ufffdd", "good"]


@pytest.mark.parametrize(
    "line",
    [
        b'{"text": 3}',
        b'{"body": "x"}',
        b'{"text": "x"',
        b'["text"]',
        b'"text"',
        b"null",
        b'{"text": "\xff"}',
        b'{"text": "\\ud800"}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_record_is_none_and_spoils_no_other(tmp_path: Path, line: bytes) -> None:
    """Whatever is wrong with a line, those around it are read."""
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "before"}\n' + line + b'\n{"text": "after"}\n')
    assert sorted(map(str, read_all(open_units(source("jsonl", tmp_path))))) == ["None", "after", "before"]


def test_documents_in_other_languages_are_empty() -> None:
    """So that they count as read, and not as damaged."""
    filters = {"language_field": "lang", "languages": ["bn", "as"]}
    wanted = source("jsonl", "a", text_field="body", filters=filters)
    lines = [
        b'{"body": "x", "lang": "bn"}',
        b'{"body": "x", "lang": "en"}',
        b'{"body": "x"}',
        b'{"body":"x","lang":[]}',
    ]
    assert [decode_json(wanted, line) for line in lines] == ["x", "", "", ""]
