"""What the pages' scripts ask the API for, with the same parameters: what an archive must have an answer to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

from coordinator.hardware_classes import HardwareClass
from coordinator.moments import chunk_of
from coordinator.people import Window, people
from coordinator.shares import DAY_S
from coordinator.store.engine import Sessions
from coordinator.web.frozen import Parameters

Question = tuple[str, Parameters]
ANSWERS: Sequence[Question] = (
    ("overview", {}),
    ("curve", {"points": 600}),
    ("curve", {"points": 800}),
    *(("curve", {"points": 1000, "smoothing": smoothing}) for smoothing in (0, 20, 100, 500)),
    ("checkpoints", {}),
    ("validations", {}),
    ("evaluations", {}),
    ("publications", {}),
    ("milestones", {}),
    ("trials", {}),
)
TIMELINE_DAYS = (1, 7, 14, 60, 3660)  # the choices in participants.html


def questions(sessions: Sessions, last_step: int, at: float) -> Iterator[Question]:
    """All of them, of this moment (Unix seconds), to be taken one by one; `last_step`: 0 before the first.

    Members come last, so that whoever an earlier answer names has a page, also who joined while it was written.
    """
    yield from ANSWERS
    yield from ((f"moments/{number}", {}) for number in range(chunk_of(last_step) + 1 if last_step else 0))
    yield from _timelines(at)
    yield from _leaderboards()
    yield from ((f"participants/{person.number}", {}) for person in people(sessions, at))


def _timelines(at: float) -> Iterator[Question]:
    until = math.ceil(at / 60) * 60  # as participants.js has it
    for days in TIMELINE_DAYS:
        yield "stays", {"since": max(0, until - days * DAY_S), "until": until}


def _leaderboards() -> Iterator[Question]:
    yield "participants", {}
    for window, kind in product(Window, (None, *HardwareClass)):
        yield "participants", {"window": window.value} | ({} if kind is None else {"kind": kind.value})
