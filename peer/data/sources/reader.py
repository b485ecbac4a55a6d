"""An endless, fault-tolerant reader of one source, which yields filtered, shuffled blocks.

A block consists of the next `size` records from a position, shuffled across units, and can be read
again from that position. `peer.data.sources.documents` runs the reader in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, NonNegativeInt
from pydantic.dataclasses import dataclass as strict_dataclass
from tenacity import Retrying

from auth.errors import ConfigError, UnreachableError
from peer.data.selection.filters import OpenFilters, keep_all
from peer.data.selection.masks import DocumentFilter
from peer.data.sources.faults import REST_S, Pauses, Setbacks, SourcePlace, StreamClosed, describe, retrying
from peer.data.sources.units import Record, UnitReader, Units, deal_units

BARREN_RECORDS = 100_000  # documents rejected in a row before a warning
CHECK = "check its `path`, `text_field` and `filters`"
LATER = f"trying again in {REST_S / 60:.0f} minutes"

Reserve = Callable[[int], float]  # bytes of text read -> seconds to wait
MAX_BLOCK_CHARACTERS = 50_000_000  # long documents make a block smaller, so fewer are shuffled together


def no_wait(_: int) -> float:
    """Return 0: text from this machine is not throttled."""
    return 0.0


@dataclass(frozen=True)
class SourcePlan:
    """A source's units, filters and order."""

    name: str  # the source's name in messages
    open_units: Callable[[], Units]
    open_filters: OpenFilters  # called at the beginning of each epoch
    seed: tuple[int, ...]  # seed of the run and the source; equal on every device
    device_number: int
    block_documents: int
    reserve: Reserve = no_wait


@strict_dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class BlockPosition(SourcePlace):
    """A document's index in a block, and the block's position in the source; saved as JSON."""

    units: NonNegativeInt | None = None  # number of the source's units; None before it was opened
    size: NonNegativeInt | None = None  # number of records in the block; None before it was read
    index: NonNegativeInt = 0  # index of the document in the block

    def resume(self, units: int) -> tuple[SourcePlace, int | None, int]:
        """Return the block's position, its size (None: default), and how many records to skip."""
        if self.units is None:
            return SourcePlace(), None, 0
        if self.units != units or self.turn >= units:  # the source has changed: begin its next epoch
            return SourcePlace(self.epoch + 1), None, 0
        return SourcePlace(self.epoch, self.block, self.turn, self.state), self.size, self.index


@dataclass(frozen=True)
class Block:
    """Shuffled documents, with None in place of rejected ones."""

    position: BlockPosition  # position of the first document that is new in this session
    documents: Sequence[str | None]


@dataclass(frozen=True)
class Trouble:
    """The reason why a source currently yields no documents."""

    text: str
    resting: bool  # whether the source pauses; False while it is being retried


@dataclass
class Gathered:
    """A block's records in the order of the source, and the error that ended the block, if any."""

    place: SourcePlace
    limit: int
    records: list[Record] = field(default_factory=list)
    characters: int = 0
    units_ended: int = 0
    error: Exception | None = None

    def add(self, record: Record) -> None:
        self.records.append(record)
        self.characters += len(record or "")

    @property
    def is_full(self) -> bool:
        return len(self.records) >= self.limit or self.characters >= MAX_BLOCK_CHARACTERS


class BlockReader:
    """An endless reader of blocks; an epoch's end or a failed unit ends a block early."""

    def __init__(
        self, units: Units, deal: Callable[[int], NDArray[np.int64]], place: SourcePlace, attempts: Retrying
    ) -> None:
        self._units, self._deal, self._attempts = units, deal, attempts
        self._unit: UnitReader | None = None
        self.place = place
        self._order = deal(place.epoch)

    @property
    def unit_name(self) -> str:
        """The current unit's name, for use in messages."""
        return self._units.name(int(self._order[self.place.turn]))

    def read(self, limit: int) -> Gathered:
        """Read the next block; after an error, `place` is the position of the error."""
        gathered = Gathered(self.place, limit)
        while not gathered.is_full and self.place.epoch == gathered.place.epoch:
            try:
                ended = self._attempts(self._read_on, gathered)
            except StreamClosed:
                raise
            except Exception as error:  # noqa: BLE001 - fault boundary: any file system or format
                gathered.error = error
                break
            if ended:
                gathered.units_ended += 1
                self.go_to(self.place.next_unit(len(self._units)))
        if self._unit is not None:
            self.place = replace(self.place, state=self._unit.state())
        if self.place.epoch == gathered.place.epoch:
            self.place = replace(self.place, block=gathered.place.block + 1)
        return gathered

    def go_to(self, place: SourcePlace) -> None:
        """Continue at another position."""
        self.close()
        if place.epoch != self.place.epoch:
            self._order = self._deal(place.epoch)
        self.place = place

    def close(self) -> None:
        """Close the current unit's file."""
        if self._unit is not None:
            self._unit.close()
        self._unit = None

    def _read_on(self, gathered: Gathered) -> bool:
        """Add records of the unit until the block is full; return whether the unit has ended."""
        if self._unit is None:
            self._unit = self._units.open(int(self._order[self.place.turn]), self.place.state)
        try:
            for record in self._unit:
                gathered.add(record)
                if gathered.is_full:
                    return False
            return True
        except Exception:  # of any type; the next attempt resumes after the last good record
            self.place = replace(self.place, state=self._unit.state())
            self.close()
            raise


