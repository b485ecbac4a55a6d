"""Invented people: enough names for any event, and the hardware of each class of the tables."""

from __future__ import annotations

import pytest

from auth.look_alikes import check_new_name, skeleton
from coordinator.rehearsed.people import NAMES, hardware_of_class
from coordinator.statistics.people import HardwareClass, class_of
from peer.rehearsal.population import population_tables


def test_nobody_would_take_one_name_for_another() -> None:
    """As with members of a run."""
    assert len(set(map(skeleton, NAMES))) == len(NAMES)
    for number, name in enumerate(NAMES):
        check_new_name(name, NAMES[:number])


@pytest.mark.parametrize("name", population_tables().devices.classes)
def test_each_class_of_devices_is_known_to_the_page(name: str) -> None:
    """By the words in which a session would describe it."""
    kind = class_of(hardware_of_class(name))
    expected = {"cpu-laptop": HardwareClass.CPU, "apple-m2": HardwareClass.APPLE}
    assert kind is expected.get(name, HardwareClass.GPU)
