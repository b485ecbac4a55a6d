"""The endless reader of one source: block after block, filtered and shuffled, also after failures.

A block is as many records as are shuffled together, read from unit to unit. A block can be read again from its place:
it is the next `size` records from there.

`peer.data.sources.documents` runs the reader in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tenacity import Retrying

from auth.errors import ConfigError, UnreachableError
from peer.data.selection.filters import DocumentFilter, OpenFilters, keep_all
from peer.data.sources.faults import REST_S, Setbacks, SourcePlace, StreamClosed, describe, retrying
from peer.data.sources.units import Record, UnitReader, Units, deal_units

Position = Mapping[str, Any]  # JSON values only
BARREN_RECORDS = 100_000  # so many with nothing wanted among them are worth a word
CHECK = "check its `path`, `text_field` and `filters`"
LATER = f"trying again in {REST_S / 60:.0f} minutes"

Reserve = Callable[[int], float]  # bytes of text that were read -> seconds to wait
MAX_BLOCK_CHARACTERS = 50_000_000  # long documents make a block smaller, and the shuffle coarser


def no_wait(_: int) -> float:
    """Return no wait, for text that came from this machine."""
    return 0.0


@dataclass(frozen=True)
class SourcePlan:
    """The plan of a source's reading: its units, filters and order."""

    name: str  # as a person calls the source
    open_units: Callable[[], Units]
    open_filters: OpenFilters  # called at the beginning of each epoch
    seed: tuple[int, ...]  # the run's and the source's: alike on every device
    device_number: int
    block_documents: int
    reserve: Reserve = no_wait


@dataclass(frozen=True)
class Block:
    """Shuffled documents; None for those that are not to be read."""

    place: SourcePlace
    units: int  # of the source
    documents: Sequence[str | None]
    begin: int = 0  # how many were read in an earlier session


@dataclass(frozen=True)
class Trouble:
    """The reason why a source gives nothing at the moment."""

    text: str
    resting: bool  # rather than being tried again at once


@dataclass
class Gathered:
    """A block's records in the order of the source, and what kept it from growing."""

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
    """Reads on from a place for ever; no block reaches over the end of an epoch, or over a unit that failed."""

    def __init__(
        self, units: Units, deal: Callable[[int], NDArray[np.int64]], place: SourcePlace, attempts: Retrying
    ) -> None:
        self._units, self._deal, self._attempts = units, deal, attempts
        self._unit: UnitReader | None = None
        self._records: Iterator[Record] = iter(())
        self.place = place
        self._order = deal(place.epoch)

    @property
    def unit_name(self) -> str:
        """The name, for people, of the unit that is being read."""
        return self._units.name(int(self._order[self.place.turn]))

    def read(self, limit: int) -> Gathered:
        """The next block; after an error the place is the one at which it came."""
        gathered = Gathered(self.place, limit)
        while not gathered.is_full and self.place.epoch == gathered.place.epoch:
            try:
                ended = self._attempts(self._read_on, gathered)
            except StreamClosed:
                raise
            except Exception as error:  # noqa: BLE001 - the fault boundary: of any file system and format
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
        """Read on from another place."""
        self.close()
        if place.epoch != self.place.epoch:
            self._order = self._deal(place.epoch)
        self.place = place

    def close(self) -> None:
        """Let go of the file that is being read."""
        if self._unit is not None:
            self._unit.close()
        self._unit, self._records = None, iter(())

    def _read_on(self, gathered: Gathered) -> bool:
        """Add records of the unit until the block is full or the unit ends, and tell whether it ended."""
        if self._unit is None:
            self._unit = self._units.open(int(self._order[self.place.turn]), self.place.state)
            self._records = iter(self._unit)
        try:
            for record in self._records:
                gathered.add(record)
                if gathered.is_full:
                    return False
            return True
        except Exception:  # of any file system and format: the next try goes on behind the last good record
            self.place = replace(self.place, state=self._unit.state())
            self.close()
            raise


