"""What the system says of the machine at one moment, as far as a volunteer's limits ask for it."""

from __future__ import annotations

from dataclasses import dataclass

from peer.guest.energy import NOT_KNOWN, Energy


@dataclass(frozen=True)
class Readings:
    """None is "the system does not tell"; it never stops anything."""

    elapsed_s: float = 0.0  # of this stay
    sent_bytes: int = 0
    received_bytes: int = 0
    memory_bytes: int = 0  # that the worker uses
    disk_bytes: int = 0  # that this device's files take, after the cache was cleaned
    energy: Energy = NOT_KNOWN
    taken_back: str = ""  # why the machine is about to be gone
    on_battery: bool | None = None
    metered: bool | None = None
    in_use: bool | None = None  # by a person, or by other programs


def unknown_to_polite(readings: Readings) -> tuple[str, ...]:
    """What `--polite` would look at and the system does not tell."""
    questions = {
        "whether it runs on battery": readings.on_battery,
        "whether its network is metered": readings.metered,
        "whether somebody is at the keyboard": readings.in_use,
    }
    return tuple(question for question, answer in questions.items() if answer is None)
