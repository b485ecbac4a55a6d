"""Figures of rehearsals, advice from them, and planned run files."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from multiprocessing import active_children, get_context
from typing import Any

import pytest
import yaml

from auth.errors import ConfigError
from peer.config.run import RunConfig
from peer.rehearsal.forecast.advice import TriedChange, TriedOutcome, advise, changes_to_try
from peer.rehearsal.forecast.planning import PROVEN_BATCH, plan_run
from peer.rehearsal.forecast.report import (
    DrawnVolunteers,
    ModelValues,
    RehearsalReport,
    SeedQuantiles,
    classes,
    rehearse_seeds,
    rows,
    samples_per_hour,
    shown,
)
from peer.rehearsal.scenario import HomeLine, Rehearsed, Scenario, Visit
from tests.support.tiny_albert import tiny_config, tiny_model

HOME = HomeLine(up_mbit_per_second=10, down_mbit_per_second=50)


def run_with(**averaging: Any) -> RunConfig:
    """A run with a batch of 64 samples, in microbatches of 2."""
    raw = tiny_config().model_dump(mode="json")
    raw["averaging"] |= {"target_batch_size": 64} | averaging
    raw["data"]["microbatch_size"] = 2
    raw["schedule"] = {"warmup_steps": 1, "total_steps": 100}
    return RunConfig.from_mapping(raw)


def homes(line: HomeLine = HOME, parameters: int = 1_000_000) -> Scenario:
    """Three volunteers with a sample a second, one of whom dies, for five minutes."""
    dying = (Visit(end_s=145.0, ends="dies"),)
    devices = [
        Rehearsed(name=f"home-{number}", line=line, samples_per_second=1.0, visits=dying if number == 3 else (Visit(),))
        for number in (1, 2, 3)
    ]
    return Scenario(duration_s=300.0, parameters=parameters, devices=tuple(devices))


def rehearsed(config: RunConfig, scenario: Scenario, seeds: int = 1) -> RehearsalReport:
    return rehearse_seeds(config, lambda _, __: scenario, seeds)


@pytest.fixture(scope="module")
def report() -> RehearsalReport:
    """Two seeds of the three homes."""
    return rehearsed(run_with(), homes(), 2)


def test_long_rehearsals_run_beside_each_other(report: RehearsalReport, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in a process of its own, which ends with it as no other does, and with the same outcome."""
    monkeypatch.setattr("peer.rehearsal.forecast.report.LONG_S", 0.0)
    other = get_context("spawn").Process(target=time.sleep, args=(600.0,), daemon=True)
    other.start()
    beside, before = list[Any](), {*active_children()}
    after = rehearse_seeds(run_with(), lambda _, __: homes(), 2, lambda _: beside.extend(active_children()))
    assert (after.figures(), other.is_alive()) == (report.figures(), True)
    assert {process.is_alive() for process in {*beside} - before} == {False}
    other.kill()


def test_of_few_seeds_the_ends_are_the_extremes() -> None:
    """Nothing is interpolated, so a figure that is never reached stays infinite beside others."""
    assert SeedQuantiles.of([3.0, math.inf, 1.0]) == SeedQuantiles(1.0, 3.0, math.inf)
    assert SeedQuantiles.of(map(float, range(1, 101))) == SeedQuantiles(5.0, 50.0, 95.0)
    assert SeedQuantiles(1.0, 2.0, math.inf).to_json() == {"p5": 1.0, "p50": 2.0, "p95": None}


def test_figures_follow_from_the_rehearsal(report: RehearsalReport) -> None:
    """Steps, samples and bytes of the report are those of the rehearsed steps and devices."""
    figures, run = report.figures(), report.runs[0]
    assert figures["steps"].low <= len(run.steps) <= figures["steps"].high
    assert figures["steps_per_hour"].middle == pytest.approx(figures["steps"].middle * 12)
    assert figures["end_hours"].middle == pytest.approx(100 / figures["steps_per_hour"].high, rel=0.3)
    assert samples_per_hour(run) == 12 * sum(each.work.counted for each in run.devices)
    sent = sum(each.sent_bytes for each in run.devices) / sum(each.work.present_s for each in run.devices)
    (measure,) = (each for each in report.measures if each.key == "sent_mb_per_hour")
    assert measure.of(run, report.config) == pytest.approx(3600 * sent / 1e6)
    assert figures["contributing_nothing"] == SeedQuantiles(0.0, 0.0, 0.0)
    assert 0 < figures["utilisation"].middle < 1
    assert figures["batch_averaged"].middle >= 1


