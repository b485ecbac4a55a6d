"""Invented people for a rehearsal's dashboard: names, and what their devices say of themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count

from peer.rehearsal.scenario import Scenario

NAMES = (
    *("Amina", "Rafiq", "মৌমিতা", "Lucía", "Budi", "Sofía", "Kofi", "Priya", "Yuki", "Omar", "Ελένη", "Oleksandr"),
    *("নাহিদ", "Fátima", "Jonas", "Amélie", "Siti", "Diego", "Ngozi", "Ravi", "Hana", "Mateo", "Noor", "Ingrid"),
    *("Pavel", "Aisha", "Tomás", "Linh", "Zeynep", "Samuel", "مريم", "Dewi", "তানজিলা", "Chen", "Arif", "Marta"),
    *("Tariq", "Elif", "Joseph", "Wangari"),
)


@dataclass(frozen=True)
class InventedPerson:
    """A member of a rehearsed run, with the description that the member's device gives of itself."""

    member: str
    hardware: str


def drawn_people(scenario: Scenario) -> Mapping[str, InventedPerson]:
    """Return an invented person for each drawn device, by the device's name, whose first part is its class."""
    names = _names()
    return {
        device.name: InventedPerson(next(names), hardware_of_class(device.name.rpartition("-")[0]))
        for device in scenario.devices
    }


def named_people(scenario: Scenario) -> Mapping[str, InventedPerson]:
    """Return the members that a scenario's file names, by their devices' names; it does not tell their hardware."""
    return {device.name: InventedPerson(device.member or device.name, "") for device in scenario.devices}


def hardware_of_class(name: str) -> str:
    """Describe a device of a class of `devices.yaml` in the words of a session."""
    kind = "cpu" if name.startswith("cpu") else "mps" if name.startswith("apple") else "cuda"
    return f"{kind} ({name})"


def _names() -> Iterator[str]:
    """Yield names without end, no two the same."""
    yield from NAMES
    for number in count(2):
        yield from (f"{name} {number}" for name in NAMES)
