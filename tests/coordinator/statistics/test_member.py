"""The figures of a member's own page, and steps joined into ranges."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from auth.certificates import open_certificate
from auth.errors import RequestError
from auth.keys import AuthorityKey
from coordinator.ledger.ledger import count_losses, undo_reports
from coordinator.statistics.member import LossFacts, certify, days_of, losses_of, step_ranges, steps_of
from coordinator.statistics.people import midnight
from coordinator.store.engine import Database
from coordinator.store.models import Device
from tests.support.crowds import DAY, NOW, TODAY, add_reports, crowd
from tests.support.stores import Kind, empty_store


def test_consecutive_steps_are_one_range() -> None:
    """A step that comes twice changes nothing."""
    assert step_ranges([1, 2, 2, 3, 7, 9, 10], most=9) == [(1, 3), (7, 7), (9, 10)]
    assert step_ranges([], most=9) == []


def test_the_narrowest_gaps_go_first() -> None:
    """Where there is room for two ranges only, the widest gap stays."""
    assert step_ranges([1, 3, 5, 50, 52], most=2) == [(1, 5), (50, 52)]
    assert step_ranges([1, 3, 5, 50, 52], most=1) == [(1, 52)]


@given(st.sets(st.integers(1, 300)), st.integers(1, 20))
def test_every_step_is_in_a_range_and_ranges_begin_and_end_with_steps(steps: set[int], most: int) -> None:
    """However few ranges there may be, nobody's step is outside, and none is wider than it must be."""
    ranges = step_ranges(sorted(steps), most)
    assert len(ranges) <= most
    assert all(any(first <= step <= last for first, last in ranges) for step in steps)
    assert {end for each in ranges for end in each} <= steps
    assert ranges == sorted(ranges)


@pytest.fixture
def database(tmp_path: Path, store_kind: Kind) -> Iterator[Database]:
    with empty_store(tmp_path, store_kind) as database:
        crowd(database, {"Ada": ["cpu", "cpu"], "Bob": ["cpu"], "keeper": ["cpu"]})
        rows = [
            ("ada-1", 1, 30, 25, NOW - DAY),
            ("ada-2", 1, 8, 8, NOW - DAY),
            ("ada-1", 2, 30, 30, NOW - DAY),
            ("ada-1", 3, 40, None, NOW),
            ("ada-1", 9, 50, 50, NOW),
            ("ada-1", 10, 70, 70, NOW),
            ("bob-1", 1, 99, 99, NOW),
        ]
        add_reports(database, rows)
        with database.begin() as session:
            undo_reports(session, 9)
            count_losses(session, "ada-1", 2, {"late": 6, "left": 2}, NOW - DAY)
            count_losses(session, "ada-2", 3, {"late": 4}, NOW)
            count_losses(session, "bob-1", 3, {"died": 5}, NOW)
        yield database


def test_every_sample_of_a_day_is_somewhere(database: Database) -> None:
    """It counts, or it waits, or it is lost for a cause."""
    days = days_of(database, 1)
    assert list(days) == [TODAY - 1, TODAY]
    yesterday, today = days.values()
    assert (yesterday.samples, yesterday.pending_samples, yesterday.elapsed_s) == (63, 0, 180.0)
    assert +yesterday.lost == {"unconfirmed": 5, "late": 6, "left": 2}
    assert (today.samples, today.pending_samples) == (50, 40)
    assert +today.lost == {"returned": 70, "late": 4}


def test_causes_are_summed_up(database: Database) -> None:
    """The gravest first, with how often and when last, where that is known; nobody else's are among them."""
    assert losses_of(database, 1, days_of(database, 1)) == [
        LossFacts("returned", 70, None, midnight(TODAY), None),
        LossFacts("late", 10, 2, midnight(TODAY), 3),
        LossFacts("unconfirmed", 5, None, midnight(TODAY - 1), None),
        LossFacts("left", 2, 1, midnight(TODAY - 1), 2),
    ]


def test_steps_are_those_with_samples_that_count(database: Database) -> None:
    """Pending and undone ones are not the member's yet, or any more."""
    found = steps_of(database, 1)
    assert (found.count, found.first, found.last, found.ranges) == (3, 1, 9, ((1, 2), (9, 9)))


def test_nobody_has_given_nothing(database: Database) -> None:
    """An unknown number is an empty page, and the keeper has none."""
    assert days_of(database, 99) == {}
    assert steps_of(database, 99).ranges == ()
    assert losses_of(database, 99, {}) == []


def test_a_certificate_says_what_counts(database: Database) -> None:
    """Samples that receipts confirm, their steps and days; signed, so that anybody can check it."""
    authority = AuthorityKey.generate()
    signed = certify(database, authority, "test", 1, NOW)
    certificate = open_certificate(signed)
    assert signed.authority_key == authority.public_bytes.hex()
    assert (certificate.run, certificate.member, certificate.number) == ("test", "Ada", 1)
    assert (certificate.samples, certificate.steps, certificate.active_days) == (113, 3, 2)
    assert (certificate.first_day, certificate.last_day) == ("2024-10-03", "2024-10-04")
    assert certificate.devices == (f"{1:064x}", f"{0:064x}")


def test_a_certificate_names_no_device_that_has_no_pseudonym_yet(database: Database) -> None:
    """One that has not been here since there are pseudonyms gave its samples all the same."""
    with database.begin() as session:
        session.get_one(Device, "ada-2").receipt_key = None
    certificate = open_certificate(certify(database, AuthorityKey.generate(), "test", 1, NOW))
    assert (certificate.devices, certificate.samples) == ((f"{0:064x}",), 113)


@pytest.mark.parametrize("number", [3, 99])
def test_who_gave_nothing_gets_no_certificate(database: Database, number: int) -> None:
    """Nor does the keeper, nor who is nobody."""
    with pytest.raises(RequestError, match="no contribution to certify yet"):
        certify(database, AuthorityKey.generate(), "test", number, NOW)