def test_samples_are_in_steps_or_lost_by_a_cause(report: RehearsalReport) -> None:
    """For each seed the shares of all causes and the share in steps make up the whole."""
    for run in report.runs:
        parts = [
            measure.of(run, report.config)
            for measure in report.measures
            if measure.key.startswith("lost_") or measure.key == "counted_share"
        ]
        assert sum(parts) == pytest.approx(1)
    assert report.figures()["lost_left"].low > 0


def test_every_figure_has_a_row_in_plain_words(report: RehearsalReport) -> None:
    """A table for people has a title and three values for each figure."""
    assert len(rows(report)) == len(report.figures())
    assert all(len(row) == 4 and all(row) for row in rows(report))
    assert [shown(*case) for case in ((0.034, "%"), (0.5, "%"), (12_345.0, "MB"), (72.0, "h"), (math.inf, "s"))] == [
        "3.4 %",
        "50 %",
        "12 GB",
        "3 days",
        "never",
    ]


def test_classes_add_up_devices_of_all_seeds(report: RehearsalReport) -> None:
    """A device's class is its name without the number."""
    assert classes(report) == {
        "home": (6, sum(each.work.counted for run in report.runs for each in run.devices)),
    }


def test_a_line_too_slow_for_the_timeout_is_named() -> None:
    """Volunteers that stand by are counted, with the seconds that their lines need, and the keys that help."""
    slow = HomeLine(up_mbit_per_second=2, down_mbit_per_second=2)
    report = rehearsed(run_with(averaging_timeout_s=20.0), homes(slow, parameters=4_000_000))
    stalled, failing = report.remarks()[:2]
    assert "1 of 1 rehearsals the swarm took no step" in stalled
    assert "3 of 3 volunteers stand by: their lines need up to 34 s" in failing
    assert "`averaging.averaging_timeout_s` (20 s)" in failing
    assert failing.endswith("send fewer bytes (`averaging.compression: auto`).")


def test_the_keepers_choice_lets_in_the_lines_that_are_too_slow_for_the_first_steps_of_a_run() -> None:
    """None passes 8 bits in time, all pass PowerSGD's factors; a line that passes nothing still stands by."""
    slow, slowest = (HomeLine(up_mbit_per_second=up, down_mbit_per_second=2) for up in (2, 0.001))

    def scenario_of(config: RunConfig, _seed: int) -> Scenario:
        averaged = 100_000 if config.averaging.powersgd_rank else None
        scenario = homes(slow, parameters=4_000_000).model_copy(update={"averaged": averaged})
        last = scenario.devices[-1].model_copy(update={"line": slowest})
        return scenario.model_copy(update={"devices": (*scenario.devices[:-1], last)})

    report = rehearse_seeds(run_with(averaging_timeout_s=20.0, compression="auto"), scenario_of, 1)
    assert report.config.averaging.powersgd_rank == 16
    choice, standing_by = report.remarks()[:2]
    assert "volunteers whose lines are too slow for `8bit-blockwise` can take part" in choice
    assert standing_by.startswith("1 of 3 volunteers stand by")
    assert "`averaging.target_batch_size`: of a longer step a slow line costs the others less." in standing_by


def test_too_few_reducers_are_named() -> None:
    """Where each line is fast, rounds fail because too many peers leave the reduction to the keeper."""
    far = [each.model_copy(update={"is_reachable": False}) for each in homes().devices]
    keeper = HomeLine(up_mbit_per_second=6, down_mbit_per_second=6)
    scenario = homes().model_copy(update={"devices": tuple(far), "keeper": keeper})
    report = rehearsed(run_with(averaging_timeout_s=6.0), scenario)
    assert any("3 devices are reduced by 0 that others can connect to" in remark for remark in report.remarks())


