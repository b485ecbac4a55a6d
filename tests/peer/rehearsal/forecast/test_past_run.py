"""A run's public history as a scenario, and the scenario's rehearsal beside the measured figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from auth.errors import ConfigError
from peer.config.run import RunConfig
from peer.rehearsal.forecast.comparison import PastComparison
from peer.rehearsal.forecast.past_run import (
    PastReport,
    PastSession,
    PastStep,
    RunHistory,
    past_scenario,
    read_history,
    stretch_of,
)
from peer.rehearsal.forecast.report import ModelValues, rehearse_seeds
from peer.rehearsal.scenario import Scenario, load_scenario
from tests.support.past_runs import NAMES, TABLES, VALUES, past_run, past_swarm, write_tables
from tests.support.served_page import FakeRun, PageServer

CONFIG = RunConfig.from_mapping({"averaging": {"target_batch_size": 100}})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeRun]:
    """A run of five minutes."""
    with past_run(tmp_path_factory.mktemp("past"), past_swarm()) as run:
        yield run


@pytest.fixture(scope="module")
def folder(run: FakeRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its tables."""
    return write_tables(run, tmp_path_factory.mktemp("tables") / "history")


@pytest.fixture(scope="module")
def history(folder: Path) -> RunHistory:
    """The same, read."""
    return read_history(str(folder))


@pytest.fixture(scope="module")
def scenario(history: RunHistory) -> Scenario:
    """The scenario that follows from it."""
    return past_scenario(CONFIG, history, stretch_of(history, 4.0), VALUES).scenario


def made_up(steps: int = 6, **changes: Any) -> RunHistory:
    """A history of one device that trains alone with the keeper, ten seconds a step."""
    report = PastReport(
        step=1,
        era=0,
        device=3,
        samples=100,
        counted=None,
        group_size=2,
        averaging_s=2.0,
        lost_samples=0,
        elapsed_s=10.0,
        averaged_bytes=1_000_000,
        completed_at=0.0,
        undone=False,
    )
    numbers = range(1, steps + 1)
    session = PastSession(member="ada", device=3, started_at=1000.0, last_seen_at=2000.0, ended_at=None)
    return replace(
        RunHistory(
            steps=[
                PastStep(step=number, era=0, target_batch_size=100, completed_at=1000.0 + 10 * number)
                for number in numbers
            ],
            sessions=[session],
            reports=[
                report.model_copy(update={"step": number, "completed_at": 1000.0 + 10 * number}) for number in numbers
            ],
        ),
        **changes,
    )


def scenario_of(history: RunHistory) -> Scenario:
    return past_scenario(CONFIG, history, stretch_of(history, 4.0), VALUES).scenario


def test_the_scenario_has_the_devices_of_the_run(scenario: Scenario) -> None:
    """With their stays, their speeds while they compute, and who can be connected to."""
    real = past_swarm()
    assert [device.samples_per_second for device in scenario.devices] == [
        pytest.approx(device.samples_per_second, rel=0.15) for device in real.devices
    ]
    assert [device.is_reachable for device in scenario.devices] == [True, True, False]
    assert scenario.devices[1].visits == real.devices[1].visits
    assert [device.visits for device in (scenario.devices[0], scenario.devices[2])] == [
        device.visits for device in (real.devices[0], real.devices[2])
    ]
    assert real.start_s / 2 < scenario.start_s < 1.2 * real.start_s


def test_lines_are_estimated_from_below(scenario: Scenario) -> None:
    """No line is inferred faster than it was, none slower than a third of it."""
    for found, real in zip(
        [scenario.keeper, *(device.line for device in scenario.devices)],
        [past_swarm().keeper, *(device.line for device in past_swarm().devices)],
        strict=True,
    ):
        assert real.slower_rate / 3 < found.slower_rate <= 1.02 * real.slower_rate


def test_no_member_is_named(history: RunHistory, tmp_path: Path) -> None:
    """Devices and members have numbers; the file is a scenario, and its head says what is inferred."""
    text = past_scenario(CONFIG, history, stretch_of(history, 4.0), VALUES).to_yaml()
    assert not any(name in text for name in NAMES)
    assert text.startswith("# Steps 1 to ")
    assert "Lines are estimates from below" in text
    (path := tmp_path / "past.yaml").write_text(text)
    assert load_scenario(path) == scenario_of(history)


def test_a_scenario_of_an_older_version_loads(scenario: Scenario, tmp_path: Path) -> None:
    """Its measured settings may include one that was removed since."""
    content = scenario.model_dump(mode="json")
    content["measured"]["averaging"]["matchmaking_time_s"] = 15.0
    (path := tmp_path / "past.yaml").write_text(yaml.safe_dump(content))
    assert load_scenario(path) == scenario


