"""Streams of which a part is kept: the same part on every device, and as the command would keep."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from auth.errors import ConfigError
from peer.config.sampling import Sampling
from peer.data.documents import open_documents
from peer.data.sampled_documents import SamplingFilter, open_sampling
from peer.run_config import RunConfig
from tests.small_scorers import write_unigram

TEXTS = [f"{'a ' * (number % 7)}b {number}" for number in range(200)]
SAMPLING = {"method": "gaussian", "scale": 0.6, "quartiles": [10.0, 60.0, 900.0], "width": 2.0}


def run_on(tmp_path: Path, texts: list[str], **keys: Any) -> RunConfig:
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts), encoding="utf-8")
    source = {"kind": "jsonl", "path": str(path), **keys}
    return RunConfig.from_mapping({"data": {"sources": [source], "validation": {"share": 0.0}}})


def one_epoch(config: RunConfig, documents: int, device: int, tokenizer_dir: Path | None) -> list[str]:
    stream = open_documents(config, device, tokenizer_dir=tokenizer_dir)
    return [text for text in islice(iter(stream.__next__, None), documents) if text]


def test_every_device_keeps_the_same_part(tmp_path: Path) -> None:
    """In its own order, scored by the run's tokenizer, or by chance without any score."""
    write_unigram(tmp_path / "tokenizer.json")
    for sampling in (SAMPLING, {"method": "random", "scale": 0.4}):
        config = run_on(tmp_path, TEXTS, sampling=sampling)
        first, second = (one_epoch(config, len(TEXTS), device, tmp_path) for device in (1, 2))
        assert first != second
        assert set(first) == set(second)
        assert 20 < len(first) < 150


def test_a_block_and_single_documents_are_decided_alike(tmp_path: Path) -> None:
    """The scorer's neighbours do not matter."""
    write_unigram(tmp_path / "tokenizer.json")
    config = run_on(tmp_path, TEXTS, sampling=SAMPLING)
    whole = open_sampling(config.data.sources[0], tmp_path)
    assert whole is not None
    kept = {text for text, is_kept in zip(TEXTS, whole.keep(TEXTS), strict=True) if is_kept}
    assert kept == set(one_epoch(config, len(TEXTS), 3, tmp_path))


def test_a_run_whose_tokenizer_cannot_score_is_told_so(tmp_path: Path) -> None:
    """When it is opened."""
    with pytest.raises(ConfigError, match="Sampling needs a scorer"):
        open_documents(run_on(tmp_path, TEXTS, sampling=SAMPLING), 1)


@pytest.mark.parametrize("kind", ["exact", "near"])
def test_duplicates_are_dropped_within_an_epoch_and_come_again_in_the_next(tmp_path: Path, kind: str) -> None:
    """Else a source would be empty from its second epoch on."""
    texts = ["one text of several words", "another text that is longer", "one text of several words"]
    config = run_on(tmp_path, texts, duplicates=kind)
    stream = open_documents(config, 1)
    for _ in range(3):
        assert sorted(next(stream) for _ in range(3)) == ["", *sorted(set(texts))]


def test_a_scale_above_one_keeps_all_by_chance() -> None:
    """As where the target is all there is."""
    assert SamplingFilter(Sampling(method="random", scale=1.5), None).keep(TEXTS).all()
