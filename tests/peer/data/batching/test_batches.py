"""The whole data path: from a run's documents to an endless stream of masked batches."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from auth.errors import ConfigError
from peer.config.run import RunConfig
from peer.data.batching.batches import (
    CHUNK_CHARACTERS,
    FIRST_CHUNK_CHARACTERS,
    STATE_FILE,
    Batch,
    SampleMaker,
    SavedPlaces,
    make_batches,
    open_batches,
    take_documents,
)
from peer.data.prepare import prepare_tokenizer
from peer.data.sources.documents import Position, open_documents
from peer.data.tokenization.tokenizers import load_special_ids, load_tokenizer
from peer.data.tokenization.words import WordStarts

WORDS = [first + second + third for first in "bdgkm" for second in "aeiou" for third in "lnrst"]
LENGTH = 32


def document(number: int) -> str:
    """Six sentences; its words tell it from all others."""
    names = [WORDS[number % len(WORDS)], WORDS[number // len(WORDS)]]
    return " ".join(f"{WORDS[(number * 7 + i) % 125].title()} {' '.join(names)} {WORDS[i]}." for i in range(6))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of 3000 short documents and a tokenizer trained on it."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "corpus.txt").write_text("\n\n".join(map(document, range(3000))), encoding="utf-8")
    prepare_tokenizer(config_for(folder), folder / "tokenizer")
    return folder


def config_for(folder: Path, architecture: str = "albert", **objective: Any) -> RunConfig:
    """A run on that corpus."""
    return RunConfig.from_mapping(
        {
            "model": {"architecture": architecture},
            "objective": objective,
            "tokenizer": {"vocab_size": 300},
            "data": {
                "sources": [{"kind": "text", "path": str(folder / "corpus.txt")}],
                "sequence_length": LENGTH,
            },
        }
    )


def first_batches(folder: Path, state: Path, count: int, seed: int = 1, **objective: Any) -> list[Batch]:
    """The first batches of a device's session."""
    config = config_for(folder, **objective)
    with open_batches(config, folder / "tokenizer", state, seed, microbatch_size=8) as batches:
        return list(islice(batches, count))


def unmasked(batch: Batch) -> torch.Tensor:
    """The batch's ids as they were before masking."""
    ids = batch.input_ids.clone().view(-1)
    ids[batch.label_positions] = batch.labels
    return ids.view_as(batch.input_ids)


def rows(batches: list[Batch]) -> list[tuple[int, ...]]:
    """All samples, unmasked."""
    return [tuple(row) for batch in batches for row in unmasked(batch).tolist()]


def numbers_of(text: str) -> set[int]:
    """The numbers of the documents of which the text has whole sentences."""
    names = re.findall(r"(?i)\b[a-z]{3} ([a-z]{3}) ([a-z]{3}) [a-z]{3}\.", text)
    return {WORDS.index(low) + len(WORDS) * WORDS.index(high) for low, high in names}


def numbers_in(folder: Path, batches: list[Batch]) -> set[int]:
    """The numbers of the documents in these batches."""
    tokenizer = load_tokenizer(folder / "tokenizer")
    return set().union(*(numbers_of(tokenizer.decode(row, skip_special_tokens=False)) for row in rows(batches)))


def test_batches_are_made_ready_for_the_device_in_the_thread(folder: Path, tmp_path: Path) -> None:
    """What the backend does to each, such as to pin its memory, is done before the trainer asks for it."""
    threads: list[str] = []

    def stage(batch: Batch) -> Batch:
        threads.append(threading.current_thread().name)
        return replace(batch, token_type_ids=None)

    with open_batches(config_for(folder), folder / "tokenizer", tmp_path, 1, 8, stage=stage) as batches:
        assert [batch.token_type_ids for batch in islice(batches, 3)] == [None] * 3
    assert set(threads) == {"prefetch"}


