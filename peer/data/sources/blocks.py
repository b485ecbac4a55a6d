"""Blocks of a source's records: as many as are shuffled together, read from unit to unit.

Used by `peer.data.sources.reader`. A block can be read again from its place: it is the next `size` records from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from tenacity import Retrying

from peer.data.sources.faults import SourcePlace, StreamClosed
from peer.data.sources.units import Record, UnitReader, Units

MAX_BLOCK_CHARACTERS = 50_000_000  # long documents make a block smaller, and the shuffle coarser


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
