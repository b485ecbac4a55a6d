"""Batches change their shape exactly where a phase begins, and the place in the data is kept."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from peer.config.run import RunConfig
from peer.data.batching.batches import STATE_FILE, BatchStream, PhasedBatches, open_batches
from peer.data.prepare import prepare_tokenizer

SEED = 1
BATCHES_OF_SEVERAL_CHUNKS = 300  # the place moves on when the stream takes up its next chunk of documents


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of numbered documents and a tokenizer trained on it."""
    folder = tmp_path_factory.mktemp("run")
    documents = (f"Document {number} tells of {number * 7} things. It ends here." for number in range(2000))
    (folder / "corpus.txt").write_text("\n\n".join(documents), encoding="utf-8")
    prepare_tokenizer(run_on(folder), folder / "tokenizer")
    return folder


def run_on(folder: Path) -> RunConfig:
    """A run in three phases: 16 tokens, then 32 in smaller microbatches, then 64."""
    return RunConfig.from_mapping(
        {
            "tokenizer": {"vocab_size": 150},
            "data": {
                "sources": [{"kind": "text", "path": str(folder / "corpus.txt")}],
                "sequence_length": 16,
                "microbatch_size": 8,
                "shuffle_buffer": 16,
            },
            "phases": [
                {"from_step": 3, "sequence_length": 32, "microbatch_size": 2},
                {"from_step": 6, "sequence_length": 64},
            ],
        }
    )


def open_phase(config: RunConfig, folder: Path, state: Path, opened: list[int], step: int) -> BatchStream:
    """The stream of the phase in force after `step`, as the worker opens it; keeps the step."""
    opened.append(step)
    now = config.at_step(step)
    return open_batches(now, folder / "tokenizer", state, SEED, now.data.microbatch_size)


def test_batches_have_the_shape_of_the_phase_in_force(folder: Path, tmp_path: Path) -> None:
    """Between two phases the stream is opened once; a peer that leaps over a phase lands in the right one."""
    config, step, opened, shapes = run_on(folder), [0], list[int](), []
    enter = partial(open_phase, config, folder, tmp_path, opened)
    with PhasedBatches(config, lambda: step[0], enter) as batches:
        for now in (0, 1, 2, 3, 5, 8):
            step[0] = now
            shapes.append(tuple(next(batches).input_ids.shape))
    assert shapes == [(8, 16), (8, 16), (8, 16), (2, 32), (2, 32), (2, 64)]
    assert opened == [0, 3, 8]


def test_a_late_joiner_begins_in_the_phase_of_its_step(folder: Path, tmp_path: Path) -> None:
    """The first stream that is opened is that of the step at which the peer came."""
    config, opened = run_on(folder), list[int]()
    with PhasedBatches(config, lambda: 4, partial(open_phase, config, folder, tmp_path, opened)) as batches:
        assert tuple(next(batches).input_ids.shape) == (2, 32)
    assert opened == [4]


def test_waiting_adds_up_over_the_phases(folder: Path, tmp_path: Path) -> None:
    """The time waited in a phase that is over still counts, so that the total never falls."""
    config, step = run_on(folder), [0]
    enter = partial(open_phase, config, folder, tmp_path, list[int]())
    with PhasedBatches(config, lambda: step[0], enter) as batches:
        next(batches)
        before = batches.wait_s
        step[0] = 3
        next(batches)
        assert batches.wait_s > before > 0


def saved_place(state: Path) -> Any:
    """Where the device stands in the run's documents, as it is written down."""
    return json.loads((state / STATE_FILE).read_text(encoding="utf-8"))["documents"]


def test_the_place_in_the_data_survives_the_change(folder: Path, tmp_path: Path) -> None:
    """The new phase reads on from the documents at which the one before it stood, which are not the first."""
    config, step = run_on(folder), [0]
    enter = partial(open_phase, config, folder, tmp_path, list[int]())
    with PhasedBatches(config, lambda: step[0], enter) as batches:
        next(batches)
        at_first = saved_place(tmp_path)
        for _ in range(BATCHES_OF_SEVERAL_CHUNKS):
            next(batches)
        before = saved_place(tmp_path)
        step[0] = 3
        next(batches)
        assert saved_place(tmp_path) == before != at_first


def test_a_device_goes_on_in_the_sources_that_stay(folder: Path, tmp_path: Path) -> None:
    """A phase without a source keeps its place for the next one; a new source begins at its first documents."""
    other = tmp_path / "other.txt"
    other.write_text("\n\n".join(f"Another text has {n} words. It ends." for n in range(3000)), encoding="utf-8")
    corpus, added = str(folder / "corpus.txt"), {"kind": "text", "path": str(other)}
    phases = [
        {"from_step": 1, "sources": [added]},
        {"from_step": 2, "sources": [added, {"kind": "text", "path": corpus, "weight": 3.0}]},
    ]
    config = RunConfig.from_mapping(run_on(folder).model_dump() | {"phases": phases})
    step, saved = [0], []
    enter = partial(open_phase, config, folder, tmp_path, list[int]())
    with PhasedBatches(config, lambda: step[0], enter) as batches:
        for now in range(3):
            step[0] = now
            for _ in range(BATCHES_OF_SEVERAL_CHUNKS if now == 0 else 1):
                next(batches)
            saved.append(saved_place(tmp_path)["streams"])
        batches.close()
    assert saved[0][0]["block"] > saved[1][0]["block"] == 0
    assert saved[2] == [*saved[1], *saved[0]]


def test_a_microbatch_is_handed_out_in_parts(folder: Path, tmp_path: Path) -> None:
    """As large as the consumer wants them when it takes up the microbatch; what is left at a phase's end is dropped."""
    config, step, wanted = run_on(folder), [0], [3]
    enter = partial(open_phase, config, folder, tmp_path, list[int]())
    with PhasedBatches(config, lambda: step[0], enter, lambda samples: min(samples, wanted[0])) as batches:
        parts = [next(batches) for _ in range(3)]
        assert [part.samples for part in parts] == [3, 3, 2]
        assert all(int(part.label_positions.max()) < part.input_ids.numel() for part in parts)
        wanted[0] = 8
        assert next(batches).samples == 8
        wanted[0] = 4
        next(batches)
        step[0] = 3
        assert tuple(next(batches).input_ids.shape) == (2, 32)
