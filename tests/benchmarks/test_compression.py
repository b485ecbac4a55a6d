"""What the benchmark compares; it is itself run by people."""

from __future__ import annotations

import pytest

from benchmarks.compression import BASELINE, FULL, QUICK, Outcome, Scale, figures, only, processor_figures, ways


@pytest.mark.parametrize("scale", [FULL, QUICK])
def test_every_way_trains_on_the_same_samples(scale: Scale) -> None:
    """Each way's steps are whole ones and have all samples together; the first way is the baseline."""
    runs = ways(scale)
    assert next(iter(runs)) == BASELINE
    assert all(scale.samples % run.averaging.target_batch_size == 0 for run in runs.values())
    assert {run.averaging.local_batch_size for run in runs.values() if run.averaging.local_steps > 1} == {64}


def test_each_way_is_measured_against_the_baseline() -> None:
    """Bytes in each direction, time and loss, each with the baseline's and the ratio."""
    outcomes = {BASELINE: Outcome(8.0, 10.0, 10.0, 5.0), "8bit-blockwise": Outcome(4.0, 6.0, 11.0, 5.5)}
    rows = figures(outcomes)
    assert [row.ratio for row in rows] == pytest.approx([0.5, 0.6, 1.1, 1.1])
    assert all(row.name.startswith("8bit-blockwise") for row in rows)


def test_each_code_is_measured_on_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the ways that are run, once each, beside the baseline's."""
    monkeypatch.setattr("benchmarks.compression.CODED_VALUES", 4096)
    rows = processor_figures(only(FULL, "topk"))
    assert [row.name for row in rows] == ["topk-2bit: a core, a gradient", "topk-2bit: a core, an average"]
    assert all(row.value > 0 for row in rows)


def test_some_ways_alone_are_measured_against_the_baseline() -> None:
    """What is asked for by a part of its name, after the baseline, which is always there."""
    assert only(FULL, "PowerSGD").ways == (BASELINE, "float16, PowerSGD rank 4", "float16, PowerSGD rank 16")
    assert only(FULL, "") == FULL