class SourceReader:
    """A reader that delivers blocks until delivering or waiting is refused with `StreamClosed`."""

    def __init__(
        self,
        plan: SourcePlan,
        position: Position | None,
        deliver: Callable[[Block], None],
        in_trouble: Callable[[Trouble], None],
        report: Callable[[str], None],
        pause: Callable[[float], None],
    ) -> None:
        self._plan, self._position = plan, position
        self._deliver, self._in_trouble, self._report, self._pause = deliver, in_trouble, report, pause
        self._attempts = retrying(pause, self._fails_again)
        self._setbacks = Setbacks()
        self._filters: tuple[int, Sequence[DocumentFilter]] = (-1, ())  # of which epoch
        self._barren_records = self._barren_units = 0  # since a document was kept last
        self._damaged_records = self._damaged_told = 0

    def run(self) -> None:
        """Read without end."""
        units = self._open()
        place, size, begin = _resume(self._position, len(units))
        blocks = BlockReader(units, partial(self._deal, len(units)), place, self._attempts)
        try:
            while True:
                self._read_block(blocks, len(units), size or self._plan.block_documents, begin)
                size, begin = None, 0
        finally:
            blocks.close()

    def _open(self) -> Units:
        attempts = retrying(self._pause, self._fails_to_open)
        while True:
            try:
                return attempts(self._plan.open_units)
            except StreamClosed:
                raise
            except (ConfigError, UnreachableError) as error:
                text = str(error)
            except Exception as error:  # noqa: BLE001 - the fault boundary: of any file system and format
                text = f"Cannot open {self._plan.name} ({describe(error)}); {LATER}."
            self._rest(text)

    def _deal(self, units: int, epoch: int) -> NDArray[np.int64]:
        return deal_units(units, self._plan.device_number, (*self._plan.seed, epoch))

    def _read_block(self, blocks: BlockReader, units: int, limit: int, begin: int) -> None:
        gathered = blocks.read(limit)
        self._barren_units += gathered.units_ended
        if gathered.records:
            self._setbacks.read_something()
            block = self._shuffled(gathered, units, begin)
            self._count_damaged(gathered)
            if any(document is not None for document in block.documents):
                self._barren_records = self._barren_units = 0
                self._deliver(block)
            else:
                self._barren_records += len(gathered.records)
            self._pause(self._plan.reserve(sum(len(record.encode()) for record in gathered.records if record)))
        if gathered.error is not None:
            self._leave_out(blocks, gathered.error, units)
        self._mind_barrenness(units)

    def _shuffled(self, gathered: Gathered, units: int, begin: int) -> Block:
        records, place, plan = gathered.records, gathered.place, self._plan
        wanted = np.array([bool(record) for record in records])
        if self._filters[0] != place.epoch:
            self._filters = (place.epoch, plan.open_filters())
        wanted[wanted] = keep_all(self._filters[1], [record for record in records if record])
        seed = (*plan.seed, plan.device_number, place.epoch, place.block)
        order = np.random.default_rng(seed).permutation(len(records))
        return Block(place, units, [records[index] if wanted[index] else None for index in order], begin)

    def _count_damaged(self, gathered: Gathered) -> None:
        """Tell of damaged records when there are twice as many as were told."""
        self._damaged_records += gathered.records.count(None)
        if self._damaged_records > 2 * self._damaged_told:
            self._damaged_told = self._damaged_records
            self._report(
                f"Passed over {self._damaged_records} damaged records of {self._plan.name} so far: "
                "too long, not in the file's encoding, or without text in the field that `text_field` names."
            )

    def _leave_out(self, blocks: BlockReader, error: Exception, units: int) -> None:
        is_final = isinstance(error, ConfigError)  # it says by itself what is to be done
        text = str(error) if is_final else f"Cannot read {blocks.unit_name} ({describe(error)})"
        go_to, rest = self._setbacks.failed(blocks.place, units)
        self._barren_units += 1
        if rest:
            self._barren_units = 0
            self._rest(text if is_final else f"{text}; {LATER}.")
        else:
            self._report(f"{text}{' It' if is_final else '; it'} is left out until the source begins anew.")
        blocks.go_to(go_to)

    def _mind_barrenness(self, units: int) -> None:
        """Rest when everything was read for nothing; say so when much was."""
        if self._barren_units >= units:
            self._rest(f"The data source {self._plan.name} has no documents that are wanted: {CHECK}.")
        elif self._barren_records >= BARREN_RECORDS:
            text = f"The last {self._barren_records} documents of {self._plan.name} were not wanted: {CHECK}."
            self._in_trouble(Trouble(text, resting=False))
            self._report(text)
        else:
            return
        self._barren_records = self._barren_units = 0

    def _fails_to_open(self, error: BaseException) -> None:
        text = (
            str(error) if isinstance(error, UnreachableError) else f"Cannot open {self._plan.name} ({describe(error)})."
        )
        self._in_trouble(Trouble(text, resting=False))
        self._report(f"{text} Trying again.")

    def _fails_again(self, error: BaseException) -> None:
        self._in_trouble(Trouble(f"Cannot read {self._plan.name} ({describe(error)}).", resting=False))

    def _rest(self, text: str) -> None:
        self._in_trouble(Trouble(text, resting=True))
        self._report(text)
        self._pause(REST_S)


def _resume(position: Position | None, units: int) -> tuple[SourcePlace, int | None, int]:
    """Return the place to begin at, the number of records in the first block, and how many of them were read before."""
    if position is None or position["units"] is None:
        return SourcePlace(), None, 0
    if position["units"] != units or position["turn"] >= units:  # the source is another: its next epoch begins
        return SourcePlace(int(position["epoch"]) + 1), None, 0
    place = SourcePlace(int(position["epoch"]), int(position["block"]), int(position["turn"]), position["state"])
    return place, int(position["size"]), int(position["index"])
