"""Pages of receipts: as long as is allowed, and read from the rows of the devices that they name."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import event

from coordinator.statistics.run_tables import receipts_page
from tests.support.served_page import FakeRun

pytestmark = pytest.mark.usefixtures("three_steps")
NUMBERS_OF_A_STEP = 3  # ada claims, and the keeper signs that it has received ada's samples


def test_a_page_of_receipts_reads_only_the_devices_that_it_names(run: FakeRun) -> None:
    """However many devices the run has, and after the steps, so that none of their devices is missing."""
    run.add_member("without samples")
    read: list[Any] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "receipt_key" in statement:
            read.append(parameters)

    event.listen(run.services.database.engine, "before_cursor_execute", note)
    page = receipts_page(run.services.database, "test-run", 0, 10)
    assert {device["member"] for device in page["devices"].values()} == {"ada", "keeper"}
    assert [len(numbers) for numbers in read] == [2]


@pytest.mark.parametrize(("most", "expected"), [(1, [1]), (2 * NUMBERS_OF_A_STEP, [1, 2]), (100, [1, 2, 3])])
def test_a_page_of_receipts_names_only_so_many_devices(
    run: FakeRun, monkeypatch: pytest.MonkeyPatch, most: int, expected: list[int]
) -> None:
    """Claimants, signers and those whose samples were received; one step fits on any page."""
    monkeypatch.setattr("coordinator.statistics.run_tables.MOST_NUMBERS", most)
    page = receipts_page(run.services.database, "test-run", 0, 10)
    assert [step["step"] for step in page["steps"]] == expected
    assert page["next"] == (None if len(expected) == 3 else expected[-1])


def test_a_page_without_steps_names_nobody(run: FakeRun) -> None:
    """As after the newest step."""
    page = receipts_page(run.services.database, "test-run", 3, 10)
    assert (page["steps"], page["devices"], page["next"]) == ([], {}, None)
