"""Which document a device reads next, and how it finds its place again."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from auth.errors import ConfigError
from peer.config.run import RunConfig
from peer.data.sources.documents import MixedDocuments, check_position, open_documents, sample_documents
from peer.data.sources.faults import StreamClosed
from peer.data.sources.prefetching import CHECK_S
from peer.data.sources.reader import BlockPosition
from tests.support.units_of_text import ShortPauses

BLOCK = 16


def take(stream: MixedDocuments, count: int) -> list[str]:
    """The next documents of a stream."""
    return list(islice(iter(stream.__next__, None), count))


def through_json(position: Any) -> Any:
    """A position as it comes back from a file."""
    return json.loads(json.dumps(position))


def run_with(folder: Path, weights: dict[str, float] | None = None, **documents: int) -> RunConfig:
    """A run whose sources are text files of so many documents each, named by the file."""
    sources = []
    for name, count in documents.items():
        path = folder / f"{name}.txt"
        path.write_text("\n\n".join(f"{name} {number}" for number in range(count)), encoding="utf-8")
        sources.append({"kind": "text", "path": str(path), "weight": (weights or {}).get(name, 1.0)})
    return run_of(sources)


def run_of(sources: list[dict[str, Any]]) -> RunConfig:
    return RunConfig.from_mapping({"data": {"sources": sources, "shuffle_buffer": BLOCK, "validation": {"share": 0.0}}})


def test_an_epoch_holds_every_document_once(tmp_path: Path) -> None:
    """Nothing is left out and nothing comes twice before everything was read; the next epoch has another order."""
    with open_documents(run_with(tmp_path, text=100), 5) as stream:
        first, second = take(stream, 100), take(stream, 100)
        assert stream.epoch == 1
    assert set(first) == set(second) == {f"text {number}" for number in range(100)}
    assert first != second


def test_devices_read_different_parts_at_the_same_time(tmp_path: Path) -> None:
    """Eight devices that each read an eighth of the corpus have read most of it, without knowing of each other."""
    config = run_with(tmp_path, text=1600)
    seen: set[str] = set()
    for device in range(8):
        with open_documents(config, device) as stream:
            seen.update(take(stream, 200))
    assert len(seen) > 0.75 * 1600  # by chance it would be 1 - (7/8)**8, two thirds


def test_a_device_always_reads_in_the_same_order(tmp_path: Path) -> None:
    """Its own: another one's is different."""
    config = run_with(tmp_path, text=50)
    orders = []
    for device in (1, 1, 2):
        with open_documents(config, device) as stream:
            orders.append(take(stream, 120))
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize("taken", [0, 1, 15, 16, 17, 99, 100, 130, 333])
def test_a_device_that_returns_goes_on_where_it_was(tmp_path: Path, taken: int) -> None:
    """At any place, within a block, at its end, or in a later epoch."""
    config = run_with(tmp_path, one=70, two=30)
    with open_documents(config, 3) as stream:
        take(stream, taken)
        with open_documents(config, 3, through_json(stream.position())) as again:
            assert take(again, 150) == take(stream, 150)


def test_sources_are_mixed_by_weight(tmp_path: Path) -> None:
    """At every moment each source has had its share of the documents, however small it is."""
    with open_documents(run_with(tmp_path, {"a": 3.0}, a=7, b=20), 1) as stream:
        drawn = [document[0] for document in take(stream, 400)]
    assert [drawn[:count].count("a") for count in (4, 8, 20, 400)] == [3, 6, 15, 300]


def test_sources_are_mixed_by_their_tokens(tmp_path: Path) -> None:
    """A source of long documents gives fewer of them, and what was counted last decides, not the characters."""
    long_words = "abcdefgh " * 40
    config = run_with(tmp_path, {"long": 1.0, "short": 3.0}, long=0, short=300)
    (tmp_path / "long.txt").write_text("\n\n".join(f"long {n} {long_words}" for n in range(300)), encoding="utf-8")
    tokens = {"long": 42, "short": 2}
    with open_documents(config, 1) as stream:
        drawn = Counter[str]()
        for _ in range(100):
            names = [document.split()[0] for document in take(stream, 50)]
            stream.count([tokens[name] for name in names])
            drawn.update(names)
        assert drawn["short"] * 2 == pytest.approx(3 * drawn["long"] * 42, rel=0.05)
        place = through_json(stream.position())
        with open_documents(config, 1, place) as again:
            assert take(again, 50) == take(stream, 50)


def test_a_source_has_one_order_wherever_it_stands(tmp_path: Path) -> None:
    """A phase that weighs or arranges the sources otherwise reads each of them on in the same order."""
    config = run_with(tmp_path, one=40, two=40)
    turned = run_of([source.model_dump() | {"weight": 2.0} for source in config.data.sources[::-1]])
    orders = []
    for run in (config, turned):
        with open_documents(run, 1) as stream:
            orders.append([document for document in take(stream, 40) if document.startswith("one")])
    shortest = min(map(len, orders))
    assert orders[0][:shortest] == orders[1][:shortest]