def test_parameters_are_those_of_the_model_itself() -> None:
    """A model without weights has the parameters of the one that trains, and PowerSGD averages fewer values."""
    config = tiny_config()
    config = config.model_copy(update={"tokenizer": config.tokenizer.model_copy(update={"vocab_size": 150})})
    values = ModelValues.of(config)
    assert values.parameters == tiny_model(config).num_parameters() == values.averaged(0)
    assert values.averaged(1) < values.averaged(0) / 2


def test_fewer_averaged_values_mean_fewer_bytes() -> None:
    """A scenario's `averaged` counts in rounds, and not in the state that a joiner takes."""
    whole = rehearsed(run_with(), homes())
    part = rehearsed(run_with(), homes().model_copy(update={"averaged": 10_000}))
    assert part.figures()["sent_mb_per_hour"].middle < 0.2 * whole.figures()["sent_mb_per_hour"].middle
    assert part.runs[0].devices[0].received_bytes > 8_000_000


def test_an_unknown_region_is_refused() -> None:
    """The message names the regions that there are."""
    volunteers = DrawnVolunteers(ModelValues(1000, ((1000,),)), 4, 1.0, "mars")
    with pytest.raises(ConfigError, match=r"\(mars\)"):
        rehearse_seeds(run_with(), volunteers.scenario, 1)


def test_advice_raises_a_timeout_that_slow_lines_cannot_keep() -> None:
    """The change that lets rounds end is recommended, with figures before and after."""
    slow = HomeLine(up_mbit_per_second=2, down_mbit_per_second=2)
    config = run_with(averaging_timeout_s=20.0)
    scenario = homes(slow, parameters=4_000_000)
    advice = advise(config, lambda _, __: scenario, 1)
    assert advice.recommended is not None
    assert advice.recommended.change.keys["averaging_timeout_s"] == 60.0
    assert samples_per_hour(advice.recommended.after.runs[0]) > samples_per_hour(advice.before.runs[0])
    reasons = advice.recommended.change.reason.split("; ")
    assert len(reasons) == len({*reasons})
    tried = advice.recommended.change.applied(config)
    assert tried is not None
    assert tried.averaging.averaging_timeout_s == 60.0


def test_a_change_counts_only_if_every_seed_gains(report: RehearsalReport) -> None:
    """One seed that gains much does not recommend a change by which another loses."""
    more = replace(report.runs[0], duration_s=report.runs[0].duration_s / 2)  # twice the samples an hour
    less = replace(report.runs[1], duration_s=report.runs[1].duration_s * 1.1)
    change = TriedChange("batch", {"target_batch_size": 128}, "")
    mixed = TriedOutcome(change, report, replace(report, runs=(more, less)))
    both = TriedOutcome(change, report, replace(report, runs=(more, more)))
    assert mixed.gains == pytest.approx((2.0, 1 / 1.1))
    assert not mixed.is_better
    assert both.is_better


@pytest.mark.parametrize(
    "averaging",
    [{}, {"delay": True}, {"local_steps": 2}, {"local_steps": 2, "delay": True}, {"compression": "8bit-blockwise"}],
)
def test_advice_keeps_the_rules_of_the_run_file(averaging: dict[str, Any]) -> None:
    """Every change gives a run file that loads, and none is what the run has."""
    config = run_with(**averaging)
    changes = changes_to_try(config)
    assert all(change.applied(config) not in (None, config) for change in changes)
    dials = {change.dial for change in changes}
    assert "local steps" in dials
    assert ("delay" in dials) == (not config.averaging.delay)
    tried = [change.written() for change in changes if change.dial == "compression"]
    assert ("compression: 8bit-blockwise" in tried) == (config.averaging.compression == "float16")
    assert ("compression: float16, powersgd_rank: 4" in tried) == (config.averaging.local_steps == 1)
    assert all(change.training for change in changes if change.dial in ("batch", "local steps", "delay"))
    told = next((change.training for change in changes if change.dial == "delay"), "")
    assert ("gradients are one step old" in told) == ("delay" in dials and config.averaging.local_steps == 1)


