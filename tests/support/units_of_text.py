"""What tests of all kinds of units have in common."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import islice

from peer.data.sources.faults import Pauses
from peer.data.sources.units import Record, State, Units


class ShortPauses(Pauses):
    """Nobody waits long for a source in a test; counts what was waited for, in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[float] = Counter()

    def __call__(self, seconds: float) -> None:
        self.asked[seconds] += 1
        super().__call__(min(seconds, 0.001))


def read(units: Units, unit: int, state: State | None = None, limit: int | None = None) -> tuple[list[Record], State]:
    """Some records of a unit, and the state behind them as it comes back from a file."""
    reader = units.open(unit, state)
    try:
        records = list(islice(reader, limit))
        return records, json.loads(json.dumps(reader.state()))
    finally:
        reader.close()


def read_all(units: Units) -> list[Record]:
    """All records of all units."""
    return [record for unit in range(len(units)) for record in read(units, unit)[0]]


def check_resumption(units: Units, tries: int = 30) -> None:
    """A unit that is left at any record, and again later, goes on with the record that follows."""
    rng = random.Random(0)
    for _ in range(tries):
        unit = rng.randrange(len(units))
        whole, _ = read(units, unit)
        first, second = sorted((rng.randint(0, len(whole)), rng.randint(0, len(whole))))
        head, state = read(units, unit, None, first)
        middle, state = read(units, unit, state if first else None, second - first)
        tail, _ = read(units, unit, state if second else None)
        assert head + middle + tail == whole
