"""Decisions by hash that all peers take alike: documents are held out regardless of reader, source and repetition."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from peer.config.run import RunConfig
from peer.data.selection.hashing import SALT, Part, PartFilter, document_hash, uniform
from peer.data.sources.documents import open_documents

SHARE = 0.3

TEXTS = [f"document number {number}" for number in range(60)]

HELD_OUT = {text for text in TEXTS if uniform(text, SALT) < SHARE}

DEVICES = (1, 2)


def source(kind: str, folder: Path) -> dict[str, str]:
    """The texts as a source of this kind."""
    if kind == "text":
        (folder / "t.txt").write_text("\n\n".join(TEXTS))
        return {"kind": kind, "path": str(folder / "t.txt")}
    if kind == "jsonl":
        (folder / "t.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
        return {"kind": kind, "path": str(folder / "t.jsonl")}
    pq.write_table(pa.table({"text": TEXTS}), folder / "train.parquet", row_group_size=10)
    return {"kind": kind, "path": str(folder)}


def read(config: RunConfig, device: int, part: Part, epochs: int = 2) -> Counter[str]:
    """What a device reads of a part, and how often."""
    found: Counter[str] = Counter()
    with open_documents(config, device, part=part) as stream:
        while True:
            document = next(stream)
            if stream.epoch >= epochs:
                return found
            found[document] += 1


@pytest.mark.parametrize("kind", ["text", "jsonl", "hub"])
def test_no_device_ever_trains_on_what_is_held_out(tmp_path: Path, kind: str) -> None:
    """From every kind of source, in every order and epoch, training sees all others; validation reads just these."""
    config = RunConfig.from_mapping({"data": {"sources": [source(kind, tmp_path)], "validation": {"share": SHARE}}})
    assert 0 < len(HELD_OUT) < len(TEXTS)
    for device in DEVICES:
        seen = read(config, device, "training")
        assert seen.keys() == set(TEXTS) - HELD_OUT
        assert set(seen.values()) == {2}
        assert read(config, device, "validation", epochs=1).keys() == HELD_OUT


def test_mixed_sources_hold_out_alike(tmp_path: Path) -> None:
    """A copy of a held-out document in another source is not trained on either."""
    sources = [{**source(kind, tmp_path), "weight": weight} for kind, weight in (("text", 1.0), ("jsonl", 3.0))]
    config = RunConfig.from_mapping({"data": {"sources": sources, "validation": {"share": SHARE}}})
    assert not read(config, 1, "training").keys() & HELD_OUT


def test_a_device_that_returns_goes_on_where_it_was(tmp_path: Path) -> None:
    """Passing over what is held out does not change what a position means."""
    config = RunConfig.from_mapping({"data": {"sources": [source("text", tmp_path)], "validation": {"share": SHARE}}})
    with open_documents(config, 1) as stream:
        for _ in range(25):
            next(stream)
        with open_documents(config, 1, json.loads(json.dumps(stream.position()))) as again:
            assert [next(again) for _ in range(60)] == [next(stream) for _ in range(60)]


@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.3])
def test_the_share_is_that_of_the_run_file(share: float) -> None:
    """Of many documents nearly that share is held out, and the two filters never keep the same one."""
    documents = [f"document {number}" for number in range(20_000)]
    held_out = PartFilter("validation", share).keep(documents)
    assert held_out.mean() == pytest.approx(share, abs=4 * (share / len(documents)) ** 0.5)
    assert (held_out != PartFilter("training", share).keep(documents)).all()


def test_hash_is_the_same_everywhere() -> None:
    """The value is fixed for ever: a changed hash would let held-out documents into training."""
    assert document_hash("ক খ গ", "validation") == document_hash("  ক খ গ\n", "validation") == 0x6690A965301B8540
