"""Endless streams of documents: which document a device reads next, and how it finds its place again.

The order depends on the device's number, so that peers read different parts of the run's sources; the position is a
small JSON value, so that a volunteer who returns goes on and does not start at the first document again. Each source
is read ahead in a thread (`SourceStream`), so that nobody waits for a source that is in trouble.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, NonNegativeInt, TypeAdapter

from auth.errors import ConfigError
from peer.config.data import Source
from peer.config.run import RunConfig
from peer.data.selection.filters import OpenFilters, build_filters
from peer.data.selection.hashing import Part, PartFilter
from peer.data.sources.faults import Pauses
from peer.data.sources.files import FileUnits
from peer.data.sources.reader import Block, Position, Reserve, SourcePlan, SourceReader, Trouble, no_wait
from peer.data.sources.units import BuiltinUnits, Units

logger = logging.getLogger(__name__)

Report = Callable[[str], None]  # told in one sentence what keeps documents from coming

CHECK_S = 0.1  # how often who waits looks whether that is still worth it
CLOSING_S = 1.0  # a thread that waits for the network longer ends by itself, later
CHARACTERS_A_TOKEN = 4  # until a document's tokens are counted
LOST_TURN_TOKENS = 500  # that a source in trouble loses at a time
START: Position = {"epoch": 0, "block": 0, "turn": 0, "state": None, "units": None, "size": None, "index": 0}


class _SourcePosition(BaseModel):
    """The position that `SourceStream.position` returns."""

    model_config = ConfigDict(strict=True, extra="forbid")

    epoch: NonNegativeInt
    block: NonNegativeInt
    turn: NonNegativeInt
    state: dict[str, Any] | None
    units: NonNegativeInt | None
    size: NonNegativeInt | None
    index: NonNegativeInt


class SourceStream:
    """Documents without end, and what keeps them from coming.

    Three blocks are in memory at most: the one in use, the next, and one that waits for room.
    """

    def __init__(
        self, plan: SourcePlan, position: Position | None, report: Callable[[str], None], pauses: Pauses
    ) -> None:
        self._position = START if position is None else position
        self._block: Block | None = None
        self._index = 0  # in the block
        self._blocks: queue.Queue[Block] = queue.Queue(1)
        self._pauses = pauses
        self._crash: BaseException | None = None
        self.trouble: Trouble | None = None
        self.has_given = position is not None  # in this session or an earlier one
        reader = SourceReader(plan, position, self._deliver, self._note, report, pauses)
        self._thread = threading.Thread(target=self._read, args=(reader,), name="source", daemon=True)
        self._thread.start()

    def take(self) -> str | None:
        """The next document; None as long as the source is in trouble."""
        while True:
            documents = () if self._block is None else self._block.documents
            for index in range(self._index, len(documents)):
                document = documents[index]
                if document is not None:
                    self._index = index + 1
                    return document
            if not self._next_block():
                return None

    @property
    def epoch(self) -> int:
        """The number of times that everything was read."""
        return int(self._position["epoch"])

    def position(self) -> Position:
        """Return the position of the next document."""
        return self._position if self._block is None else {**self._position, "index": self._index}

    def is_ready(self) -> bool:
        """Return whether `take` has a document, or will wait for one."""
        in_hand = self._block is not None and self._index < len(self._block.documents)
        return in_hand or self.trouble is None or not self._blocks.empty() or self._crash is not None

    def close(self) -> None:
        """Wait for the thread, but not for the network; the pauses are closed before."""
        self._thread.join(CLOSING_S)

    def _next_block(self) -> bool:
        while True:
            try:
                block = self._blocks.get(block=self.trouble is None, timeout=CHECK_S)
            except queue.Empty:
                if self._crash is not None:
                    raise self._crash from None
                if self.trouble is not None:
                    return False
                self._pauses(0)
                continue
            place = block.place
            self._position = {
                "epoch": place.epoch,
                "block": place.block,
                "turn": place.turn,
                "state": place.state,
                "units": block.units,
                "size": len(block.documents),
                "index": 0,
            }
            self._block, self._index = block, block.begin
            return True

    def _read(self, reader: SourceReader) -> None:
        try:
            reader.run()
        except BaseException as error:  # noqa: BLE001 - raised again where the consumer stands
            self._crash = error

    def _deliver(self, block: Block) -> None:
        self.has_given, self.trouble = True, None
        while True:
            try:
                return self._blocks.put(block, timeout=CHECK_S)
            except queue.Full:
                self._pauses(0)

    def _note(self, trouble: Trouble) -> None:
        self.trouble = trouble


class DocumentStream(Protocol):
    """An endless stream of documents."""

    def __next__(self) -> str: ...

    @property
    def epoch(self) -> int:
        """The number of times that everything was read."""
        ...

    def position(self) -> Position:
        """Return the position of the next document."""
        ...

    def count(self, tokens: Sequence[int]) -> None:
        """Take the tokens of each document that was given since the last call."""
        ...


class MixedDocuments:
    """Several sources whose tokens stand in fixed proportions: next comes the one that is furthest behind its share.

    A document's tokens are estimated by its characters until they are counted. A source that is in trouble loses its
    turns. Close it, or use it as a context manager.
    """

    def __init__(
        self, streams: Sequence[SourceStream], weights: Sequence[float], drawn: Sequence[int] | None, pauses: Pauses
    ) -> None:
        self._streams, self._weights, self._pauses = streams, weights, pauses
        self._drawn = [0] * len(streams) if drawn is None else list(drawn)  # tokens of each source
        self._uncounted: list[tuple[int, int]] = []  # of each document: its source, and its tokens by estimate

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
        """Take the tokens of each document that was given since the last call."""
        for (number, estimate), counted in zip(self._uncounted, tokens, strict=True):
            self._drawn[number] += max(1, int(counted)) - estimate  # a source without tokens must not always be next
        self._uncounted.clear()

    @property
    def epoch(self) -> int:
        return min(stream.epoch for stream in self._streams)

    def position(self) -> Position:
        return {"drawn": list(self._drawn), "streams": [dict(stream.position()) for stream in self._streams]}

    def close(self) -> None:
        """End all reading; whoever waits for a document gets `StreamClosed`."""
        self._pauses.close()
        for stream in self._streams:
            stream.close()

    def __enter__(self) -> MixedDocuments:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _await_any(self) -> None:
        """Wait while all sources are in trouble; raises `ConfigError` if none ever gave anything, and none tries."""
        while not any(stream.is_ready() for stream in self._streams):
            troubles = [stream.trouble for stream in self._streams if stream.trouble is not None]
            hopeless = len(troubles) == len(self._streams) and all(trouble.resting for trouble in troubles)
            if hopeless and not any(stream.has_given for stream in self._streams):
                raise ConfigError(troubles[0].text)
            self._pauses(CHECK_S)


def source_names(sources: Sequence[Source]) -> list[str]:
    """Name each source by a digest of what is read there, whatever its weight and licence; equal ones are numbered."""
    names: list[str] = []
    for source in sources:
        name = sha256(source.model_dump_json(exclude={"weight", "license"}).encode()).hexdigest()
        names.append(f"{name[:32]}-{sum(other.startswith(name[:32]) for other in names)}")
    return names


def check_position(value: Any, sources: int) -> Position:
    """A position that comes from a file; raises `ValueError` if it is none, or of another number of sources."""
    if not isinstance(value, dict) or value.keys() != {"drawn", "streams"}:
        raise ValueError("a position has the keys `drawn` and `streams`")
    TypeAdapter(list[NonNegativeInt]).validate_python(value["drawn"], strict=True)
    TypeAdapter(list[_SourcePosition | None]).validate_python(value["streams"])
    if not len(value["drawn"]) == len(value["streams"]) == sources:
        raise ValueError(f"a position in {sources} sources has as many of each")
    return value


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
    """The documents of a run in this device's order, from `position` on.

    Of the part `training` are all that are not held out, of the part `validation` those that are. With
    `tokenizer_dir`, sources can be sampled by the run's own tokenizer. It starts threads. What is wrong with the
    sources is raised as `ConfigError` when documents are asked for, what is wrong with their filters at once.
    """
    sources, pauses = config.data.sources, pauses or Pauses()
    division = [] if part is None else [PartFilter(part, config.data.validation.share)]
    positions: Sequence[Position | None] = [None] * len(sources) if position is None else position["streams"]
    streams = [
        SourceStream(
            replace(
                _plan(config, number, device_number, build_filters(source, division, tokenizer_dir)),
                reserve=reserve if source.is_remote else no_wait,
            ),
            place,
            report,
            pauses,
        )
        for number, (source, place) in enumerate(zip(sources, positions, strict=True))
    ]
    drawn = None if position is None else position["drawn"]
    return MixedDocuments(streams, [source.weight for source in sources], drawn, pauses)


def sample_documents(config: RunConfig, limit: int) -> Iterator[str]:
    """Up to `limit` documents, none twice, each source in proportion to its weight; to train a tokenizer on.

    They are not sampled by perplexity, which may need the tokenizer. Raises `ConfigError` for any source that cannot be
    read, and `UnreachableError`, before anything is read, for a hub that does not answer.
    """
    for source in config.data.sources:
        if source.kind == "hub":
            from peer.data.sources.datasets import require_hub

            require_hub(source)
    total_weight = sum(source.weight for source in config.data.sources)
    for number, source in enumerate(config.data.sources):
        share = max(1, round(limit * source.weight / total_weight))
        filters = build_filters(source.model_copy(update={"sampling": None}), [], None)
        yield from _first_epoch(_plan(config, number, 0, filters), share)


def _first_epoch(plan: SourcePlan, limit: int) -> Iterator[str]:
    pauses, reports = Pauses(), list[str]()  # the stream's thread appends to them
    stream = SourceStream(plan, None, reports.append, pauses)
    try:
        given = 0
        while given < limit:
            document, trouble = stream.take(), stream.trouble
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


def _plan(config: RunConfig, number: int, device_number: int, filters: OpenFilters) -> SourcePlan:
    source = config.data.sources[number]
    return SourcePlan(
        name=source.name,
        open_units=partial(open_units, source),
        open_filters=filters,
        seed=(config.run.seed, int(source_names(config.data.sources)[number].replace("-", ""), 16)),  # in all phases
        device_number=device_number,
        block_documents=config.data.shuffle_buffer,
    )


def open_units(source: Source, *, whole: bool = False) -> Units:
    """Open the units of a source: by default cut so finely that many devices can share it, else as it lies there."""
    if source.kind == "builtin":
        return BuiltinUnits()
    if source.kind in ("text", "jsonl"):
        return FileUnits(source, whole=whole)
    if source.kind == "parquet":
        from peer.data.sources.parquet import ParquetUnits

        return ParquetUnits(source, whole=whole)
    from peer.data.sources.datasets import DatasetUnits

    return DatasetUnits(source, whole=whole)
