"""Files of text as they lie on people's disks and servers: they are read rightly, or refused with what to do.

A wrong reading is the worst case, for nobody sees what a model was trained on.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from auth.errors import ConfigError
from peer.config.data import Source
from peer.config.run import RunConfig
from peer.data.prepare import training_sample
from peer.data.sources.documents import open_units
from peer.data.sources.faults import describe
from peer.data.sources.recognition import text_form
from tests.support.units_of_text import check_resumption, read_all
from tests.support.web_files import serve_files

DOCUMENTS = [f"The river Ganges is long, and this is document {number}." for number in range(40)]
TEXT = "\n\n".join(DOCUMENTS)
RUSSIAN = "Москва, столица России. Население города составляет более двенадцати миллионов человек."
FRENCH = "Le château était fermé depuis des années. L'été dernier, à Orléans, nous avons mangé des pâtes très bonnes."
POLISH = "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw."


def source(path: Path | str, kind: str = "text", **keys: Any) -> Source:
    """A source of one path."""
    return Source.model_validate({"kind": kind, "path": str(path), **keys})


def documents(path: Path | str, kind: str = "text", **keys: Any) -> list[str]:
    """All documents of a file, in order."""
    return sorted(text for text in read_all(open_units(source(path, kind, **keys))) if text)


def in_zip(**members: bytes) -> bytes:
    """An archive of these files, whose names have an underscore for each dot."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("_", "."), content)
    return file.getvalue()


def in_tar(content: bytes) -> bytes:
    """An archive with one file."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        info = tarfile.TarInfo("a.txt")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


HALF = TEXT.index(DOCUMENTS[20])
PACKED: Mapping[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstandard.compress,
    "zip": lambda content: in_zip(a_txt=content[:HALF], b_txt=content[HALF:]),
    "gzip padded with zeros": lambda content: gzip.compress(content) + b"\0" * 700,
    "two xz files in one": lambda content: lzma.compress(content[:HALF]) + lzma.compress(content[HALF:]),
    "zstd behind a frame to be skipped": lambda content: (
        b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + zstandard.compress(content)
    ),
    "gzip in gzip": lambda content: gzip.compress(gzip.compress(content)),
    "nothing": bytes,
}


@pytest.mark.parametrize("name", ["corpus", "corpus.txt.zst"])
@pytest.mark.parametrize("way", PACKED)
def test_a_packed_file_is_known_by_its_bytes_whatever_its_name(tmp_path: Path, way: str, name: str) -> None:
    """Every way of packing; and a unit goes on wherever it was left."""
    (tmp_path / name).write_bytes(PACKED[way](TEXT.encode()))
    assert documents(tmp_path / name) == sorted(DOCUMENTS)
    check_resumption(open_units(source(tmp_path / name)), tries=5)


def test_packed_files_of_a_folder_are_found_in_either_case(tmp_path: Path) -> None:
    """As Windows writes names."""
    for name, packed in (
        ("A.TXT", TEXT.encode()),
        ("b.txt.GZ", gzip.compress(b"b")),
        ("c.txt.bz2", bz2.compress(b"c")),
    ):
        (tmp_path / name).write_bytes(packed)
    assert documents(tmp_path) == sorted([*DOCUMENTS, "b", "c"])


def test_files_that_systems_put_beside_others_are_no_documents(tmp_path: Path) -> None:
    """As macOS does, in a folder, a pattern and an archive."""
    (tmp_path / "x.txt").write_text(TEXT, encoding="utf-8")
    (tmp_path / "._x.txt").write_bytes(b"\0\5\x16\7\0\2\0\0Mac OS X        ")
    (tmp_path / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("texts/a.txt", TEXT)
        file.writestr("__MACOSX/texts/._a.txt", b"\0\5\x16\7")
    (tmp_path / "archive.zip").write_bytes(archive.getvalue())
    for path in (tmp_path, tmp_path / "*x.txt", tmp_path / "archive.zip"):
        assert documents(path) == sorted(DOCUMENTS)


@pytest.mark.parametrize(
    "encoding",
    ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be", "cp1251", "koi8-r"],
)
@pytest.mark.parametrize("kind", ["text", "jsonl"])
def test_text_in_another_encoding_is_decoded(tmp_path: Path, kind: str, encoding: str) -> None:
    """With a mark at its beginning or without one; no letter is lost."""
    path = tmp_path / f"a.{kind}"
    record = json.dumps({"text": RUSSIAN}, ensure_ascii=False) if kind == "jsonl" else RUSSIAN
    path.write_bytes("\n\n".join([record] * 10).encode(encoding))
    assert set(documents(path, kind)) == {RUSSIAN}


def test_an_encoding_that_is_a_guess_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once for each file."""
    (tmp_path / "a.txt").write_bytes(FRENCH.encode("latin-1"))
    assert documents(tmp_path / "a.txt") == documents(tmp_path / "a.txt") == [FRENCH]
    assert [record.getMessage() for record in caplog.records] == [
        f"The file `{tmp_path / 'a.txt'}` is not in UTF-8, and read as cp1252 by the look of its letters: if that is "
        "wrong, name the `encoding` of its source."
    ]