def test_a_source_that_cannot_be_read_leaves_its_turns_to_the_others(tmp_path: Path) -> None:
    """It is reported with its name and the reason, and ends nothing."""
    config = run_with(tmp_path, good=30)
    missing = {"kind": "jsonl", "path": str(tmp_path / "missing.jsonl"), "weight": 9.0}
    config = run_of([*[source.model_dump() for source in config.data.sources], missing])
    reports: list[str] = []
    with open_documents(config, 1, report=reports.append, pauses=ShortPauses()) as stream:
        assert Counter(document.split()[0] for document in take(stream, 90)) == {"good": 90}
    assert any("missing.jsonl" in report for report in reports)


def test_a_device_that_returns_waits_for_its_sources(tmp_path: Path) -> None:
    """Even if it was stopped before its first block came: the sources were there, so nothing must be mended."""
    config, path = run_with(tmp_path, text=30), tmp_path / "text.txt"
    with open_documents(config, 1, pauses=ShortPauses()) as stream:
        place = through_json(stream.position())
    assert place["streams"][0]["units"] is None
    aside = path.rename(tmp_path / "aside")

    class Until(ShortPauses):
        def __call__(self, seconds: float) -> None:
            if seconds == CHECK_S and aside.exists():  # the consumer waits
                aside.rename(path)
            super().__call__(seconds)

    with open_documents(config, 1, place, report=list[str]().append, pauses=Until()) as stream:
        assert next(stream).startswith("text")


@pytest.mark.parametrize(
    ("exist", "message"),
    [
        (False, r"No file on this machine matches the data source `.*one\.txt`"),
        (True, r"one\.txt` has no documents that are wanted"),
    ],
    ids=["missing", "empty"],
)
def test_sources_of_which_none_gives_a_document_are_one_clear_error(tmp_path: Path, exist: bool, message: str) -> None:
    """Nothing ever came: the run file must be mended."""
    paths = [tmp_path / "one.txt", tmp_path / "two.txt"]
    for path in paths if exist else []:
        path.touch()
    config = run_of([{"kind": "text", "path": str(path)} for path in paths])
    with (
        open_documents(config, 1, report=print, pauses=ShortPauses()) as stream,
        pytest.raises(ConfigError, match=message),
    ):
        next(stream)


def test_who_waits_is_let_go_when_the_stream_is_closed(tmp_path: Path) -> None:
    """And nothing is read any more."""
    stream = open_documents(run_with(tmp_path, text=100), 1)
    next(stream)
    stream.close()
    with pytest.raises(StreamClosed):
        take(stream, 10 * BLOCK)


def test_a_stream_that_is_closed_while_a_block_is_asked_for_says_so(tmp_path: Path) -> None:
    """Never by `StopIteration`, which is an error in the generator that asks."""

    class Closing(ShortPauses):
        def __call__(self, seconds: float) -> None:
            super().__call__(seconds)
            if threading.current_thread() is threading.main_thread():
                stream.close()

    stream = open_documents(run_with(tmp_path, text=100), 1, pauses=Closing())
    with pytest.raises(StreamClosed):
        next(stream)


@pytest.mark.parametrize(
    "streams", [5, "a", {"a": 1}, [5], ["a"], [[]], [{}], [{"epoch": 0}], [asdict(BlockPosition()) | {"epoch": -1}]]
)
def test_what_is_no_position_is_refused(streams: Any) -> None:
    """A place has all its keys; None stands for a source that was never read."""
    check_position({"drawn": [0], "streams": [None]}, 1)
    with pytest.raises((ValueError, TypeError)):
        check_position({"drawn": [0], "streams": streams}, 1)


@pytest.mark.parametrize("kind", ["exact", "near"])
def test_duplicates_come_again_in_the_next_epoch(tmp_path: Path, kind: str) -> None:
    """Else a source would be empty from its second epoch on."""
    texts = ["one text of several words", "another text that is longer", "one text of several words"]
    path = tmp_path / "corpus.txt"
    path.write_text("\n\n".join(texts), encoding="utf-8")
    with open_documents(run_of([{"kind": "text", "path": str(path), "duplicates": kind}]), 1) as stream:
        for _ in range(3):
            assert sorted(take(stream, 2)) == sorted(set(texts))


def test_a_sample_for_the_tokenizer_holds_no_document_twice(tmp_path: Path) -> None:
    """Small sources are taken whole, large ones in part; the limit is shared by weight."""
    config = run_with(tmp_path, small=3, large=50)
    sample = list(sample_documents(config, limit=20))
    assert len(set(sample)) == len(sample) == 13
    assert sum(document.startswith("large") for document in sample) == 10


def test_a_sample_needs_all_sources(tmp_path: Path) -> None:
    """Who prepares a run wants to know what cannot be read."""
    good = run_with(tmp_path, good=30).data.sources[0].model_dump()
    config = run_of([good, {"kind": "jsonl", "path": str(tmp_path / "missing.jsonl")}])
    with pytest.raises(ConfigError, match="missing"):
        list(sample_documents(config, limit=20))
