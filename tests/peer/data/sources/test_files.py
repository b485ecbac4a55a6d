"""Text and JSON Lines as units, and where a document begins and ends in lines, however the file is cut."""

from __future__ import annotations

import gzip
import io
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, strategies as st

from peer.config.data import Source
from peer.data.sources import files as file_units
from peer.data.sources.documents import open_units
from peer.data.sources.files import Range, cut_files, decode_json, line_documents, paragraph_documents
from peer.data.sources.units import MANY_FILES, MIN_UNITS
from peer.network.remote_files import find_files
from tests.support.units_of_text import check_resumption, read, read_all
from tests.support.web_files import serve_files

DOCUMENTS = [f"document {number} {'x' * (number % 50)}|" for number in range(1700)]
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
    check_resumption(units, tries=10)


@pytest.mark.usefixtures("short_ranges")
@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("form", FORMS)
def test_a_long_document_comes_in_pieces(
    tmp_path: Path, form: tuple[str, str], ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is lost, no device reads what another does, and a unit goes on in the middle of a document."""
    monkeypatch.setattr(file_units, "MAX_DOCUMENT_BYTES", 20)
    path = tmp_path / f"a.{form[0]}{ending}"
    content = FORMS[form][: FORMS[form].rindex("\n", 0, 4000)]
    path.write_bytes(PACKERS[ending](content.encode()))
    kind, documents = form
    units = open_units(source(kind, path, documents=documents))
    found = [text for text in read_all(units) if text]
    assert all(len(text) <= 20 for text in found)
    texts = [json.loads(line)["text"] for line in content.splitlines()] if kind == "jsonl" else [content]
    assert sorted("".join("".join(found).split())) == sorted("".join("".join(texts).split()))
    check_resumption(units, tries=10)


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


PIECES = st.lists(st.sampled_from(["a", "bc", "\n", "\n\n", "\n \t\n", "\r\n", "def ", " "]), max_size=60)
CUTS = st.sets(st.integers(1, 80), max_size=6)


def ranges(content: bytes, cuts: set[int]) -> list[tuple[int, int]]:
    """The content's ranges between the cuts."""
    return list(pairwise([0, *sorted(cut for cut in cuts if cut < len(content)), max(len(content), 1)]))


def read_lines(content: bytes, start: int, end: int) -> list[bytes]:
    """The lines of a range, as a unit reads them."""
    begin = max(start - 1, 0)
    found = line_documents(io.BytesIO(content[begin:]), begin, end, whole_line=start == 0)
    return [line for line, _ in found if line is not None]


def read_paragraphs(content: bytes, start: int, end: int) -> list[bytes]:
    """The paragraphs of a range."""
    begin = max(start - 1, 0)
    found = paragraph_documents(io.BytesIO(content[begin:]), begin, end, whole_paragraph=start == 0)
    return [paragraph for paragraph, _ in found if paragraph is not None]


@given(PIECES, CUTS)
def test_ranges_of_lines_share_nothing_and_leave_nothing_out(pieces: list[str], cuts: set[int]) -> None:
    """However a file is cut, its ranges together hold each line that is not blank once, in order."""
    content = "".join(pieces).encode()
    found = [line for start, end in ranges(content, cuts) for line in read_lines(content, start, end)]
    assert found == [line for line in content.splitlines(keepends=True) if line.strip()]


@given(PIECES, CUTS)
def test_ranges_of_paragraphs_share_nothing_and_leave_nothing_out(pieces: list[str], cuts: set[int]) -> None:
    """However a file is cut, its ranges together hold each paragraph once, in order, and none of them in two pieces."""
    content = "".join(pieces).encode()
    found = [text for start, end in ranges(content, cuts) for text in read_paragraphs(content, start, end)]
    expected, gathered = [], b""
    for line in [*content.splitlines(keepends=True), b""]:
        if line.strip():
            gathered += line
        elif gathered:
            expected.append(gathered)
            gathered = b""
    assert found == expected


@given(PIECES, st.integers(0, 20))
def test_reading_goes_on_from_behind_any_document(pieces: list[str], count: int) -> None:
    """From the byte that comes with a document on, the rest of the documents follow."""
    content = "".join(pieces).encode()
    for divide in (line_documents, paragraph_documents):
        found = list(divide(io.BytesIO(content), 0, None, True))
        if count < len(found):
            after = found[count][1]
            assert list(divide(io.BytesIO(content[after:]), after, None, True)) == found[count + 1 :]


@pytest.fixture
def short_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents of ten bytes at most."""
    monkeypatch.setattr(file_units, "MAX_DOCUMENT_BYTES", 10)


@pytest.mark.usefixtures("short_documents")
@pytest.mark.parametrize("length", [9, 10, 11, 20, 21, 35])
def test_a_long_line_comes_in_pieces(length: int) -> None:
    """Whatever its length, nothing of it is lost; the byte to go on from comes with the last piece."""
    content = b"before\n" + b"x" * length + b"\nafter\n"
    first, *pieces, last = line_documents(io.BytesIO(content), 0, None, True)
    assert (first, last) == ((b"before\n", 7), (b"after\n", len(content)))
    assert b"".join(piece or b"" for piece, _ in pieces) == b"x" * length + b"\n"
    assert all(piece and len(piece) <= 10 for piece, _ in pieces)
    assert [after for _, after in pieces] == [*[None] * (len(pieces) - 1), 8 + length]


@pytest.mark.usefixtures("short_documents")
def test_a_long_paragraph_comes_in_pieces_that_end_with_lines() -> None:
    """Many lines, and a paragraph with a line that is too long by itself; a blank rest of that is no blank line."""
    content = b"one\ntwo\n\n" + b"many\n" * 5 + b"\n" + b"x" * 20 + b"\nshort\n\nthree\n"
    found = list(paragraph_documents(io.BytesIO(content), 0, None, True))
    assert [after is None for _, after in found] == [False, True, True, False, True, True, False, False]
    pieces = [piece for piece, _ in found]
    assert pieces[:4] == [b"one\ntwo\n", b"many\nmany\n", b"many\nmany\n", b"many\n"]
    assert b"".join(piece or b"" for piece in pieces[4:7]) == b"x" * 20 + b"\nshort\n"
    assert pieces[7] == b"three\n"


@pytest.mark.usefixtures("short_documents")
@given(PIECES, CUTS)
def test_ranges_of_long_documents_share_nothing_and_leave_nothing_out(pieces: list[str], cuts: set[int]) -> None:
    """A piece belongs to the range of its document."""
    content = "".join(pieces).encode()
    lines_found = [line for start, end in ranges(content, cuts) for line in read_lines(content, start, end)]
    assert b"".join(b"".join(lines_found).split()) == b"".join(content.split())
    paragraphs = [text for start, end in ranges(content, cuts) for text in read_paragraphs(content, start, end)]
    assert b"".join(b"".join(paragraphs).split()) == b"".join(content.split())


def test_a_line_of_json_is_whole_or_none(short_documents: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is parsed as a whole; one that is too long for that is passed over."""
    monkeypatch.setattr(file_units, "MAX_JSON_BYTES", 25)
    content = b"before\n" + b"x" * 24 + b"\n" + b"y" * 25 + b"\n" + b"z" * 60
    found = line_documents(io.BytesIO(content), 0, None, True, in_pieces=False)
    assert list(found) == [(b"before\n", 7), (b"x" * 24 + b"\n", 32), (None, 58), (None, 118)]
