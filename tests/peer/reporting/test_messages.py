"""Why samples are in no step."""

from __future__ import annotations

from peer.reporting.messages import LostCause


def test_causes_are_stored_under_these_very_names() -> None:
    """Databases and other versions know them: none is renamed."""
    assert {cause.value for cause in LostCause} == {
        "non-finite",
        "late",
        "averaging failed",
        "out of sync",
        "slow line",
        "undone",
        "left",
        "died",
        "refused",
        "quarantine",
        "other",
    }
