"""Everybody who takes part, and who gave most."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.display_names import hide_name, set_display_name
from coordinator.hardware_classes import HardwareClass
from coordinator.people import Window, leaderboard, people
from coordinator.stays import stays
from coordinator.store.engine import Sessions
from coordinator.store.models import DailyShare
from tests.support.crowds import DAY, NOW, TODAY, add_reports, crowd, stay
from tests.support.stores import Kind, empty_store

MEMBERS = {"Ada": ["cuda:0 (Tesla T4)", "cpu"], "Bob": ["8 TPU cores"], "Cleo": ["cpu"], "keeper": ["cpu"]}
BOARD = [
    ("ada-1", 1, 30, 30, NOW - 40 * DAY),
    ("ada-1", 2, 30, 20, NOW - 3 * DAY),
    ("ada-2", 2, 5, 5, NOW),
    ("bob-1", 2, 60, 60, NOW - 3 * DAY),
    ("bob-1", 3, 9, None, NOW),
    ("keeper-1", 3, 0, 0, NOW),
]


@pytest.fixture
def sessions(tmp_path: Path, store_kind: Kind) -> Iterator[Sessions]:
    with empty_store(tmp_path, store_kind) as sessions:
        crowd(sessions, MEMBERS)
        add_reports(sessions, BOARD)
        yield sessions


def board(sessions: Sessions, window: Window, kind: HardwareClass | None = None) -> list[tuple[int, str, int, int]]:
    """Rank, name, samples, pending ones."""
    places = leaderboard(people(sessions, NOW, window), kind)
    return [(each.rank, each.person.name, each.given.samples, each.given.pending_samples) for each in places]


def test_the_leaderboard_is_about_the_days_it_says(sessions: Sessions) -> None:
    """Today; the last seven days; all of them. Who gave nothing stands on none, and what is pending ranks nobody."""
    assert board(sessions, Window.ALL) == [(1, "Bob", 60, 9), (2, "Ada", 55, 0)]
    assert board(sessions, Window.MONTH) == [(1, "Bob", 60, 9), (2, "Ada", 25, 0)]
    assert board(sessions, Window.WEEK) == board(sessions, Window.MONTH)
    assert board(sessions, Window.DAY) == [(1, "Ada", 5, 0), (2, "Bob", 0, 9)]


def test_the_leaderboard_of_a_kind_counts_devices_of_that_kind_only(sessions: Sessions) -> None:
    """A member's other machines are left out."""
    assert board(sessions, Window.ALL, HardwareClass.GPU) == [(1, "Ada", 50, 0)]
    assert board(sessions, Window.ALL, HardwareClass.CPU) == [(1, "Ada", 5, 0)]
    assert board(sessions, Window.ALL, HardwareClass.APPLE) == []


def test_equals_share_a_rank_and_bytes_decide_between_them(sessions: Sessions) -> None:
    """Who averages for others comes after who trains, and before who did neither."""
    with sessions.begin() as session:
        for device, counted, averaged_bytes in (("cleo-1", 60, 0), ("ada-1", 35, 7)):
            given = {"counted": counted, "averaged_bytes": averaged_bytes, "elapsed_s": 0.0, "data_wait_s": 0.0}
            nothing = dict.fromkeys(("reports", "claimed", "pending", "undone"), 0)
            session.add(DailyShare(device_id=device, day=TODAY - 1, **given, **nothing))
    assert board(sessions, Window.ALL) == [(1, "Ada", 90, 0), (2, "Bob", 60, 9), (2, "Cleo", 60, 0)]


def test_names_are_those_that_the_public_may_see(sessions: Sessions) -> None:
    """A pseudonym, or a number; never the name behind it."""
    set_display_name(sessions, "Ada", "Night Owl")
    hide_name(sessions, "Bob", hidden=True, now=NOW)
    assert [(person.number, person.name) for person in people(sessions, NOW)] == [
        (1, "Night Owl"),
        (2, "Anonymous 2"),
        (3, "Cleo"),
    ]


def test_who_is_here_now_is_seen_with_speed_and_state(sessions: Sessions) -> None:
    """A device whose stay has ended, or that was not heard of, is away."""
    with sessions.begin() as session:
        session.add(stay("ada-2", NOW - 60, NOW - 1, "cpu", ended=False))
        session.add(stay("bob-1", NOW - 60, NOW - 59, "8 TPU cores", ended=False))
    ada, bob, _ = people(sessions, NOW)
    assert [(each.online, each.state, each.samples_per_second) for each in ada.devices] == [
        (False, "", 0.0),
        (True, "training", 10.0),
    ]
    assert [each.online for each in bob.devices] == [False]
    assert (ada.last_seen_at, bob.last_seen_at) == (NOW - 1, NOW - 59)


def test_one_member_can_be_asked_for(sessions: Sessions) -> None:
    """By number; nobody has another's, and the keeper none."""
    assert [person.name for person in people(sessions, NOW, number=2)] == ["Bob"]
    assert people(sessions, NOW, number=4) == people(sessions, NOW, number=99) == []


def test_stays_of_a_span_are_those_that_overlap_it(sessions: Sessions) -> None:
    """In the order of their beginnings, the keeper's left out; of too many the newest."""
    with sessions.begin() as session:
        session.add(stay("ada-2", NOW - 60, NOW - 1, "cpu", ended=False))
    found = stays(sessions, NOW - 3 * DAY, NOW, NOW)
    assert [(row.member_number, row.device_number, row.is_online) for row in found][-1] == (1, 1, True)
    assert [row.began_at for row in found] == [NOW - 2 * DAY] * 4 + [NOW - 60]
    assert len(stays(sessions, NOW - 3 * DAY, NOW, NOW, most=2)) == 2
    assert len(stays(sessions, NOW - 3 * DAY, NOW, NOW, member_number=2)) == 1
    assert [row.began_at for row in stays(sessions, NOW - 30, NOW, NOW)] == [NOW - 60]