def test_an_encoding_that_is_not_clear_is_to_be_named(tmp_path: Path) -> None:
    """Polish in ISO 8859-2 might be in others, too."""
    (tmp_path / "a.txt").write_bytes(POLISH.encode("iso8859-2"))
    with pytest.raises(ConfigError, match="its encoding is not clear from its letters: name it as `encoding`"):
        documents(tmp_path / "a.txt")
    assert documents(tmp_path / "a.txt", encoding="iso8859-2") == [POLISH]
    assert text_form(b"text", "a.txt", "UTF8").is_plain


def test_a_named_encoding_is_one_that_python_knows() -> None:
    """And text's."""
    for name in ("latin-17", "rot13", "base64"):
        with pytest.raises(ValueError, match=rf"`encoding` \({name}\) must be one that Python knows"):
            source("a.txt", encoding=name)


def test_a_document_of_another_encoding_than_its_file_is_counted_as_damaged(tmp_path: Path) -> None:
    """Where the file's beginning does not show it."""
    (tmp_path / "a.txt").write_bytes(b"ascii, " * 20_000 + b"\n\n" + RUSSIAN.encode("cp1251"))
    assert read_all(open_units(source(tmp_path / "a.txt"))).count(None) == 1


@pytest.mark.parametrize("blank", ["", " \t", "\u00a0", "\u200b", "\ufeff", "\u2029", "\u3000 ", "\u00a0\r"])
def test_a_line_that_looks_empty_parts_documents(tmp_path: Path, blank: str) -> None:
    """Whatever is in it."""
    (tmp_path / "a.txt").write_bytes(f"\n{blank}\n".join(DOCUMENTS).encode())
    assert documents(tmp_path / "a.txt") == sorted(DOCUMENTS)


def test_lines_that_end_as_on_old_macintoshes_are_lines(tmp_path: Path) -> None:
    """With a carriage return alone."""
    (tmp_path / "a.txt").write_bytes("\r\r".join(DOCUMENTS).encode())
    assert documents(tmp_path / "a.txt") == sorted(DOCUMENTS)
    assert len(documents(tmp_path / "a.txt", documents="line")) == len(DOCUMENTS)


