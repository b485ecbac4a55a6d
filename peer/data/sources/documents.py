"""Endless streams of documents, each with a position from which a device can resume.

The order depends on the device's number, so peers read different parts of the run's sources. The
position is a small JSON value. A thread prefetches each source (`SourceStream`), so training does
not wait for a failing source.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import NonNegativeInt, TypeAdapter

from auth.errors import ConfigError
from peer.config.data import Source
from peer.config.run import RunConfig
from peer.data.selection.filters import OpenFilters, build_filters
from peer.data.selection.hashing import Part, PartFilter
from peer.data.sources.faults import Pauses, StreamClosed
from peer.data.sources.files import file_shards
from peer.data.sources.prefetching import CHECK_S, Prefetched
from peer.data.sources.reader import BlockPosition, Reserve, SourcePlan, SourceReader, no_wait
from peer.data.sources.units import Shard, Units, builtin_shards

logger = logging.getLogger(__name__)

Position = Mapping[str, Any]  # position in a stream; JSON values only
Report = Callable[[str], None]  # receives a sentence that explains why documents are missing

CLOSING_S = 1.0  # timeout for joining a thread, which may be waiting for the network
CHARACTERS_A_TOKEN = 4  # estimate used until a document's tokens are counted
LOST_TURN_TOKENS = 500  # tokens that a failing source loses per turn


class SourceStream:
    """An endless stream of one source's documents, prefetched in a thread.

    At most three blocks are in memory: the current, the next, and one waiting for the queue.
    """

    def __init__(self, plan: SourcePlan, position: BlockPosition | None, report: Report, pauses: Pauses) -> None:
        self.reader = SourceReader(plan, position, report, pauses)  # its `trouble` says why documents are missing
        self._position, self._pauses = position or BlockPosition(), pauses
        self._documents: Sequence[str | None] = ()  # documents of the current block
        self._index = self._position.index
        self._blocks = Prefetched(self.reader.blocks(), 1, "source")

    def take(self) -> str | None:
        """Return the next document, or None while the source is failing."""
        while True:
            for index in range(self._index, len(self._documents)):
                if (document := self._documents[index]) is not None:
                    self._index = index + 1
                    return document
            if not self._next_block():
                return None

    @property
    def epoch(self) -> int:
        """The number of complete passes over the source."""
        return self._position.epoch

    def position(self) -> BlockPosition:
        """Return the position of the next document."""
        return replace(self._position, index=self._index)

    def is_ready(self) -> bool:
        """Return whether `take` would return a document, perhaps after waiting for it."""
        return self._index < len(self._documents) or self.reader.trouble is None or self._blocks.is_ready()

    def close(self) -> None:
        """Wait for the thread to end, but not for the network; the pauses must be closed before."""
        self._blocks.close(CLOSING_S)

    def _next_block(self) -> bool:
        while True:
            self._pauses(0)
            try:
                block = self._blocks.take(0 if self.reader.trouble is not None else CHECK_S)
            except StopIteration:  # the stream was closed after the check above
                raise StreamClosed from None
            if block is not None:
                self._position, self._documents, self._index = block.position, block.documents, block.position.index
                return True
            if self.reader.trouble is not None:
                return False


class MixedDocuments:
    """A mixture of sources in fixed proportions of tokens.

    The next document comes from the source that is furthest behind its share. A document's tokens
    are estimated from its characters until they are counted. A failing source forfeits its turns.
    Close the mixture, or use it as a context manager.
    """

    def __init__(
        self, streams: Sequence[SourceStream], weights: Sequence[float], drawn: Sequence[int] | None, pauses: Pauses
    ) -> None:
        self._streams, self._weights, self._pauses = streams, weights, pauses
        self._drawn = [0] * len(streams) if drawn is None else list(drawn)  # number of tokens per source
        self._uncounted: list[tuple[int, int]] = []  # source and estimated tokens of each document

    def __next__(self) -> str:
        while True:
            self._await_any()
            number = min(range(len(self._streams)), key=lambda i: self._drawn[i] / self._weights[i])
            document = self._streams[number].take()
            if document is not None:
                estimate = max(1, len(document) // CHARACTERS_A_TOKEN)
                self._drawn[number] += estimate
                self._uncounted.append((number, estimate))
                return document
            self._drawn[number] += LOST_TURN_TOKENS

    def count(self, tokens: Sequence[int]) -> None:
        """Replace estimates by the counted tokens of each document returned since the last call."""
        for (number, estimate), counted in zip(self._uncounted, tokens, strict=True):
            self._drawn[number] += max(1, int(counted)) - estimate  # at least 1, so that other sources have turns
        self._uncounted.clear()

    @property
    def epoch(self) -> int:
        """The number of complete passes over all sources."""
        return min(stream.epoch for stream in self._streams)

    def position(self) -> Position:
        """Return the position of the next document."""
        return {"drawn": list(self._drawn), "streams": [asdict(stream.position()) for stream in self._streams]}

    def close(self) -> None:
        """Stop reading; waiting consumers get `StreamClosed`."""
        self._pauses.close()
        for stream in self._streams:
            stream.close()

    def __enter__(self) -> MixedDocuments:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _await_any(self) -> None:
        """Wait until a source is ready. Raises `ConfigError` if all pause and none ever worked."""
        while not any(stream.is_ready() for stream in self._streams):
            readers = [stream.reader for stream in self._streams]
            troubles = [reader.trouble for reader in readers if reader.trouble is not None]
            hopeless = len(troubles) == len(readers) and all(trouble.resting for trouble in troubles)
            if hopeless and not any(reader.has_given for reader in readers):
                raise ConfigError(troubles[0].text)
            self._pauses(CHECK_S)


def source_names(sources: Sequence[Source]) -> list[str]:
    """Name each source by a digest of its settings (not weight or licence) and a serial number."""
    names: list[str] = []
    for source in sources:
        name = sha256(source.model_dump_json(exclude={"weight", "license"}).encode()).hexdigest()
        names.append(f"{name[:32]}-{sum(other.startswith(name[:32]) for other in names)}")
    return names


def check_position(value: Any, sources: int) -> Position:
    """Validate a position from a file. Raises `ValueError` or `TypeError` if it is invalid."""
    if not isinstance(value, dict) or value.keys() != {"drawn", "streams"}:
        raise ValueError("a position has the keys `drawn` and `streams`")
    TypeAdapter(list[NonNegativeInt]).validate_python(value["drawn"], strict=True)
    if not len(value["drawn"]) == len([_at(place) for place in value["streams"]]) == sources:
        raise ValueError(f"a position in {sources} sources has as many of each")
    return value


def _at(place: Mapping[str, Any] | None) -> BlockPosition | None:
    """Parse the position in one source (None: never read). Raises `ValueError` or `TypeError`."""
    if place is None:
        return None
    if set(place) != {field.name for field in fields(BlockPosition)}:
        raise ValueError("a place in a source has all its keys, and no others")
    return BlockPosition(**place)


def open_documents(
    config: RunConfig,
    device_number: int,
    position: Position | None = None,
    *,
    part: Part | None = "training",
    tokenizer_dir: Path | None = None,
    report: Report = logger.warning,
    pauses: Pauses | None = None,
    reserve: Reserve = no_wait,
) -> MixedDocuments:
    """Open the run's documents in this device's order, starting at `position`.

    The part `validation` consists of the held-out documents, `training` of all others. With
    `tokenizer_dir`, sources can be sampled by the run's own tokenizer. Starts threads. Raises
    `ConfigError` immediately for unusable filters, and on reading for unusable sources.
    """
    sources, pauses = config.data.sources, pauses or Pauses()
    division = [] if part is None else [PartFilter(part, config.data.validation.share).keep]
    positions: Sequence[Position | None] = [None] * len(sources) if position is None else position["streams"]
    streams = [
        SourceStream(
            _plan(config, number, device_number, build_filters(source, division, tokenizer_dir), reserve),
            _at(place),
            report,
            pauses,
        )
        for number, (source, place) in enumerate(zip(sources, positions, strict=True))
    ]
    drawn = None if position is None else position["drawn"]
    return MixedDocuments(streams, [source.weight for source in sources], drawn, pauses)


def sample_documents(config: RunConfig, limit: int) -> Iterator[str]:
    """Yield up to `limit` different documents for a tokenizer, in proportion to source weights.

    Perplexity sampling is off, because it may need the tokenizer. Raises `ConfigError` for an
    unreadable source, and `UnreachableError`, before reading anything, if the hub does not respond.
    """
    for source in config.data.sources:
        if source.kind == "hub":
            from peer.data.sources.datasets import require_hub

            require_hub(source)
    total_weight = sum(source.weight for source in config.data.sources)
    for number, source in enumerate(config.data.sources):
        share = max(1, round(limit * source.weight / total_weight))
        filters = build_filters(source.model_copy(update={"sampling": None}), [], None)
        yield from _first_epoch(_plan(config, number, 0, filters, no_wait), share)


def _first_epoch(plan: SourcePlan, limit: int) -> Iterator[str]:
    pauses, reports = Pauses(), list[str]()  # the stream's thread appends to `reports`
    stream = SourceStream(plan, None, reports.append, pauses)
    try:
        given = 0
        while given < limit:
            document, trouble = stream.take(), stream.reader.trouble
            refusal = trouble.text if document is None and trouble is not None and trouble.resting else None
            while reports:
                if (text := reports.pop(0)) != refusal:
                    logger.warning(text)
            if stream.epoch:
                return
            if refusal is not None:
                raise ConfigError(refusal)
            if document is not None:
                given += 1
                yield document
            else:
                pauses(CHECK_S)
    finally:
        pauses.close()
        stream.close()


def _plan(config: RunConfig, number: int, device_number: int, filters: OpenFilters, reserve: Reserve) -> SourcePlan:
    source = config.data.sources[number]
    return SourcePlan(
        name=source.name,
        open_units=partial(open_units, source),
        open_filters=filters,
        seed=(config.run.seed, int(source_names(config.data.sources)[number].replace("-", ""), 16)),  # for all phases
        device_number=device_number,
        block_documents=config.data.shuffle_buffer,
        reserve=reserve if source.is_remote else no_wait,
    )


def open_units(source: Source, *, whole: bool = False) -> Units:
    """Open a source's units; unless `whole`, shards are divided if there are few."""
    return Units(_shards(source), whole=whole)


def _shards(source: Source) -> Sequence[Shard]:
    if source.kind == "builtin":
        return builtin_shards()
    if source.kind in ("text", "jsonl"):
        return file_shards(source)
    if source.kind == "parquet":
        from peer.data.sources.parquet import parquet_shards

        return parquet_shards(source)
    from peer.data.sources.datasets import dataset_shards

    return dataset_shards(source)