def test_a_batch_has_the_shapes_it_promises(folder: Path, tmp_path: Path) -> None:
    """All tensors are int64, every sample is full, and the labels are those of masked tokens."""
    (batch,) = first_batches(folder, tmp_path, 1)
    assert batch.samples == 8
    assert batch.attention_mask is None
    assert batch.sop_labels is not None
    assert batch.token_type_ids is not None
    tensors = [batch.input_ids, batch.token_type_ids, batch.label_positions, batch.labels, batch.sop_labels]
    assert {tensor.dtype for tensor in tensors} == {torch.int64}
    assert batch.input_ids.shape == batch.token_type_ids.shape == (8, LENGTH)
    assert len(batch.label_positions) == len(batch.labels) == 8 * round(0.15 * (LENGTH - 3))
    assert batch.sop_labels.shape == (8,)


def test_every_sample_is_a_pair_without_padding(folder: Path, tmp_path: Path) -> None:
    """[CLS] A [SEP] B [SEP], both segments non-empty, and the segment ids change after the first [SEP]."""
    special = load_special_ids(folder / "tokenizer")
    for batch in first_batches(folder, tmp_path, 5):
        ids = unmasked(batch)
        assert (ids[:, 0] == special.cls).all()
        assert (ids[:, -1] == special.sep).all()
        assert (ids == special.sep).sum(dim=1).tolist() == [2] * 8
        assert not (ids == special.pad).any()
        assert batch.token_type_ids is not None
        first_sep = (ids == special.sep).int().argmax(dim=1)
        assert (first_sep > 1).all()
        assert (first_sep < LENGTH - 2).all()
        assert (batch.token_type_ids.sum(dim=1) == LENGTH - 1 - first_sep).all()


def test_masked_language_modelling_alone_reads_plain_text(folder: Path, tmp_path: Path) -> None:
    """Without sentence order there are no labels for it and no second segment; documents end with a separator."""
    special = load_special_ids(folder / "tokenizer")
    batches = first_batches(folder, tmp_path, 20, name="mlm")
    for batch in batches:
        assert batch.sop_labels is None
        assert batch.token_type_ids is not None
        assert not batch.token_type_ids.any()
        assert (unmasked(batch)[:, 0] == special.cls).all()
        assert len(batch.labels) == 8 * round(0.15 * (LENGTH - 2))
        assert not torch.isin(batch.labels, torch.tensor([special.cls, special.sep, special.pad])).any()
    inner = torch.cat([unmasked(batch)[:, 1:-1] for batch in batches])
    assert (inner == special.sep).any()


def test_words_are_masked_whole_where_the_run_says_so(folder: Path, tmp_path: Path) -> None:
    """A masked token that goes on with a word has its word's first token masked before it."""
    tokenizer = load_tokenizer(folder / "tokenizer")
    (batch,) = first_batches(folder, tmp_path, 1, name="mlm", whole_words=True)
    starts = WordStarts(tokenizer, load_special_ids(folder / "tokenizer"))(unmasked(batch).numpy().astype(np.int32))
    masked = np.zeros(starts.size, np.bool_)
    masked[batch.label_positions.numpy()] = True
    masked = masked.reshape(starts.shape)
    inside = ~starts[:, 1:]
    assert (masked[:, 1:][inside] == masked[:, :-1][inside]).all()
    assert (masked[:, 1:] & inside).any()


def test_gpt2_learns_what_comes_next(folder: Path, tmp_path: Path) -> None:
    """Text fills every place, every place but the last of each sample has the next token as its label."""
    special = load_special_ids(folder / "tokenizer")
    batches = first_batches(folder, tmp_path, 5, architecture="gpt2", name="clm")
    for batch in batches:
        assert batch.token_type_ids is batch.sop_labels is batch.attention_mask is None
        assert (batch.labels.view(8, -1) == batch.input_ids[:, 1:]).all()
        assert (batch.input_ids.view(-1)[batch.label_positions] == batch.input_ids[:, :-1].reshape(-1)).all()
        assert not torch.isin(batch.input_ids, torch.tensor([special.cls, special.pad, special.mask])).any()
    assert (torch.cat([batch.input_ids for batch in batches]) == special.sep).any()


@pytest.mark.parametrize(("architecture", "several"), [("bert", True), ("roberta", False), ("reformer", False)])
def test_segments_are_for_models_that_tell_them_apart(
    folder: Path, tmp_path: Path, architecture: str, several: bool
) -> None:
    """Where a model knows one kind of segment the batch names none."""
    config = RunConfig.from_mapping(
        {
            **config_for(folder, "bert", name="mlm").model_dump(),
            "model": {"architecture": architecture, "max_position_embeddings": LENGTH},
        }
    )
    with open_batches(config, folder / "tokenizer", tmp_path, 1, microbatch_size=8) as batches:
        assert (next(batches).token_type_ids is not None) == several


