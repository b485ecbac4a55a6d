"""Why samples are in no step."""

from __future__ import annotations

from peer.reporting.messages import LostCause, known_causes


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


def test_unknown_causes_are_summed_up() -> None:
    """What this version has no name for is `other`, and nothing lost is no cause."""
    assert known_causes({"late": 3, "sunspots": 2, "<b>": 1, "left": 0}) == {"late": 3, "other": 3}