def test_advice_leaves_the_choice_to_a_run_that_chooses() -> None:
    """No way of averaging is tried where the run chooses its own."""
    assert not [change for change in changes_to_try(run_with(compression="auto")) if change.dial == "compression"]


@pytest.mark.parametrize(("mbit", "chosen"), [(1000, "float16"), (10, "powersgd_rank: 16")])
def test_a_run_that_chooses_is_rehearsed_with_its_choice(mbit: float, chosen: str) -> None:
    """The report says which way that is, and its rounds have that way's bytes."""
    line = HomeLine(up_mbit_per_second=mbit, down_mbit_per_second=mbit)
    values = ModelValues(1_000_000, ((1000, 1000),))

    def scenario_of(config: RunConfig, _: int) -> Scenario:
        averaged = values.averaged(config.averaging.powersgd_rank)
        return homes(line).model_copy(update={"averaged": averaged})

    report = rehearse_seeds(run_with(compression="auto", target_batch_size=16), scenario_of, 1)
    assert report.choice is not None
    assert str(report.choice.way) == chosen
    assert report.remarks()[0] == f"`averaging.compression` (auto) was rehearsed as {report.choice.why}"
    named = run_with(target_batch_size=16, **report.choice.way.keys)
    assert rehearse_seeds(named, scenario_of, 1).figures() == report.figures()


@pytest.fixture(scope="module")
def text() -> str:
    """A planned run file."""
    return plan_run("bn", 6, 0.3, "small", "south-asia", 1)


def test_a_planned_run_keeps_its_promise(text: str) -> None:
    """The file loads, and a rehearsal of it as its comment says gives the figures at its head."""
    config = RunConfig.from_mapping(yaml.safe_load(text))
    volunteers = DrawnVolunteers(ModelValues.of(config), 6, 0.3, "south-asia")
    report = rehearse_seeds(config, volunteers.scenario, 1)
    assert "--volunteers 6 --hours 0.3 --region south-asia --seeds 1" in text
    for measure in report.measures:
        if f"#   {measure.title}:" in text:
            middle = shown(report.quantiles(measure).middle, measure.unit)
            assert f"#   {measure.title}: {middle} (" in text
    assert text.count("#   ") > 5
    assert config.run.language == "bn"
    assert (config.averaging.compression, config.averaging.delay) == ("auto", True)
    assert report.choice is not None
    assert report.choice.why.split()[0] in " ".join(text.replace("#", "").split())
    assert config.schedule.total_steps < len(report.runs[0].steps)
    assert config.averaging.local_steps == 1 or config.optimizer.name == "adamw"


def test_an_exact_plan_has_common_steps_that_wait_for_the_mean_of_whole_gradients() -> None:
    """Not even slow lines bring it to local steps."""
    averaging = RunConfig.from_mapping(
        yaml.safe_load(plan_run("en", 12, 0.2, "base", "world", 1, is_exact=True))
    ).averaging
    assert (averaging.compression, averaging.powersgd_rank, averaging.delay) == ("float16", 0, False)
    assert averaging.local_steps == 1
    assert averaging.target_batch_size == PROVEN_BATCH


def test_each_chosen_value_of_a_plan_has_its_reason(text: str) -> None:
    """A comment stands above every key of averaging, optimizer and schedule that begins a choice."""
    lines = text.splitlines()
    for key in (
        "averaging_timeout_s",
        "target_batch_size",
        "compression",
        "delay",
        "total_steps",
        "warmup_steps",
        "name: lamb",
    ):
        found = [number for number, line in enumerate(lines) if line.strip().startswith(key)]
        if found:
            assert lines[found[0] - 1].strip().startswith("# ")
