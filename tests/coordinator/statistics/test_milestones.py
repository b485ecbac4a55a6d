"""What counts as a milestone; pure."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.ledger.reading import StepRow
from coordinator.statistics.milestones import milestones
from tests.support.served_page import validation_row


def steps(samples: Sequence[int], devices: Sequence[int] = ()) -> list[StepRow]:
    """Steps from 1 on, one each 10 s."""
    padded = [*devices, *[1] * len(samples)]
    return [
        StepRow(number, count, 5.0, padded[number - 1], 10.0 * number, 100) for number, count in enumerate(samples, 1)
    ]


def keys(found: Sequence[object]) -> list[str]:
    """Their names."""
    return [each.key for each in found]  # type: ignore[attr-defined]


def test_a_run_without_steps_has_none() -> None:
    """Nothing was reached."""
    assert milestones([], []) == []


def test_powers_of_ten_are_marked_where_they_are_passed() -> None:
    """Once each, from a thousand on; of several that one step passes the last."""
    found = milestones(steps([400, 500, 100, 50_000, 1, 50_000]), [])
    assert keys(found) == ["first-step:1", "samples:1000", "samples:10000", "samples:100000"]
    assert [each.step for each in found] == [1, 3, 4, 6]
    assert [each.at for each in found] == [10.0, 30.0, 40.0, 60.0]


def test_the_first_step_may_be_a_later_number() -> None:
    """A history that begins with step 3, as its first two were never reported, begins with that."""
    assert milestones(steps([1, 1, 1])[2:], [])[0].step == 3


def test_records_of_devices_are_round_numbers() -> None:
    """A record that is beaten by one device is not told each time."""
    found = milestones(steps([1] * 7, devices=[4, 5, 6, 5, 11, 9, 60]), [])
    assert keys(found) == ["first-step:1", "devices:5", "devices:10", "devices:50"]
    assert [each.step for each in found] == [1, 2, 5, 7]


def test_records_of_loss_are_halves() -> None:
    """The first evaluation sets the mark; what is no number, or no better, is no record."""
    losses = [(1, 9.3), (2, 9.1), (3, 7.2), (4, 7.4), (5, None), (6, 6.99), (7, 6.5), (8, 6.4999)]
    rows = [validation_row(step, loss, sop_loss=None) for step, loss in losses]
    found = milestones([], rows[::-1])
    assert keys(found) == ["loss:7.5", "loss:7", "loss:6.5"]
    assert [each.step for each in found] == [3, 6, 8]


def test_more_history_never_changes_what_was_reached() -> None:
    """Whoever looks again finds the same ones, and perhaps more: so nothing is told twice."""
    samples, devices = [300, 900, 12_000, 40, 99_000], [2, 7, 30, 8, 31]
    rows = [validation_row(step, 9.0 - step, sop_loss=None) for step in (2, 4)]
    before: list[str] = []
    for count in range(1, 6):
        found = keys(milestones(steps(samples, devices)[:count], [row for row in rows if row.step <= count]))
        assert set(before) <= set(found)
        before = found
