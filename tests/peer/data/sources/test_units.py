"""Who reads which part of a source, and when."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from peer.data.sources.units import deal_units


@given(st.integers(1, 300), st.integers(0, 2**32), st.integers(0, 9))
def test_every_device_takes_up_each_unit_once(units: int, device: int, epoch: int) -> None:
    """An epoch is all units."""
    assert sorted(deal_units(units, device, (0, epoch))) == list(range(units))


@pytest.mark.parametrize("devices", [2, 3, 8, 50, 200])
def test_devices_begin_at_places_that_are_evenly_spread(devices: int) -> None:
    """However many devices there are, no stretch of the order is without a beginning for long, and few share one."""
    units = 1000
    order = deal_units(units, 0, (7,)).tolist()
    begins = sorted(order.index(int(deal_units(units, device, (7,))[0])) for device in range(devices))
    gaps = [after - before for before, after in zip(begins, [*begins[1:], begins[0] + units], strict=True)]
    assert max(gaps) <= 2.7 * units / devices
    assert len(set(begins)) == devices


@pytest.mark.parametrize("devices", [3, 10, 40])
def test_devices_cover_the_source_before_they_repeat_each_other(devices: int) -> None:
    """When together they have taken up half as many units as there are, few of these were taken up twice."""
    units = 400
    taken = [int(unit) for device in range(devices) for unit in deal_units(units, device, (1,))[: 200 // devices]]
    assert len(set(taken)) >= 0.85 * len(taken)


def test_each_epoch_has_an_order_of_its_own() -> None:
    """Another seed is another order, the same seed the same."""
    assert deal_units(50, 3, (0, 1)).tolist() == deal_units(50, 3, (0, 1)).tolist()
    assert deal_units(50, 3, (0, 1)).tolist() != deal_units(50, 3, (0, 2)).tolist()