def test_the_rehearsal_is_held_against_the_run(scenario: Scenario) -> None:
    """A swarm that the rehearsal made itself is rehearsed alike; with another batch its figures are another swarm's."""
    assert scenario.measured is not None
    found = PastComparison(scenario.measured, rehearse_seeds(CONFIG, lambda _, __: scenario, 2))
    assert found.is_alike
    assert [title for title, *_ in found.rows()] == [
        "Time from one step to the next",
        "Steps in this time",
        "Reported samples that count",
    ]
    assert "within the rehearsed spread" in next(found.verdict())
    assert abs(found.to_json()["measured_step_s"]["p50"] - found.to_json()["rehearsed_step_s"]["p50"]) < 5
    other = RunConfig.from_mapping({"averaging": {"target_batch_size": 200}})
    changed = PastComparison(scenario.measured, rehearse_seeds(other, lambda _, __: scenario, 1))
    assert list(changed.verdict()) == [
        "The rehearsed run differs: `averaging.target_batch_size` (200, measured with 100). The columns compare "
        "the two."
    ]


def test_a_past_run_that_chose_its_compression_is_rehearsed_with_its_choice(history: RunHistory) -> None:
    """A remark says what its history does not tell, and the choice is no difference between the two."""
    chooses = RunConfig.from_mapping({"averaging": {"target_batch_size": 100, "compression": "auto"}})
    past = past_scenario(chooses, history, stretch_of(history, 4.0), VALUES)
    assert [remark for remark in past.remarks if "averaged in 8bit-blockwise" in remark]
    assert past.scenario.measured is not None
    report = rehearse_seeds(chooses, lambda _, __: past.scenario, 1)
    assert report.choice is not None
    assert PastComparison(past.scenario.measured, report).changes == ()


def test_a_rehearsal_that_is_not_alike_says_so(scenario: Scenario) -> None:
    """Measured steps of another duration lie outside, and without two steps no figure fits."""
    assert scenario.measured is not None
    report = rehearse_seeds(CONFIG, lambda _, __: scenario, 1)
    slow = PastComparison(scenario.measured.model_copy(update={"step_s": (200.0, 300.0, 400.0)}), report)
    assert not slow.is_alike
    assert "outside the rehearsed spread, and the rehearsed median outside" in next(slow.verdict())
    stuck = scenario.model_copy(update={"duration_s": 20.0})
    nothing = PastComparison(scenario.measured, rehearse_seeds(CONFIG, lambda _, __: stuck, 1))
    assert not nothing.is_alike
    assert "do not fit this swarm" in next(nothing.verdict())


def test_a_dashboard_is_read_over_its_address(run: FakeRun, history: RunHistory) -> None:
    """The same tables come from the server as from the files."""
    server = PageServer(run)
    try:
        assert read_history(server.url) == history
    finally:
        server.close()


def test_a_lost_connection_is_no_absence() -> None:
    """Sessions across whose border a device trained on are one stay; others are two."""
    first, second = (
        PastSession(member="ada", device=3, started_at=begin, last_seen_at=end, ended_at=end)
        for begin, end in ((1000.0, 1022.0), (1027.0, 2000.0))
    )
    joined = scenario_of(made_up(sessions=[first, second]))
    assert [visit.end_s for visit in joined.devices[0].visits] == [None]
    reports = [each for each in made_up().reports if each.step != 3]
    apart = scenario_of(made_up(sessions=[first, second], reports=reports))
    assert [(visit.begin_s, visit.end_s) for visit in apart.devices[0].visits] == [(0.0, 22.0), (27.0, None)]


def test_stays_before_and_after_the_stretch_are_no_visits() -> None:
    """A device that comes again only later is there until the stretch ends."""
    borders = ((10.0, 20.0), (1000.0, 1070.0), (1075.0, 1100.0), (3000.0, 4000.0))
    sessions = [
        PastSession(member="ada", device=3, started_at=begin, last_seen_at=end, ended_at=end) for begin, end in borders
    ]
    history = made_up(20, sessions=sessions)
    stretch = stretch_of(history, 65 / 3600, until=10)
    found = past_scenario(CONFIG, history, stretch, VALUES)
    assert [(visit.begin_s, visit.end_s) for visit in found.scenario.devices[0].visits] == [(0.0, None)]
    assert any("join anew" in remark for remark in found.remarks)


