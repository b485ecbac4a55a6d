"""Documents in plain text and JSON Lines files."""

from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path

import pytest

from auth.errors import ConfigError
from peer.data.local_files import jsonl_documents, text_documents


def test_a_blank_line_ends_a_text_document(tmp_path: Path) -> None:
    """Paragraphs are documents, whatever white space stands between them."""
    path = tmp_path / "a.txt"
    path.write_text("\n\none\ntwo\n \t\n\nthree\r\nfour\n\n\n", encoding="utf-8")
    assert [document.split() for document in text_documents(str(path))] == [["one", "two"], ["three", "four"]]


def test_jsonl_documents_are_the_named_field_of_each_line(tmp_path: Path) -> None:
    """Other fields are ignored, and the file may be gzipped."""
    path = tmp_path / "a.jsonl.gz"
    lines = [json.dumps({"body": text, "id": 1}, ensure_ascii=False) for text in ("এক", "two")]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    documents = jsonl_documents(str(path), "body")
    assert list(documents) == ["এক", "two"]
    assert documents[1:] == ["two"]


@pytest.mark.parametrize("pattern", ["", "*.txt", "**/*.txt"])
def test_a_folder_or_a_pattern_names_all_files_in_order(tmp_path: Path, pattern: str) -> None:
    """Every device counts the documents of several files alike."""
    for name in ("b", "a", "c"):
        (tmp_path / f"{name}.txt").write_text(f"{name}1\n\n{name}2", encoding="utf-8")
    (tmp_path / "empty.txt").touch()
    documents = text_documents(str(tmp_path / pattern) if pattern else str(tmp_path))
    assert list(documents) == ["a1", "a2", "b1", "b2", "c1", "c2"]
    assert len(documents) == 6


def test_a_broken_line_is_skipped_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One bad record never spoils the rest."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "good"}\n{"text": 3}\n{bad\n[1]\n{"text": "\xff"}\n')
    with caplog.at_level(logging.WARNING):
        assert list(jsonl_documents(str(path), "text")) == ["good", "", "", "", ""]
    assert len(caplog.records) == 4


def test_a_wrong_field_name_is_one_sentence(tmp_path: Path) -> None:
    """The operator learns at once that no line has the field."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "x"}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"a\.jsonl is no JSON object with a text `text`: set `text_field`\."):
        jsonl_documents(str(path), "text")


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    """A path that names nothing on this machine is named."""
    with pytest.raises(ConfigError, match=r"No file on this machine matches the data source `.*nothing\.txt`"):
        text_documents(str(tmp_path / "nothing.txt"))


def test_a_damaged_archive_is_one_sentence(tmp_path: Path) -> None:
    """A truncated download is named, not shown as a stack trace."""
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"text")[:-6])
    with pytest.raises(ConfigError, match=r"Cannot read the data source .*a\.txt\.gz"):
        text_documents(str(path))
