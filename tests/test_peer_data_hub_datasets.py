"""Hugging Face datasets, streamed; a local folder stands for the hub."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from auth.errors import ConfigError
from peer.config.data import Source
from peer.data.documents import open_documents
from peer.data.hub_datasets import HubDocuments
from peer.run_config import RunConfig

DOCUMENTS = {f"document {number}" for number in range(40)}


@pytest.fixture
def dataset(tmp_path: Path) -> Source:
    """Forty documents in two Parquet files with two row groups each, and a column that nobody asked for."""
    texts = sorted(DOCUMENTS)
    for file in range(2):
        table = pa.table({"body": texts[file * 20 : file * 20 + 20], "number": list(range(20))})
        pq.write_table(table, tmp_path / f"train-{file}.parquet", row_group_size=10)
    return Source(kind="hub", path=str(tmp_path), text_field="body")


def take(stream: HubDocuments, count: int) -> list[str]:
    """The next documents of the stream."""
    return [next(stream) for _ in range(count)]


def test_an_epoch_holds_every_document_once(dataset: Source) -> None:
    """The stream has no end, and each epoch is another order of the whole dataset."""
    stream = HubDocuments(dataset, seed=1, buffer_size=8)
    first, second = take(stream, 40), take(stream, 40)
    assert set(first) == set(second) == DOCUMENTS
    assert first != second
    assert stream.epoch == 1


def test_two_devices_read_in_different_orders(dataset: Source) -> None:
    """Each seed has its own order, and always the same one."""
    orders = [take(HubDocuments(dataset, seed=seed, buffer_size=8), 40) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


def test_a_device_that_returns_does_not_start_again(dataset: Source) -> None:
    """After a return the rest of the epoch comes, with none of what was read but for the buffer's neighbourhood."""
    stream = HubDocuments(dataset, seed=1, buffer_size=4)
    read = take(stream, 30)
    position = json.loads(json.dumps(stream.position()))
    again = HubDocuments(dataset, seed=1, buffer_size=4, position=position)
    rest = []
    while again.epoch == 0:
        rest.append(next(again))
    assert len(rest) <= 11
    assert not set(read[:20]) & set(rest[:-1])


def test_a_run_reads_it_like_any_other_source(dataset: Source) -> None:
    """A hub source is opened by the same function as the others, and its place is JSON."""
    config = RunConfig.from_mapping({"data": {"sources": [dataset.model_dump()]}})
    stream = open_documents(config, device_seed=1)
    assert next(stream) in DOCUMENTS
    json.dumps(stream.position())


def test_a_missing_column_is_one_sentence(dataset: Source) -> None:
    """The message names the columns that there are."""
    with pytest.raises(ConfigError, match=r"no column `text` \(it has body, number\)"):
        HubDocuments(dataset.model_copy(update={"text_field": "text"}), seed=1, buffer_size=4)


def test_a_missing_dataset_is_one_sentence(tmp_path: Path) -> None:
    """The message names the dataset."""
    missing = Source(kind="hub", path=str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match=r"Cannot open the dataset `.*missing`"):
        HubDocuments(missing, seed=1, buffer_size=4)
