"""Members with their devices and hardware, the leaderboard, and streaks of days."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.members.names import hide_name, set_display_name
from coordinator.statistics.people import (
    DeviceFacts,
    Given,
    HardwareClass,
    LeaderboardPeriod,
    Streaks,
    class_of,
    leaderboard,
    people,
    stays,
    streaks,
)
from coordinator.store.engine import Database
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
def database(tmp_path: Path, store_kind: Kind) -> Iterator[Database]:
    with empty_store(tmp_path, store_kind) as database:
        crowd(database, MEMBERS)
        add_reports(database, BOARD)
        yield database


def board(
    database: Database, window: LeaderboardPeriod, kind: HardwareClass | None = None
) -> list[tuple[int, str, int, int]]:
    """Rank, name, samples, pending ones."""
    places = leaderboard(people(database, NOW, window), kind)
    return [(each.rank, each.person.name, each.given.samples, each.given.pending_samples) for each in places]


def test_the_leaderboard_is_about_the_days_it_says(database: Database) -> None:
    """Today; the last seven days; all of them. Who gave nothing stands on none, and what is pending ranks nobody."""
    assert board(database, LeaderboardPeriod.ALL) == [(1, "Bob", 60, 9), (2, "Ada", 55, 0)]
    assert board(database, LeaderboardPeriod.MONTH) == [(1, "Bob", 60, 9), (2, "Ada", 25, 0)]
    assert board(database, LeaderboardPeriod.WEEK) == board(database, LeaderboardPeriod.MONTH)
    assert board(database, LeaderboardPeriod.DAY) == [(1, "Ada", 5, 0), (2, "Bob", 0, 9)]


def test_the_leaderboard_of_a_kind_counts_devices_of_that_kind_only(database: Database) -> None:
    """A member's other machines are left out."""
    assert board(database, LeaderboardPeriod.ALL, HardwareClass.GPU) == [(1, "Ada", 50, 0)]
    assert board(database, LeaderboardPeriod.ALL, HardwareClass.CPU) == [(1, "Ada", 5, 0)]
    assert board(database, LeaderboardPeriod.ALL, HardwareClass.APPLE) == []


def test_a_members_hardware_is_that_which_gave_the_most(database: Database) -> None:
    """Of two machines the one with more samples; nobody is online without a session."""
    kinds = {person.name: person.hardware for person in people(database, NOW)}
    assert kinds == {"Ada": HardwareClass.GPU, "Bob": HardwareClass.TPU, "Cleo": HardwareClass.CPU}
    assert not any(person.online for person in people(database, NOW + 10 * DAY))


def test_equals_share_a_rank_and_bytes_decide_between_them(database: Database) -> None:
    """Who averages for others comes after who trains, and before who did neither."""
    with database.begin() as session:
        for device, counted, averaged_bytes in (("cleo-1", 60, 0), ("ada-1", 35, 7)):
            given = {"counted": counted, "averaged_bytes": averaged_bytes, "elapsed_s": 0.0, "data_wait_s": 0.0}
            nothing = dict.fromkeys(("reports", "claimed", "pending", "undone"), 0)
            session.add(DailyShare(device_id=device, day=TODAY - 1, **given, **nothing))
    assert board(database, LeaderboardPeriod.ALL) == [(1, "Ada", 90, 0), (2, "Bob", 60, 9), (2, "Cleo", 60, 0)]


def test_names_are_those_that_the_public_may_see(database: Database) -> None:
    """A pseudonym, or a number; never the name behind it."""
    set_display_name(database, "Ada", "Night Owl")
    hide_name(database, "Bob", hidden=True, now=NOW)
    assert [(person.number, person.name) for person in people(database, NOW)] == [
        (1, "Night Owl"),
        (2, "Anonymous 2"),
        (3, "Cleo"),
    ]


