"""Blocks of records over the ends of units and epochs, and over units that fail."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pytest

from peer.data.sources import reader
from peer.data.sources.faults import Pauses, SourcePlace, retrying
from peer.data.sources.reader import BlockReader, SourcePlan, SourceReader
from peer.data.sources.units import CountedReader, Shard, State, UnitReader, Units, shard_of

TEXTS = [["a", "b", "c"], [], ["d", "e"], ["f"]]


class FewUnits:
    """Units of a few records, some of which fail after so many."""

    def __init__(self, failing: dict[int, int] | None = None) -> None:
        self.failing = failing or {}

    def __len__(self) -> int:
        return len(TEXTS)

    def name(self, unit: int) -> str:
        return f"unit {unit}"

    def open(self, unit: int, state: State | None) -> Any:
        reader = shard_of(self.name(unit), TEXTS[unit]).open(0, 1, state)
        return Failing(reader, self.failing[unit]) if unit in self.failing else reader


class Failing:
    """Reads so many records of a unit and no more."""

    def __init__(self, reader: UnitReader, readable: int) -> None:
        self._reader, self._readable = reader, readable

    def __iter__(self) -> Iterator[str]:
        records = iter(self._reader)
        while self.state()["number"] < self._readable:
            yield next(records)
        raise OSError("the rest is damaged")

    def state(self) -> State:
        return self._reader.state()

    def close(self) -> None:
        self._reader.close()


def open_reader(units: FewUnits, place: SourcePlace | None = None) -> BlockReader:
    return BlockReader(
        units, lambda _: np.arange(len(TEXTS)), place or SourcePlace(), retrying(lambda _: None, lambda _: None)
    )


def test_blocks_reach_over_units_but_not_over_epochs() -> None:
    """Each is as large as asked, but for the last of an epoch; the next epoch begins with a new block number."""
    reader = open_reader(FewUnits())
    gathered = [reader.read(4) for _ in range(3)]
    assert [block.records for block in gathered] == [["a", "b", "c", "d"], ["e", "f"], ["a", "b", "c", "d"]]
    assert [(block.place.epoch, block.place.block) for block in gathered] == [(0, 0), (0, 1), (1, 0)]
    assert [block.units_ended for block in gathered] == [2, 2, 2]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_a_block_can_be_read_again_from_its_place(size: int) -> None:
    """Whatever has been read before or behind it."""
    reader = open_reader(FewUnits())
    for _ in range(8):
        block = reader.read(size)
        assert open_reader(FewUnits(), block.place).read(len(block.records)).records == block.records


def test_a_unit_that_fails_ends_the_block_with_what_came_before() -> None:
    """Nothing that could be read is lost, and the place is that of the failure."""
    reader = open_reader(FewUnits({0: 2}))
    block = reader.read(10)
    assert block.records == ["a", "b"]
    assert isinstance(block.error, OSError)
    assert reader.unit_name == "unit 0"
    reader.go_to(reader.place.next_unit(len(TEXTS)))
    assert reader.read(10).records == ["d", "e", "f"]


def test_long_documents_make_blocks_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded by characters as well as by documents."""
    monkeypatch.setattr(reader, "MAX_BLOCK_CHARACTERS", 2)
    assert open_reader(FewUnits()).read(10).records == ["a", "b"]


class Text(str):
    """A document to which there can be a weak reference."""


def test_documents_that_are_left_out_are_gone_when_the_next_block_is_read() -> None:
    """Where a filter keeps few of them, they would be nearly all of what is in memory."""
    given: list[weakref.ref[Text]] = []
    left: list[int] = []  # of the first block, at each document of the second

    def texts(_: int) -> Iterator[str]:
        for number in range(8):
            left.append(sum(text() is not None for text in given[:4]))
            text = Text(number)
            given.append(weakref.ref(text))
            yield text

    plan = SourcePlan(
        name="texts",
        open_units=lambda: Units([Shard("texts", partial(CountedReader, texts))], whole=True),
        open_filters=lambda: [lambda documents: np.array([int(text) % 4 == 0 for text in documents])],
        seed=(0,),
        device_number=0,
        block_documents=4,
    )
    blocks = SourceReader(plan, None, print, Pauses()).blocks()
    assert [sum(text is not None for text in block.documents) for block in islice(blocks, 2)] == [1, 1]
    assert max(left[5:8]) <= 1