REFUSED = {
    "PDF": (b"%PDF-1.7\n%\xe2\xe3", "a PDF document: extract its text first"),
    "an office document": (in_zip(content_xml=b"<a/>", mimetype=b"x"), "of several kinds.*unpack it"),
    "a tape archive": (in_tar(TEXT.encode()), "a tar archive: unpack it first"),
    "a packed tape archive": (gzip.compress(in_tar(TEXT.encode())), "a tar archive: unpack it first"),
    "Parquet": (b"PAR1\x15\x04\x15", "a Parquet file: give its source the kind `parquet`"),
    "a crawl": (b"WARC/1.0\r\nWARC-Type: conversion\r\n", "a WARC or WET archive of web pages: extract its text first"),
    "a packed crawl": (gzip.compress(b"WARC/1.0\r\n"), "a WARC or WET archive"),
    "a packed wiki": (bz2.compress(b'<mediawiki xmlns="x">\n<siteinfo>'), "a wiki's XML dump: use .* WikiExtractor"),
    "a wiki": (b'<?xml version="1.0"?>\n<mediawiki>', "a wiki's XML dump"),
    "a login page": (b"\n<!DOCTYPE html>\n<html><body>Please log in", "an HTML page: check whether its address asks"),
    "a picture": (b"\x89PNG\r\n\x1a\n\0\0", "an image"),
    "a database": (b"SQLite format 3\0", "an SQLite database"),
    "rubbish": (bytes(range(32)) * 20, "no text but binary data"),
    "an archive that holds itself": (gzip.compress(gzip.compress(gzip.compress(b"text"))), "more than 2 times"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_text_is_refused_with_what_to_do(tmp_path: Path, what: str) -> None:
    """On a disk and on the web, with one sentence that names the file."""
    content, reason = REFUSED[what]
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"^The file `{tmp_path}/a\.txt` .*{reason}.*\.$"):
        documents(tmp_path / "a.txt")
    with serve_files() as web:
        web.files["a.txt"] = content
        web.without_ranges.add("a.txt")
        with pytest.raises(ConfigError, match=r"^The file `http.*/a\.txt` "):
            documents(web.url("a.txt"))


def test_what_a_server_unpacks_or_packs_on_the_way_is_read() -> None:
    """A `.gz` with the head `Content-Encoding: gzip` arrives unpacked."""
    with serve_files() as web:
        web.files["a.txt.gz"] = gzip.compress(TEXT.encode())
        web.encodings["a.txt.gz"] = "gzip"
        assert documents(web.url("a.txt.gz")) == sorted(DOCUMENTS)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A Parquet file with columns of several kinds."""
    columns = {
        "text": DOCUMENTS,
        "meta": [{"body": document.upper(), "id": 1} for document in DOCUMENTS],
        "dotted.name": DOCUMENTS,
        "id": list(range(40)),
        "tags": [["a"]] * 40,
        "common": pa.array(["the same"] * 40).dictionary_encode(),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=7)
    return tmp_path / "a.parquet"


def test_a_field_in_a_field_is_named_with_a_dot(tmp_path: Path, table: Path) -> None:
    """In Parquet, in JSON Lines and in a dataset alike; a name that has a dot itself comes first."""
    lines = [json.dumps({"meta": {"body": document.upper()}, "dotted.name": document}) for document in DOCUMENTS]
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    upper = sorted(document.upper() for document in DOCUMENTS)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.parquet").write_bytes(table.read_bytes())
    for path, kind in ((table, "parquet"), (tmp_path / "a.jsonl", "jsonl"), (tmp_path / "set", "hub")):
        assert documents(path, kind, text_field="meta.body") == upper
        assert documents(path, kind, text_field="dotted.name") == sorted(DOCUMENTS)
    assert set(documents(table, "parquet", text_field="common")) == {"the same"}


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ("body", r"has no column `body` \(it has text, meta, dotted\.name, id, tags, common\): check `text_field`"),
        ("meta.title", "has no column `meta.title`"),
        ("text.body", "has no column `text.body`"),
        ("id", "holds int64, no text: check `text_field`"),
        ("tags", "holds list<.*>, no text"),
        ("meta", "holds struct<.*>, no text"),
    ],
)
def test_a_column_that_is_missing_or_no_text_is_told_at_once(table: Path, field: str, reason: str) -> None:
    """Before anything is read or tried again."""
    with pytest.raises(ConfigError, match=reason):
        open_units(source(table, "parquet", text_field=field))


def test_a_parquet_file_without_rows_spoils_no_other(tmp_path: Path, table: Path) -> None:
    """It is one unit, with nothing in it."""
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "0.parquet")
    assert documents(tmp_path, "parquet") == sorted(DOCUMENTS)
    assert documents(tmp_path / "0.parquet", "parquet") == []


def test_a_parquet_file_that_is_cut_off_is_told_at_once(table: Path) -> None:
    """Its last bytes say where everything is."""
    table.write_bytes(table.read_bytes()[:-100])
    with pytest.raises(ConfigError, match=r"a\.parquet` is no whole Parquet file \(.*\)\."):
        open_units(source(table, "parquet"))


def test_a_server_that_limits_requests_is_asked_again_when_it_says() -> None:
    """Every answer may be the one that comes too often."""
    with serve_files() as web:
        web.files["a.txt"] = TEXT.encode()
        web.limits["a.txt"] = ["0", "0", "Wed, 21 Oct 2015 07:28:00 GMT"]
        assert documents(web.url("a.txt")) == sorted(DOCUMENTS)
        assert web.limits["a.txt"] == []


def test_a_server_that_limits_requests_for_long_is_told_as_that() -> None:
    """Not as a missing file."""
    with serve_files() as web:
        web.files["a.txt"] = TEXT.encode()
        for wait, told in (("3600", ": it asks to wait for 3600 s"), ("", "")):
            web.limits["a.txt"] = [wait] * 10
            with pytest.raises(FileNotFoundError) as found:
                documents(web.url("a.txt"))
            assert describe(found.value) == (
                f"RateLimitedError: the server limits how often it is asked (status 429){told}"
            )


@pytest.mark.parametrize(("singles", "told"), [(30, "75 %"), (2, None)])
def test_documents_of_one_sentence_are_told_before_a_run_learns_their_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, singles: int, told: str | None
) -> None:
    """Their halves betray their order, so none is learnt of them; another objective takes them as they are."""
    texts = [f"The river is long, says the book {number}." for number in range(singles)]
    texts += [f"The river is long. It is in India, says the book {number}." for number in range(10 if told else 38)]
    (tmp_path / "a.txt").write_text("\n\n".join(texts), encoding="utf-8")
    for objective in ("mlm", "mlm+sop"):
        data = {"sources": [{"kind": "text", "path": str(tmp_path)}], "validation": {"share": 0.0}}
        config = RunConfig.from_mapping({"objective": {"name": objective}, "data": data})
        assert sorted(training_sample(config)) == sorted(texts)
    messages = [record.getMessage() for record in caplog.records]
    assert [message.partition(" of 40 documents are one sentence")[0] for message in messages] == [told] * bool(told)
    assert ["the objective `mlm`" in message for message in messages] == [True] * bool(told)