class SourceReader:
    """The reader of a source's blocks, with the source's current `trouble`."""

    def __init__(
        self, plan: SourcePlan, position: BlockPosition | None, report: Callable[[str], None], pauses: Pauses
    ) -> None:
        self._plan, self._position, self._report, self._pauses = plan, position or BlockPosition(), report, pauses
        self.trouble: Trouble | None = None
        self.has_given = position is not None  # whether documents were yielded, in this session or before
        self._setbacks = Setbacks()
        self._filters: tuple[int, Sequence[DocumentFilter]] = (-1, ())  # (epoch, filters of the epoch)
        self._barren_records = self._barren_units = 0  # counts since the last kept document
        self._damaged_records = self._damaged_told = 0

    def blocks(self) -> Iterator[Block]:
        """Yield blocks endlessly. Raises `StreamClosed` once the pauses are closed."""
        units = self._open()
        count = len(units)
        place, size, index = self._position.resume(count)
        deal = partial(deal_units, count, self._plan.device_number, self._plan.seed)
        with closing(BlockReader(units, deal, place, retrying(self._pauses, self._fails_again))) as reader:
            while True:
                yield from self._read_block(reader, size or self._plan.block_documents, index, count)
                size, index = None, 0

    def _read_block(self, reader: BlockReader, limit: int, index: int, units: int) -> Iterator[Block]:
        """Read a block and yield it if any document is kept; its records are freed on return."""
        gathered = reader.read(limit)
        self._barren_units += gathered.units_ended
        if gathered.records:
            self._setbacks.read_something()
            documents = self._shuffled(gathered)
            self._count_damaged(gathered)
            if any(document is not None for document in documents):
                self._barren_records = self._barren_units = 0
                self.has_given, self.trouble = True, None
                at = asdict(gathered.place)
                yield Block(BlockPosition(**at, units=units, size=len(documents), index=index), documents)
            else:
                self._barren_records += len(documents)
            self._pauses(self._plan.reserve(sum(len(record.encode()) for record in gathered.records if record)))
        if gathered.error is not None:
            self._leave_out(reader, gathered.error, units)
        self._mind_barrenness(units)

    def _open(self) -> Units:
        attempts, action = retrying(self._pauses, self._fails_to_open), f"Cannot open {self._plan.name}"
        while True:
            try:
                return attempts(self._plan.open_units)
            except StreamClosed:
                raise
            except Exception as error:  # noqa: BLE001 - fault boundary: any file system or format
                self._rest(_sentence(error, action, f"; {LATER}."))

    def _shuffled(self, gathered: Gathered) -> Sequence[str | None]:
        records, place, plan = gathered.records, gathered.place, self._plan
        wanted = np.array([bool(record) for record in records])
        if self._filters[0] != place.epoch:
            self._filters = (place.epoch, plan.open_filters())
        wanted[wanted] = keep_all(self._filters[1], [record for record in records if record])
        seed = (*plan.seed, plan.device_number, place.epoch, place.block)
        order = np.random.default_rng(seed).permutation(len(records))
        return [records[index] if wanted[index] else None for index in order]

    def _count_damaged(self, gathered: Gathered) -> None:
        """Count damaged records, and report their number whenever it has doubled."""
        self._damaged_records += gathered.records.count(None)
        if self._damaged_records > 2 * self._damaged_told:
            self._damaged_told = self._damaged_records
            self._report(
                f"Skipped {self._damaged_records} damaged records of {self._plan.name} so far: "
                "too long, not in the file's encoding, or without text in the field that `text_field` names."
            )

    def _leave_out(self, reader: BlockReader, error: Exception, units: int) -> None:
        action = f"Cannot read {reader.unit_name}"
        go_to, rest = self._setbacks.failed(reader.place, units)
        self._barren_units += 1
        if rest:
            self._barren_units = 0
            self._rest(_sentence(error, action, f"; {LATER}."))
        else:
            self._report(f"{_sentence(error, action, '.')} It is left out until the source begins anew.")
        reader.go_to(go_to)

    def _mind_barrenness(self, units: int) -> None:
        """Pause if no unit has an accepted document; warn after a long series of rejected ones."""
        if self._barren_units >= units:
            self._rest(f"The data source {self._plan.name} has no documents that are wanted: {CHECK}.")
        elif self._barren_records >= BARREN_RECORDS:
            text = f"The last {self._barren_records} documents of {self._plan.name} were not wanted: {CHECK}."
            self.trouble = Trouble(text, resting=False)
            self._report(text)
        else:
            return
        self._barren_records = self._barren_units = 0

    def _fails_to_open(self, error: BaseException) -> None:
        text = _sentence(error, f"Cannot open {self._plan.name}", ".")
        self.trouble = Trouble(text, resting=False)
        self._report(f"{text} Trying again.")

    def _fails_again(self, error: BaseException) -> None:
        self.trouble = Trouble(f"Cannot read {self._plan.name} ({describe(error)}).", resting=False)

    def _rest(self, text: str) -> None:
        self.trouble = Trouble(text, resting=True)
        self._report(text)
        self._pauses(REST_S)


def _sentence(error: BaseException, action: str, ending: str) -> str:
    """Describe a failure; our own errors are already complete sentences."""
    ours = isinstance(error, (ConfigError, UnreachableError))
    return str(error) if ours else f"{action} ({describe(error)}){ending}"
