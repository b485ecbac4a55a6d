"""Documents in lines: where one begins and ends, however the file is cut."""

from __future__ import annotations

import io
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from peer.data.sources import files as lines
from peer.data.sources.files import line_documents, paragraph_documents

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
    monkeypatch.setattr(lines, "MAX_DOCUMENT_BYTES", 10)


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
    monkeypatch.setattr(lines, "MAX_JSON_BYTES", 25)
    content = b"before\n" + b"x" * 24 + b"\n" + b"y" * 25 + b"\n" + b"z" * 60
    found = line_documents(io.BytesIO(content), 0, None, True, in_pieces=False)
    assert list(found) == [(b"before\n", 7), (b"x" * 24 + b"\n", 32), (None, 58), (None, 118)]
