"""How a benchmark shows its figures."""

from __future__ import annotations

import json

from benchmarks.support.reporting import Figure, as_json_text, as_table

SPEED = Figure("speed", 1_200_000.0, "tokens/s", 400_000.0, "plain")
LONE = Figure("memory", 12.5, "MiB")


def test_the_table_shows_a_figure_beside_its_baseline() -> None:
    """Value with unit, baseline with its name, and the ratio; a figure without a baseline stands alone."""
    lines = as_table("data path", [SPEED, LONE]).splitlines()
    assert lines[0] == "data path"
    assert lines[3].split() == ["speed", "1,200,000", "tokens/s", "400,000", "(plain)", "3.00"]
    assert lines[4].split() == ["memory", "12.5", "MiB"]


def test_the_json_names_unit_baseline_and_ratio() -> None:
    """Machines read the same figures."""
    speed, lone = json.loads(as_json_text("data path", [SPEED, LONE]))["figures"]
    assert (speed["value"], speed["unit"], speed["baseline"], speed["ratio"]) == (1.2e6, "tokens/s", 4e5, 3.0)
    assert (lone["baseline"], lone["ratio"]) == (None, None)


def test_a_baseline_of_nothing_has_no_ratio() -> None:
    """Where the baseline is zero, nothing is divided by it."""
    assert Figure("lost", 0.0, "%", 0.0, "plain").ratio is None
