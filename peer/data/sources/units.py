"""Units, the parts of a source, and the order in which a device takes them up, so that devices read different ones.

A unit is a file or a part of one: a range of bytes, a Parquet row group, every k-th record. `peer.data.sources.blocks`
reads units; the kinds of sources are in `peer.data.sources.files`, `peer.data.sources.datasets` and
`peer.data.sources.builtin`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

# Its multiples, modulo one, spread evenly over [0, 1) however many there are.
GOLDEN_RATIO = (5**0.5 - 1) / 2
State = Mapping[str, Any]  # where a record stands in its unit; JSON values only
Record = str | None  # a document; empty where it is not wanted, None where the record is damaged
MIN_UNITS = 16  # of a source; the price of a part is that all of its file is read for it


class UnitReader(Protocol):
    """The records of one unit in order; to be closed."""

    def __iter__(self) -> Iterator[Record]: ...

    def state(self) -> State:
        """Return the state at the next record, also after an error."""
        ...

    def close(self) -> None: ...


class Units(Protocol):
    """A source as a sequence of units, the same on every machine."""

    def __len__(self) -> int: ...

    def name(self, unit: int) -> str:
        """Return the unit's name for people."""
        ...

    def open(self, unit: int, state: State | None) -> UnitReader:
        """Read from a state on, or from the unit's beginning; errors may come here or while it is read."""
        ...


def parts_of_each(shards: int, *, whole: bool = False) -> int:
    """Return the number of parts of each shard, so that there are enough units; 1 if shards are to stay `whole`."""
    return 1 if whole else -(-MIN_UNITS // shards)


def deal_units(units: int, device_number: int, seed: tuple[int, ...]) -> NDArray[np.int64]:
    """All (units,) in the device's order: one order for all devices, each of which begins elsewhere and goes round.

    So devices read different units at the same time, and together they cover all of them evenly, without talking to
    each other and without knowing how many they are.
    """
    order = np.random.default_rng(seed).permutation(units)
    begin = int(device_number * GOLDEN_RATIO % 1.0 * units)
    return np.roll(order, -begin)