def test_who_is_here_now_is_seen_with_speed_and_state(database: Database) -> None:
    """A device whose stay has ended, or that was not heard of, is away."""
    with database.begin() as session:
        session.add(stay("ada-2", NOW - 60, NOW - 1, "cpu", ended=False))
        session.add(stay("bob-1", NOW - 60, NOW - 59, "8 TPU cores", ended=False))
    ada, bob, _ = people(database, NOW)
    assert [(each.online, each.state, each.samples_per_second) for each in ada.devices] == [
        (False, "", 0.0),
        (True, "training", 10.0),
    ]
    assert [each.online for each in bob.devices] == [False]
    assert (ada.last_seen_at, bob.last_seen_at) == (NOW - 1, NOW - 59)


def test_a_device_is_described_by_all_that_is_known_of_it(database: Database) -> None:
    """Its number among all devices, role and hardware, its contribution, and when it joined and was seen."""
    ada, _, cleo = people(database, NOW)
    assert ada.devices[1] == DeviceFacts(
        number=1,
        kind=HardwareClass.CPU,
        joined_at=0.0,
        given=Given(samples=5, elapsed_s=60.0, days=frozenset({TODAY})),
        online=False,
        state="",
        samples_per_second=0.0,
        last_seen_at=NOW - DAY,
    )
    assert [each.number for each in cleo.devices] == [3]


def test_one_member_can_be_asked_for(database: Database) -> None:
    """By number; nobody has another's, and the keeper none."""
    assert [person.name for person in people(database, NOW, number=2)] == ["Bob"]
    assert people(database, NOW, number=4) == people(database, NOW, number=99) == []


def test_stays_of_a_span_are_those_that_overlap_it(database: Database) -> None:
    """In the order of their beginnings, the keeper's left out; of too many the newest."""
    with database.begin() as session:
        session.add(stay("ada-2", NOW - 60, NOW - 1, "cpu", ended=False))
    found = stays(database, NOW - 3 * DAY, NOW, NOW)
    assert [(row.member, row.device, row.online) for row in found][-1] == (1, 1, True)
    assert [row.began_at for row in found] == [NOW - 2 * DAY] * 4 + [NOW - 60]
    assert len(stays(database, NOW - 3 * DAY, NOW, NOW, most=2)) == 2
    assert len(stays(database, NOW - 3 * DAY, NOW, NOW, number=2)) == 1
    assert [row.began_at for row in stays(database, NOW - 30, NOW, NOW)] == [NOW - 60]


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        ([], Streaks(0, 0, 0)),
        ([10], Streaks(1, 1, 1)),
        ([9], Streaks(1, 1, 1)),
        ([8], Streaks(0, 1, 1)),
        ([10, 9, 8, 3, 2], Streaks(3, 3, 5)),
        ([1, 2, 3, 4, 9], Streaks(1, 4, 5)),
        ([5, 5, 6, 6], Streaks(0, 2, 2)),
    ],
)
def test_a_streak_goes_on_until_a_day_has_passed_without_anything(days: list[int], expected: Streaks) -> None:
    """Today need not have anything yet; the longest one stays for ever, and a day counts once."""
    assert streaks(days, today=10) == expected


@pytest.mark.parametrize(
    ("hardware", "kind"),
    [
        ("cuda:0 (Tesla T4)", "gpu"),
        ("2 x cuda (NVIDIA GeForce RTX 4090)", "gpu"),
        ("cuda:0 (NVIDIA A100-SXM4-40GB)", "large-gpu"),
        ("cuda:0 (NVIDIA H100 80GB HBM3)", "large-gpu"),
        ("cuda:0 (Tesla V100-SXM2-16GB)", "large-gpu"),
        ("cuda:0 (Tesla P100-PCIE-16GB)", "gpu"),
        ("8 TPU v3 cores", "tpu"),
        ("2 × cuda (Tesla T4, 15 GiB), fp16", "gpu"),
        ("TPU v4 × 8 (JAX, bfloat16)", "tpu"),
        ("cpu (2 threads)", "cpu"),
        ("mps (Apple GPU)", "apple"),
        ("cpu", "cpu"),
        ("cpu, 8 cores", "cpu"),
        ("auto, 8 cores", "unknown"),
        ("", "unknown"),
        ("<img src=x onerror=alert(1)>", "unknown"),
    ],
)
def test_kinds(hardware: str, kind: str) -> None:
    """Words decide, not parts of words; what nobody knows is unknown."""
    assert class_of(hardware).value == kind
