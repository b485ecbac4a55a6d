"""Hugging Face datasets and Parquet files as units; a local folder stands for the hub."""

from __future__ import annotations

import gzip
import json
import queue
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from auth.errors import ConfigError, UnreachableError
from peer.config.data import Source
from peer.config.run import RunConfig
from peer.data.sources.documents import open_documents, open_units, sample_documents
from tests.support.ports import free_ports
from tests.support.units_of_text import check_resumption, read, read_all
from tests.support.waiting import PATIENCE_S
from tests.support.web_files import serve_files

DOCUMENTS = [f"document {number}" for number in range(240)]


def write_parquet(path: Path, documents: list[str | None], row_group_size: int = 10) -> None:
    """A file with row groups, and a column that nobody asked for."""
    languages = ["bn" if number % 2 else "en" for number in range(len(documents))]
    table = pa.table({"body": documents, "lang": languages, "number": list(range(len(documents)))})
    pq.write_table(table, path, row_group_size=row_group_size)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The documents in two Parquet files."""
    write_parquet(tmp_path / "train-0.parquet", DOCUMENTS[:120])
    write_parquet(tmp_path / "train-1.parquet", DOCUMENTS[120:])
    return tmp_path


def source(kind: str, path: Path | str, **keys: Any) -> Source:
    """A source of rows."""
    return Source.model_validate({"kind": kind, "path": str(path), "text_field": "body", **keys})


@pytest.fixture
def dead_hub(monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a hub that nobody serves."""
    [port] = free_ports("127.0.0.1", 1)
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", f"http://127.0.0.1:{port}")
    return f"http://127.0.0.1:{port}"


@pytest.mark.usefixtures("dead_hub")
def test_a_folder_needs_no_hub(folder: Path) -> None:
    """It is opened although the hub does not answer."""
    assert len(open_units(source("hub", folder))) == 24


def test_a_hub_that_does_not_answer_ends_the_preparation_before_any_work(dead_hub: str) -> None:
    """The hub's own client tries for minutes."""
    config = RunConfig.from_mapping(
        {"data": {"sources": [{"kind": "builtin"}, {"kind": "hub", "path": "some/dataset"}]}}
    )
    with pytest.raises(UnreachableError, match=f"`some/dataset` of the hub: {dead_hub} does not answer"):
        next(sample_documents(config, 10))


def test_a_stream_tells_of_a_hub_that_does_not_answer_and_tries_again(dead_hub: str) -> None:
    """The first failure is told at once; the hub may only be away for a moment."""
    config = RunConfig.from_mapping({"data": {"sources": [{"kind": "hub", "path": "some/dataset"}]}})
    told: queue.Queue[str] = queue.Queue()
    with open_documents(config, 1, report=told.put):
        assert re.fullmatch(rf".*{dead_hub} does not answer .* Trying again\.", told.get(timeout=PATIENCE_S))


@pytest.mark.parametrize("kind", ["hub", "parquet"])
def test_row_groups_are_units(folder: Path, kind: str) -> None:
    """Every document comes once, and a unit goes on wherever it was left."""
    units = open_units(source(kind, folder))
    assert len(units) == 24
    assert read(units, 0)[0] == DOCUMENTS[:10]
    assert read_all(units) == DOCUMENTS
    check_resumption(units)


@pytest.mark.parametrize("kind", ["hub", "parquet"])
def test_few_row_groups_are_divided_further(tmp_path: Path, kind: str) -> None:
    """Each into as many parts as are needed to have enough for several devices."""
    write_parquet(tmp_path / "train.parquet", DOCUMENTS, row_group_size=100)
    units = open_units(source(kind, tmp_path))
    assert len(units) == 18
    assert sorted(map(str, read_all(units))) == sorted(DOCUMENTS)
    check_resumption(units)


def test_many_files_are_a_unit_each_whose_row_groups_are_passed_over(tmp_path: Path) -> None:
    """Whoever goes on in the middle of a file reads what is left of one row group, and those behind it."""
    for number in range(64):
        write_parquet(tmp_path / f"{number:02}.parquet", DOCUMENTS[:30])
    units = open_units(source("parquet", tmp_path))
    assert len(units) == 64
    assert read(units, 5)[0] == DOCUMENTS[:30]
    check_resumption(units, tries=10)


def test_formats_that_cannot_be_divided_are_read_in_parts(tmp_path: Path) -> None:
    """A packed file of JSON Lines is read for each part, which is every k-th of its documents."""
    lines = "\n".join(json.dumps({"body": document}) for document in DOCUMENTS)
    (tmp_path / "train.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    units = open_units(source("hub", tmp_path))
    assert len(units) == 16
    assert read(units, 3)[0] == DOCUMENTS[3::16]
    assert units.name(3) == f"shard 0 of `{tmp_path}`"
    check_resumption(units)


@pytest.mark.parametrize("kind", ["hub", "parquet"])
def test_documents_in_other_languages_are_empty_and_missing_ones_damaged(tmp_path: Path, kind: str) -> None:
    """The language is a column of its own."""
    write_parquet(tmp_path / "train.parquet", ["a", "b", None, None, "c", "d"])
    filters = {"language_field": "lang", "languages": ["bn"]}
    records = read_all(open_units(source(kind, tmp_path, filters=filters)))
    assert sorted(map(str, records)) == ["", "", "None", "None", "b", "d"]


def test_parquet_is_read_from_the_web_and_from_storage(folder: Path) -> None:
    """By the same addresses as other files."""
    content = (folder / "train-0.parquet").read_bytes()
    memory = fsspec.filesystem("memory")
    memory.pipe("/box/a.parquet", content)
    assert sorted(map(str, read_all(open_units(source("parquet", "memory://box"))))) == sorted(DOCUMENTS[:120])
    memory.rm("/box", recursive=True)
    with serve_files() as web:
        web.files["a.parquet"] = content
        units = open_units(source("parquet", web.url("a.parquet")))
        assert sorted(map(str, read_all(units))) == sorted(DOCUMENTS[:120])


def test_a_bad_file_spoils_no_other(folder: Path) -> None:
    """It is a unit that fails; the others are read."""
    (folder / "train-00.parquet").write_bytes(b"rubbish")
    units = open_units(source("parquet", folder))
    found = set()
    for unit in range(len(units)):
        if units.name(unit) == f"`{folder}/train-00.parquet`":
            with pytest.raises(ConfigError, match=r"The file .* is no whole Parquet file \(.*\)\."):
                read(units, unit)
        else:
            found.update(read(units, unit)[0])
    assert found == set(DOCUMENTS)


def test_a_missing_column_is_told(folder: Path) -> None:
    """The message names the columns that there are."""
    with pytest.raises(ConfigError, match=r"no column `text` \(it has body, lang, number\)"):
        open_units(source("hub", folder, text_field="text"))


@pytest.mark.parametrize(
    ("name", "keys", "reason"),
    [("missing", {}, "find"), ("", {"split": "test"}, "train"), ("", {"config_name": "x"}, "default")],
)
def test_a_missing_dataset_is_one_sentence(folder: Path, name: str, keys: dict[str, str], reason: str) -> None:
    """The message names the dataset and what there is."""
    with pytest.raises(ConfigError, match=f"Cannot open the dataset `.*{name}`: .*{reason}"):
        open_units(source("hub", folder / name, **keys))


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`datasets` keeps its locks in a folder of the test's."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    return
