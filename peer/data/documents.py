"""Endless streams of documents: which document a device reads next, and how it finds its place again.

The order depends on the device's seed, so that no two peers read the same documents at the same time; the position is a
small JSON value, so that a volunteer who returns goes on and does not start at the first document again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from auth.errors import ConfigError
from peer.config.data import Source
from peer.data.builtin_corpus import builtin_documents
from peer.data.held_out import Part, PartOfDocuments
from peer.data.hub_datasets import HubDocuments
from peer.data.local_files import jsonl_documents, text_documents
from peer.data.sampled_documents import SampledDocuments, open_sampling
from peer.run_config import RunConfig

Position = Mapping[str, Any]  # JSON values only


class DocumentStream(Protocol):
    """Documents without end; an unusable one is the empty string."""

    def __next__(self) -> str: ...

    @property
    def epoch(self) -> int:
        """How often everything was read."""
        ...

    def position(self) -> Position:
        """Where the next document stands."""
        ...


class ShuffledDocuments:
    """A sequence of documents, read in a new random order each epoch."""

    def __init__(self, documents: Sequence[str], seed: int, position: Position | None = None) -> None:
        if not documents:
            raise ConfigError("A data source has no documents: check its `path`.")
        self._documents, self._seed = documents, seed
        self._start_epoch(0 if position is None else int(position["epoch"]))
        self._index = 0 if position is None else min(int(position["index"]), len(documents))

    def __next__(self) -> str:
        if self._index == len(self._documents):
            self._start_epoch(self.epoch + 1)
        self._index += 1
        return self._documents[int(self._order[self._index - 1])]

    def position(self) -> Position:
        return {"epoch": self.epoch, "index": self._index}

    def _start_epoch(self, epoch: int) -> None:
        self.epoch, self._index = epoch, 0
        self._order = np.random.default_rng((self._seed, epoch)).permutation(len(self._documents))


class MixedDocuments:
    """Several streams in fixed proportions: next comes the stream that is furthest behind its share."""

    def __init__(
        self, streams: Sequence[DocumentStream], weights: Sequence[float], drawn: Sequence[int] | None = None
    ) -> None:
        self._streams, self._weights = streams, weights
        self._drawn = [0] * len(streams) if drawn is None else list(drawn)

    def __next__(self) -> str:
        stream = min(range(len(self._streams)), key=lambda i: (self._drawn[i] + 1) / self._weights[i])
        self._drawn[stream] += 1
        return next(self._streams[stream])

    @property
    def epoch(self) -> int:
        return min(stream.epoch for stream in self._streams)

    def position(self) -> Position:
        return {"drawn": list(self._drawn), "streams": [dict(stream.position()) for stream in self._streams]}


def open_documents(
    config: RunConfig,
    device_seed: int,
    position: Position | None = None,
    *,
    part: Part = "training",
    tokenizer_dir: Path | None = None,
) -> DocumentStream:
    """The documents of a run in this device's order, from `position` on; raises `ConfigError`.

    Of the part `training` are all that are not held out, of the part `validation` those that are. With
    `tokenizer_dir`, sources can be sampled by the run's own tokenizer.
    """
    sources = config.data.sources
    positions: Sequence[Position | None] = [None] * len(sources) if position is None else position["streams"]
    streams = [
        _sampled(_open_source(config, source, _mix(config.run.seed, device_seed, number), place), source, tokenizer_dir)
        for number, (source, place) in enumerate(zip(sources, positions, strict=True))
    ]
    mixed = MixedDocuments(
        streams, [source.weight for source in sources], None if position is None else position["drawn"]
    )
    return PartOfDocuments(mixed, part, config.data.validation.share)


def sample_documents(config: RunConfig, limit: int) -> Iterator[str]:
    """Up to `limit` documents, none twice, each source in proportion to its weight; to train a tokenizer on."""
    total_weight = sum(source.weight for source in config.data.sources)
    for number, source in enumerate(config.data.sources):
        stream = _open_source(config, source, seed=_mix(config.run.seed, number), position=None)
        share = max(1, round(limit * source.weight / total_weight))
        yield from islice(_first_epoch(stream), share)


def device_seed(peer_id: str) -> int:
    """A number that is the same for a device in every session and differs between devices."""
    return int.from_bytes(sha256(peer_id.encode()).digest()[:8], "big")


def _first_epoch(stream: DocumentStream) -> Iterator[str]:
    while True:
        document = next(stream)
        if stream.epoch:
            return
        yield document


def _sampled(stream: DocumentStream, source: Source, tokenizer_dir: Path | None) -> DocumentStream:
    if source.sampling is None and source.duplicates == "none":
        return stream
    return SampledDocuments(stream, open_sampling(source, tokenizer_dir), source.duplicates)


def _open_source(config: RunConfig, source: Source, seed: int, position: Position | None) -> DocumentStream:
    if source.kind == "hub":
        return HubDocuments(source, seed, config.data.shuffle_buffer, position)
    return ShuffledDocuments(_read_source(source), seed, position)


def _read_source(source: Source) -> Sequence[str]:
    if source.kind == "builtin":
        return builtin_documents()
    assert source.path is not None
    return text_documents(source.path) if source.kind == "text" else jsonl_documents(source.path, source.text_field)


def _mix(*numbers: int) -> int:
    """One seed from several numbers, the same in every process."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
