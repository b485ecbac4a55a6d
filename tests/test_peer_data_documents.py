"""Which document a device reads next, and how it finds its place again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from auth.errors import ConfigError
from peer.data.documents import (
    DocumentStream,
    MixedDocuments,
    ShuffledDocuments,
    device_seed,
    open_documents,
    sample_documents,
)
from peer.run_config import RunConfig

LETTERS = [chr(ord("a") + number) for number in range(20)]


def take(stream: DocumentStream, count: int) -> list[str]:
    """The next documents of a stream."""
    return [next(stream) for _ in range(count)]


def through_json(position: Any) -> Any:
    """A position as it comes back from a file."""
    return json.loads(json.dumps(position))


def run_with(folder: Path, **documents: int) -> RunConfig:
    """A run whose sources are text files of so many documents each, named by the file."""
    sources = []
    for name, count in documents.items():
        path = folder / f"{name}.txt"
        path.write_text("\n\n".join(f"{name}{number}" for number in range(count)), encoding="utf-8")
        sources.append({"kind": "text", "path": str(path)})
    return RunConfig.from_mapping({"data": {"sources": sources}})


def test_an_epoch_holds_every_document_once() -> None:
    """Nothing is left out and nothing comes twice before everything was read."""
    stream = ShuffledDocuments(LETTERS, seed=1)
    first, second = take(stream, 20), take(stream, 20)
    assert sorted(first) == sorted(second) == LETTERS
    assert first != second
    assert stream.epoch == 1


def test_two_devices_read_in_different_orders() -> None:
    """Each seed has its own order, and always the same one."""
    assert take(ShuffledDocuments(LETTERS, seed=1), 20) != take(ShuffledDocuments(LETTERS, seed=2), 20)
    assert take(ShuffledDocuments(LETTERS, seed=1), 20) == take(ShuffledDocuments(LETTERS, seed=1), 20)


def test_a_device_that_returns_goes_on_where_it_was() -> None:
    """A stream opened at a position, even in a later epoch, gives what would have come next."""
    stream = ShuffledDocuments(LETTERS, seed=1)
    take(stream, 33)
    again = ShuffledDocuments(LETTERS, seed=1, position=through_json(stream.position()))
    assert take(again, 40) == take(stream, 40)


def test_a_position_past_the_end_of_a_shrunken_source_starts_the_next_epoch() -> None:
    """Documents that were removed since do not keep a device from going on."""
    stream = ShuffledDocuments(["a"], seed=1, position={"epoch": 3, "index": 9})
    assert next(stream) == "a"
    assert stream.epoch == 4


def test_a_source_without_documents_is_refused() -> None:
    """An empty file is the operator's mistake."""
    with pytest.raises(ConfigError, match="no documents"):
        ShuffledDocuments([], seed=1)


def test_sources_are_mixed_by_weight() -> None:
    """At every moment each source has had its share of the documents."""
    mixed = MixedDocuments([ShuffledDocuments(["a"], 1), ShuffledDocuments(["b"], 1)], weights=[3.0, 1.0])
    drawn = take(mixed, 40)
    assert [drawn[:count].count("a") for count in (4, 8, 20, 40)] == [3, 6, 15, 30]


def test_a_run_of_several_sources_goes_on_where_it_was(tmp_path: Path) -> None:
    """The position of a mixed stream is the position of all its sources."""
    config = run_with(tmp_path, one=7, two=5)
    stream = open_documents(config, device_seed=3)
    take(stream, 9)
    again = open_documents(config, device_seed=3, position=through_json(stream.position()))
    assert take(again, 20) == take(stream, 20)


def test_a_sample_for_the_tokenizer_holds_no_document_twice(tmp_path: Path) -> None:
    """Small sources are taken whole, large ones in part; the limit is shared by weight."""
    config = run_with(tmp_path, small=3, large=50)
    sample = list(sample_documents(config, limit=20))
    assert len(set(sample)) == len(sample) == 13
    assert sum(document.startswith("large") for document in sample) == 10


def test_a_devices_seed_is_its_own_and_stays() -> None:
    """The seed depends on the peer ID alone, not on the process."""
    assert device_seed("QmPeer") == 12668211494835589818
    assert device_seed("QmPeer") != device_seed("QmOther")
