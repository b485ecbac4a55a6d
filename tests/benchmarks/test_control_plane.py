"""The benchmark of the control plane: a real service, a small crowd, and figures that cannot flatter."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.coordinator import control_plane
from benchmarks.coordinator.control_plane import check_ledger, figures_of, measure, quantile
from benchmarks.coordinator.crowd import Plan, Tally
from coordinator.context.open_run import OpenRun
from tests.support.small_run import small_config
from tests.support.zygote import forking_python

PLAN = Plan(every_s=0.3, spread_s=0.3, steps=2)
COUNT = 3


def test_each_report_of_a_crowd_is_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger is compared with it at the end."""
    smaller = tmp_path / "smaller.yaml"
    smaller.write_text(small_config(tmp_path).to_yaml())
    monkeypatch.setattr(control_plane, "SMALL_RUN", smaller)
    with forking_python():
        outcome = measure(COUNT, PLAN, dashboards=1)
    assert (outcome.sessions, outcome.tally.lost) == (COUNT, 0)
    assert (len(outcome.tally.answers_s), outcome.tally.refused) == (COUNT * PLAN.steps, 0)
    rows = {row.name: row for row in figures_of(COUNT, outcome)}
    assert rows["3 sessions: accepted and kept"].value == COUNT
    assert rows["3 sessions: a report's answer, p99"].value > 0


def test_reports_that_are_not_counted_are_no_figure(opened_run: OpenRun) -> None:
    """What was acknowledged and is missing in the ledger ends the benchmark."""
    check_ledger(opened_run, Tally())
    with pytest.raises(RuntimeError, match="1 of 1 reports were accepted, and 0 are counted"):
        check_ledger(opened_run, Tally(sent=1, answers_s=[0.1]))


def test_a_quantile_lies_between_its_neighbours() -> None:
    """The median of three is the second; of nothing there is none."""
    assert quantile([3.0, 1.0, 2.0], 50) == 2.0
    assert quantile([5.0], 99) == 5.0
    assert math.isnan(quantile([], 50))