def test_two_devices_read_different_samples(folder: Path, tmp_path: Path) -> None:
    """Nobody repeats at the same time what another peer does."""
    one = set(rows(first_batches(folder, tmp_path / "one", 10, seed=1)))
    two = set(rows(first_batches(folder, tmp_path / "two", 10, seed=2)))
    assert len(one & two) == 0


@pytest.mark.usefixtures("forked")
def test_a_killed_device_goes_on_at_the_chunk_that_it_was_reading(folder: Path, tmp_path: Path) -> None:
    """`kill -9` costs no more than one chunk: of the documents before it, none comes again."""
    config = config_for(folder)
    code = (
        "import os, sys; from itertools import islice; from pathlib import Path\n"
        "from peer.data.batching.batches import open_batches; from peer.config.run import RunConfig\n"
        "folder, state, config, count = sys.argv[1:]\n"
        "batches = open_batches(RunConfig.from_json(config), Path(folder) / 'tokenizer', Path(state), 1, 7)\n"
        "list(islice(batches, int(count))); os.kill(os.getpid(), 9)\n"
    )
    maker = SampleMaker(config, folder / "tokenizer", np.random.default_rng(0))
    chunks, ends, drawn = list[list[str]](), [0], list[object]()  # ends: of samples
    with open_documents(config, 1) as documents:
        for doublings in range(4):
            drawn.append(documents.position()["drawn"])
            chunks.append(take_documents(documents, FIRST_CHUNK_CHARACTERS << doublings))
            ends.append(ends[-1] + len(maker.samples(chunks[-1], documents.count)))
    assert ends[3] % 7  # samples of the third chunk wait for the fourth
    count = (ends[3] + ends[4]) // 2 // 7  # the last of these batches is from the midst of the fourth chunk
    arguments = [str(folder), str(tmp_path), config.to_json(), str(count)]
    assert subprocess.run([sys.executable, "-c", code, *arguments], check=False).returncode == -9
    place = json.loads((tmp_path / STATE_FILE).read_text())
    assert place["documents"]["drawn"] == drawn[3]
    assert place["batches"] == ends[3] // 7
    again = numbers_in(folder, first_batches(folder, tmp_path, 50))
    assert again <= {number for text in chunks[3] for number in numbers_of(text)}
    assert again


def test_a_place_in_other_sources_means_nothing(folder: Path, tmp_path: Path) -> None:
    """After a change of the sources or of the device's identity, reading starts anew, without complaint."""
    expected = rows(first_batches(folder, tmp_path / "fresh", 3, seed=2))
    first_batches(folder, tmp_path / "used", 20, seed=1)
    assert rows(first_batches(folder, tmp_path / "used", 3, seed=2)) == expected


@pytest.mark.parametrize(
    "damage",
    [
        {"documents": None},
        {"documents": {}},
        {"documents": {"drawn": [1], "streams": []}},
        {"documents": {"drawn": [-1], "streams": [{}]}},
        {"documents": {"drawn": [1], "streams": [{"epoch": 0}]}},
        {"batches": "many"},
    ],
)
def test_a_damaged_place_is_ignored_and_said(folder: Path, tmp_path: Path, damage: dict[str, Any]) -> None:
    """A file that is no position costs a volunteer nothing but the place."""
    reports: list[str] = []
    first_batches(folder, tmp_path, 1)
    content = json.loads((tmp_path / STATE_FILE).read_text())
    (tmp_path / STATE_FILE).write_text(json.dumps(content | damage), encoding="utf-8")
    assert SavedPlaces(tmp_path / STATE_FILE, config_for(folder), 1).load(reports.append) is None
    [report] = reports
    assert "Ignoring the damaged data position" in report


def test_a_place_that_means_nothing_any_more_is_said(folder: Path, tmp_path: Path) -> None:
    """To nobody who has none yet, and once to a device that comes back with another number."""
    reports: list[str] = []
    for number in (1, 1, 2):
        with open_batches(
            config_for(folder), folder / "tokenizer", tmp_path, number, 8, report=reports.append
        ) as batches:
            next(batches)
    assert reports == [
        "The run's seed or shuffle, or this device's number, has changed: this device restarts its data."
    ]