def test_a_stretch_has_one_batch_and_one_era() -> None:
    """It ends with the step that is wished, is as long as wished, and begins after the last change."""
    whole = made_up(20)
    assert len(stretch_of(whole, 4.0).steps) == 20
    assert stretch_of(whole, 4.0).is_beginning
    assert [each.step for each in stretch_of(whole, 4.0, until=5).steps] == [1, 2, 3, 4, 5]
    late = stretch_of(whole, 55 / 3600)
    assert [each.step for each in late.steps] == [15, 16, 17, 18, 19, 20]
    assert not late.is_beginning
    for change in ({"era": 1}, {"target_batch_size": 200}):
        steps = [each.model_copy(update=change if each.step > 12 else {}) for each in whole.steps]
        assert [each.step for each in stretch_of(replace(whole, steps=steps), 4.0).steps] == list(range(14, 21))
    later = [each.model_copy(update={"target_batch_size": 200}) for each in made_up().steps]
    past = past_scenario(CONFIG, replace(made_up(), steps=later), stretch_of(made_up(steps=6), 4.0), VALUES)
    assert not any("set `averaging.target_batch_size`" in remark for remark in past.remarks)


def test_devices_without_a_step_are_left_out_and_told() -> None:
    """Nothing tells their speed; a device without samples is an auxiliary peer."""
    sessions = [each.model_copy(update={"device": 4, "member": "eve"}) for each in made_up().sessions]
    history = made_up(sessions=[*made_up().sessions, *sessions])
    past = past_scenario(CONFIG, history, stretch_of(history, 4.0), VALUES)
    assert [device.name for device in past.scenario.devices] == ["device-3"]
    assert any(remark.startswith("Left out: 1 of the devices") for remark in past.remarks)
    idle = [each.model_copy(update={"device": 4, "samples": 0}) for each in made_up().reports]
    helped = scenario_of(replace(history, reports=[*history.reports, *idle]))
    assert [device.samples_per_second for device in helped.devices] == [12.5, None]


def test_short_and_empty_histories_are_one_sentence() -> None:
    """What is missing is named."""
    for history in (RunHistory([], [], []), made_up(3), made_up(sessions=[])):
        with pytest.raises(ConfigError, match=r"a scenario needs 4\.$"):
            scenario_of(history)
    with pytest.raises(ConfigError, match="Nobody trained"):
        scenario_of(made_up(reports=[]))


def test_values_that_cannot_be_do_not_make_a_scenario_that_cannot_be() -> None:
    """Reports of no duration, of more bytes than there are, and sessions that end before they begin."""
    odd = {"elapsed_s": 0.0, "averaging_s": 1e10, "averaged_bytes": 2**50, "lost_samples": 2**50}
    reports = [each.model_copy(update=odd if each.step % 2 else {}) for each in made_up().reports]
    backwards = PastSession(member="ada", device=3, started_at=1500.0, last_seen_at=10.0, ended_at=5.0)
    found = scenario_of(made_up(reports=reports, sessions=[*made_up().sessions, backwards]))
    assert found.devices[0].samples_per_second == 12.5
    assert Scenario.model_validate(found.model_dump()) == found


@pytest.mark.parametrize("table", TABLES)
def test_files_that_are_no_history_are_one_sentence(folder: Path, tmp_path: Path, table: str) -> None:
    """The file is named: one that is missing, one of another kind, one without a column, one with impossible values."""
    for name in TABLES:
        (tmp_path / f"{name}.parquet").write_bytes((folder / f"{name}.parquet").read_bytes())
    path = tmp_path / f"{table}.parquet"
    content = pq.read_table(path)
    device_or_step = next(place for place, name in enumerate(content.column_names) if name in ("step", "device"))
    spoilt = {
        "is no table in Parquet": lambda: path.write_bytes(b"<html>"),
        "is not that of a run's history": lambda: pq.write_table(content.remove_column(device_or_step), path),
        "greater than or equal to 0": lambda: pq.write_table(
            content.set_column(device_or_step, content.field(device_or_step), pa.array([-1] * len(content))), path
        ),
        "No such file": path.unlink,
    }
    for message, spoil in spoilt.items():
        spoil()
        with pytest.raises(ConfigError, match=message) as caught:
            read_history(str(tmp_path))
        assert str(caught.value).startswith(f"{table}.parquet of ")
        assert str(caught.value).endswith(".")


def test_a_model_of_another_size_moves_the_lines_only() -> None:
    """Twice the values in the same time are lines of twice the rate."""
    history = made_up()
    small, large = (
        past_scenario(CONFIG, history, stretch_of(history, 4.0), ModelValues(values, ((values,),))).scenario
        for values in (1_000_000, 2_000_000)
    )
    assert large.devices[0].line.slower_rate > small.devices[0].line.slower_rate
    assert large.devices[0].samples_per_second == small.devices[0].samples_per_second
