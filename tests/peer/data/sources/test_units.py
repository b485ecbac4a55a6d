"""Who reads which part of a source, and when."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from peer.data.sources.units import (
    MIN_DOCSTRING_CHARACTERS,
    MIN_UNITS,
    Units,
    builtin_documents,
    deal_units,
    long_docstrings,
    shard_of,
)

LONG = "word " * (MIN_DOCSTRING_CHARACTERS // 5 + 1)


@given(st.integers(1, 300), st.integers(0, 2**32), st.integers(0, 9))
def test_every_device_takes_up_each_unit_once(units: int, device: int, epoch: int) -> None:
    """An epoch is all units."""
    assert sorted(deal_units(units, device, (0,), epoch)) == list(range(units))


@pytest.mark.parametrize("devices", [2, 3, 8, 50, 200])
def test_devices_begin_at_places_that_are_evenly_spread(devices: int) -> None:
    """However many devices there are, no stretch of the order is without a beginning for long, and few share one."""
    units = 1000
    order = deal_units(units, 0, (), 7).tolist()
    begins = sorted(order.index(int(deal_units(units, device, (), 7)[0])) for device in range(devices))
    gaps = [after - before for before, after in zip(begins, [*begins[1:], begins[0] + units], strict=True)]
    assert max(gaps) <= 2.7 * units / devices
    assert len(set(begins)) == devices


@pytest.mark.parametrize(("device", "begin"), [(0, 0), (1, 61), (2, 23), (3, 85)])
def test_a_device_goes_round_from_its_place(device: int, begin: int) -> None:
    """A saved place is an index in this order, so the same device has the same order in every version."""
    order = deal_units(100, 0, (), 7).tolist()
    assert deal_units(100, device, (), 7).tolist() == order[begin:] + order[:begin]


@pytest.mark.parametrize("devices", [3, 10, 40])
def test_devices_cover_the_source_before_they_repeat_each_other(devices: int) -> None:
    """When together they have taken up half as many units as there are, few of these were taken up twice."""
    units = 400
    taken = [int(unit) for device in range(devices) for unit in deal_units(units, device, (), 1)[: 200 // devices]]
    assert len(set(taken)) >= 0.85 * len(taken)


@pytest.mark.parametrize(("shards", "parts"), [(1, MIN_UNITS), (5, 4), (MIN_UNITS - 1, 2), (MIN_UNITS, 1), (1000, 1)])
def test_few_shards_are_read_in_parts(shards: int, parts: int) -> None:
    """As few parts as make enough units; a shard that must stay whole is one unit."""
    documents = [shard_of("a shard", ["text"])] * shards
    assert len(Units(documents)) == shards * parts
    assert len(Units(documents, whole=True)) == shards


def test_each_epoch_has_an_order_of_its_own() -> None:
    """Another seed is another order, the same seed the same."""
    assert deal_units(50, 3, (0,), 1).tolist() == deal_units(50, 3, (0,), 1).tolist()
    assert deal_units(50, 3, (0,), 1).tolist() != deal_units(50, 3, (0,), 2).tolist()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (
            f'"""M {LONG}"""\nclass C:\n    """C {LONG}"""\n    async def f(self):\n        """F\n        {LONG}"""\n',
            "MCF",
        ),
        (f'"""Short."""\nDATA = """{LONG}"""\n', ""),
        ('"""doc"""\ndef broken(:', ""),
    ],
    ids=["nested", "labels and data", "a template, which does not parse"],
)
def test_long_docstrings_of_modules_classes_and_functions_are_found(source: str, found: str) -> None:
    """Every kind of docstring counts, cleaned of its indentation; other strings are left out."""
    docstrings = list(long_docstrings(source.encode()))
    assert "".join(text[0] for text in docstrings) == found
    assert [text[2:].strip() for text in docstrings] == [LONG.strip()] * len(found)


def test_the_corpus_is_large_and_holds_each_document_once() -> None:
    """There is enough prose for a demo: more than a million characters in different documents."""
    documents = builtin_documents()
    assert sum(map(len, documents)) > 1_000_000
    assert len(set(documents)) == len(documents)