def test_a_disk_that_is_full_stops_no_training(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A place that cannot be saved is said, and the batches come all the same."""
    (tmp_path / "state").touch()  # where a folder should be
    assert len(first_batches(folder, tmp_path / "state", 2)) == 2
    assert "Cannot save the data position" in caplog.text


def test_masks_are_drawn_anew_after_a_return(folder: Path, tmp_path: Path) -> None:
    """A device that reads the same documents again does not see the same masks."""
    first = first_batches(folder, tmp_path, 1)
    first_batches(folder, tmp_path, 2)
    again = first_batches(folder, tmp_path, 1)
    assert first[0].input_ids.tolist() != again[0].input_ids.tolist()


class Listed:
    """A stream of these documents, again and again, from one of them on; counts the characters that were taken."""

    def __init__(self, documents: list[str], begin: int = 0) -> None:
        self._documents, self._taken, self.characters = documents, begin, 0

    def __next__(self) -> str:
        taken = self._documents[self._taken % len(self._documents)]
        self._taken += 1
        self.characters += len(taken)
        return taken

    @property
    def epoch(self) -> int:
        return self._taken // len(self._documents)

    def position(self) -> Position:
        return {"taken": self._taken}

    def count(self, tokens: Sequence[int]) -> None:
        """The mixture of one source needs no counts."""


def test_documents_without_a_token_are_refused_once_read_twice(folder: Path) -> None:
    """Documents that the tokenizer makes nothing of end in one sentence, too, however many there are of them."""
    documents = Listed([" ", "\n"])
    batches = make_batches(
        documents, SampleMaker(config_for(folder), folder / "tokenizer", np.random.default_rng(0)), 1
    )
    with pytest.raises(ConfigError, match=r"^The run's data sources hold no text to train on: check their paths and "):
        next(batches)
    assert documents.epoch == 2


@pytest.mark.parametrize(
    ("documents", "begin"),
    [
        ([" " * FIRST_CHUNK_CHARACTERS, document(1), document(2)], 0),
        ([document(1), " " * FIRST_CHUNK_CHARACTERS], 1),
        ([WORDS[0]], 0),
    ],
    ids=["blanks first", "blanks last, where the device goes on", "a single word"],
)
def test_little_text_is_no_reason_to_refuse(folder: Path, documents: list[str], begin: int) -> None:
    """Neither many blanks before the first text, nor text that fills a sample only when read many times."""
    maker = SampleMaker(config_for(folder), folder / "tokenizer", np.random.default_rng(0))
    batches = make_batches(Listed(documents, begin), maker, 1)
    assert [next(batches)[0].samples for _ in range(5)] == [1] * 5


def test_the_first_batch_does_not_wait_for_much_text(folder: Path) -> None:
    """The trainer stands still until it comes; later chunks are larger, up to a limit."""
    texts = [document(number) for number in range(3000)]
    documents, longest = Listed(texts), max(map(len, texts))
    maker = SampleMaker(config_for(folder), folder / "tokenizer", np.random.default_rng(0))
    batches = make_batches(documents, maker, 64)
    next(batches)
    assert documents.characters <= FIRST_CHUNK_CHARACTERS + longest
    chunks, before = [], documents.characters
    while len(chunks) < 6:
        next(batches)
        if documents.characters > before:
            chunks.append(documents.characters - before)
            before = documents.characters
    assert chunks[0] < chunks[1] < chunks[2] < chunks[3]
    assert CHUNK_CHARACTERS <= chunks[-1] <= CHUNK_CHARACTERS + longest


def test_the_time_that_training_waits_is_counted(folder: Path, tmp_path: Path) -> None:
    """The stream reports how long its consumer stood still, by the clock it was given."""
    ticks = iter(range(1000))
    config = config_for(folder)
    with open_batches(config, folder / "tokenizer", tmp_path, 1, 8, clock=lambda: float(next(ticks))) as batches:
        next(batches)
        next(batches)
        assert batches.wait_s == 2.0
