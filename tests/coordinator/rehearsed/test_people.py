"""Invented people: enough names for any event, and the hardware of each class of the tables."""

from __future__ import annotations

import pytest

from auth.look_alikes import check_new_name, skeleton
from coordinator.rehearsed.people import NAMES, drawn_people, hardware_of_class
from coordinator.statistics.people import HardwareClass, class_of
from peer.rehearsal.population import population_tables
from peer.rehearsal.scenario import HomeLine, Rehearsed, Scenario


def test_nobody_would_take_one_name_for_another() -> None:
    """As with members of a run."""
    assert len(set(map(skeleton, NAMES))) == len(NAMES)
    for number, name in enumerate(NAMES):
        check_new_name(name, NAMES[:number])


def test_more_people_than_names_have_numbers() -> None:
    """So that each has a name of its own."""
    line = HomeLine(up_mbit_per_second=10, down_mbit_per_second=50)
    devices = tuple(Rehearsed(name=f"colab-t4-{number}", line=line) for number in range(3 * len(NAMES)))
    people = drawn_people(Scenario(duration_s=1.0, parameters=1, devices=devices))
    members = [person.member for person in people.values()]
    assert len(set(map(skeleton, members))) == len(devices)
    assert {person.hardware for person in people.values()} == {"cuda (colab-t4)"}


@pytest.mark.parametrize("name", population_tables().devices.classes)
def test_each_class_of_devices_is_known_to_the_page(name: str) -> None:
    """By the words in which a session would describe it."""
    kind = class_of(hardware_of_class(name))
    expected = {"cpu-laptop": HardwareClass.CPU, "apple-m2": HardwareClass.APPLE}
    assert kind is expected.get(name, HardwareClass.GPU)
