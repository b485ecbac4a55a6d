"""Made-up volunteers of a recorded run: who they are, what machines they have, and when each of these trained. Pure."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

HOSTILE_NAME = "<img src=x onerror=alert(1)>"
NAMES = (
    *(
        "ananya",
        HOSTILE_NAME,
        "মৌমিতা",
        "rafiq",
        "sabbir_h",
        "tanjila",
        "joy",
        "mahmud",
        "lucía",
        "budi",
        "নাহিদ",
        "sofia",
    ),
    *("dewi", "arif", "priya", "kofi", "chen-wei", "yuki", "omar", "Ελένη", "oleksandr", "fatima", "jonas", "amélie"),
    *("siti", "diego", "ngozi", "ravi", "hana", "mateo", "noor", "ingrid", "pavel", "aisha", "tomás", "linh", "zeynep"),
    *("samuel", "مريم", "a-name-of-sixty-four-characters-as-long-as-any-member-may-choose"),
)
# What sessions say of a machine, its samples per second, and how often volunteers have it.
HARDWARE = (
    ("cuda:0, 2 cores", 4.2, 40),  # Colab
    ("cuda:0, 4 cores", 6.5, 20),  # Kaggle
    ("cuda:0,1, 4 cores", 9.0, 8),
    ("cuda:0, 16 cores", 14.0, 12),
    ("mps, 10 cores", 2.4, 6),
    ("cpu, 8 cores", 0.5, 10),
    ("tpu, 96 cores", 45.0, 4),
)
DAY_S = 86_400.0
STILL_THERE, STILL_THERE_S = 8, 1000 * DAY_S  # stays that outlast the run
ONLINE = 10.0  # devices, on the average
LAST_AT = 0.85  # of the run the last one begins: how long the steps take is not quite foreseen
LOST = ("late", "late", "averaging failed", "averaging failed", "out of sync", "non-finite")


@dataclass(frozen=True)
class RecordedMember:
    """A volunteer."""

    id: int
    name: str
    display_name: str | None
    diligence: float  # a share of all stays, not normalized


@dataclass(frozen=True)
class RecordedDevice:
    """A volunteer's machine."""

    id: str
    member: RecordedMember
    number: int
    hardware: str
    samples_per_second: float
    role: str


@dataclass(frozen=True)
class RecordedStay:
    """One session of a machine."""

    id: str
    device: RecordedDevice
    started_at: float  # Unix seconds
    ended_at: float  # beyond the run's end where it is still there
    version: str


def members_of(count: int, rng: random.Random) -> list[RecordedMember]:
    """Volunteers, of whom few do much and many a little; some are shown under a pseudonym."""
    found = []
    for number in range(count):
        name = NAMES[number] if number < len(NAMES) else f"volunteer-{number + 1}"
        pseudonym = f"anonymous-{number}" if number % 13 == 5 else None
        diligence = rng.paretovariate(1.1) if number else 3.0
        found.append(RecordedMember(number + 1, name, pseudonym, min(diligence, 12.0)))
    return found


def devices_of(members: Sequence[RecordedMember], rng: random.Random) -> list[RecordedDevice]:
    """One to four machines each; one volunteer's only averages."""
    found: list[RecordedDevice] = []
    weights = [weight for _, _, weight in HARDWARE]
    for member in members:
        for _ in range(rng.choices((1, 2, 3, 4), (60, 25, 10, 5))[0]):
            [(hardware, rate, _)] = rng.choices(HARDWARE, weights)
            role = "auxiliary" if member.id == 7 else "trainer"
            number = len(found) + 1  # 0 is the keeper's
            name = hashlib.sha256(f"device {number}".encode()).hexdigest()[:32]
            found.append(RecordedDevice(name, member, number, hardware, rate * rng.uniform(0.85, 1.15), role))
    return found


def stays_of(
    devices: Sequence[RecordedDevice], count: int, begins_at: float, ends_at: float, rng: random.Random
) -> list[RecordedStay]:
    """Stays over the whole run, by day rather than by night, no two of one machine at once; some are not over.

    Where all machines are busy, one begins anew, as after a lost connection.
    """
    mean_s = ONLINE * (ends_at - begins_at) / count
    weights = [device.member.diligence for device in devices]
    newest: dict[str, RecordedStay] = {}
    found: list[RecordedStay] = []
    for number, moment in enumerate(_beginnings(count, begins_at, begins_at + LAST_AT * (ends_at - begins_at), rng)):
        free = [place for place, device in enumerate(devices) if _is_free(newest.get(device.id), moment)]
        places = free or range(len(devices))
        device = devices[rng.choices(places, [weights[place] for place in places])[0]]
        before = newest.get(device.id)
        if before is not None and not _is_free(before, moment):
            found[found.index(before)] = replace(before, ended_at=max(before.started_at, moment - 1.0))
        lasts = max(60.0, rng.expovariate(1 / mean_s)) if number < count - STILL_THERE else STILL_THERE_S
        name = hashlib.sha256(f"stay {number}".encode()).hexdigest()[:32]
        made = RecordedStay(name, device, moment, moment + lasts, "0.1.0" if number % 9 else "0.0.9")
        newest[device.id] = made
        found.append(made)
    return found


def _is_free(newest: RecordedStay | None, moment: float) -> bool:
    return newest is None or newest.ended_at + 1.0 < moment


def _beginnings(count: int, begins_at: float, ends_at: float, rng: random.Random) -> Iterator[float]:
    """The first few at once, then so that three quarters begin in the half of the day when people are awake."""
    yield from (begins_at for _ in range(min(6, count)))
    moments = []
    for _ in range(max(0, count - 6)):
        moment = rng.uniform(begins_at, ends_at)
        while (moment % DAY_S) < DAY_S / 2 and rng.random() < 0.66:
            moment = rng.uniform(begins_at, ends_at)
        moments.append(moment)
    yield from sorted(moments)
