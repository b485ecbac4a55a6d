"""The list of checkpoints follows what the keeper writes and removes."""

from __future__ import annotations

from coordinator.ledger.recorded_checkpoints import checkpoints, record_checkpoint
from coordinator.store.engine import Database

NOW = 1_800_000_000.0


def test_checkpoints_are_listed_without_the_pruned(database: Database) -> None:
    """The newest comes first, and what the keeper removed is gone; the same step again replaces its row."""
    for step, removed in ((10, []), (20, []), (30, [10]), (30, [])):
        record_checkpoint(
            database,
            step=step,
            size_bytes=3 * 2**31,
            manifest_sha256="ab" * 32,
            now=NOW + step,
            removed=removed,
        )
    rows = checkpoints(database)
    assert [(row.step, row.size_bytes) for row in rows] == [(30, 3 * 2**31), (20, 3 * 2**31)]
    assert (rows[0].manifest_sha256, rows[0].created_at) == ("ab" * 32, NOW + 30)
