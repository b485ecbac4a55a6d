"""The comparison of rehearsed swarms with real ones: what peers say becomes quantities, and these become errors."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.swarm.measured_swarm import Measurement, events_of, measured, volunteer_of
from benchmarks.swarm.rehearsal import Quantities, figures_of, main, quantities_of
from benchmarks.swarm.rehearsed_cases import RehearsedCase, even

CASE = RehearsedCase(even(2, 4.0), batch_s=32.0, seconds=100)  # a sample a second, each
BEGAN_AT = 1000.0


class Told:
    """A peer's process that has ended, with what it said."""

    def __init__(self, *said: dict[str, Any], began_at: float = BEGAN_AT) -> None:
        self.said, self.began_at, self.left_at, self.has_died = said, began_at, math.inf, False

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.said if event["event"] == kind]


def said(event: str, at_s: float, computed: int = 0, sent: int = 0, **facts: Any) -> dict[str, Any]:
    """One line of a peer's journal."""
    return {"event": event, "at": BEGAN_AT + at_s, "computed": computed, "sent": sent, "received": 0, **facts}


def step(at_s: float, number: int, samples: int, **facts: Any) -> dict[str, Any]:
    """It has taken a step."""
    return said("step", at_s, step=number, samples=samples, group=3, group_samples=64, seconds=2.0, **facts)


def swarm() -> Measurement:
    """A measured swarm of two steps, and a third that came too late."""
    one = Told(
        said("ready", 10), step(41, 1, 30, computed=30), step(71, 2, 30, computed=60, sent=3_000_000), step(101, 3, 30)
    )
    lost = said("lost", 60, by_cause={"late": 10})
    other = Told(said("ready", 11), step(40, 1, 20, computed=20), lost, step(70, 2, 20, computed=50, sent=1_000_000))
    homes: Any = SimpleNamespace(stays={"even-1": [one], "even-2": [other]}, peers=[one, other], keeper=Told())
    speeds = {volunteer_of(device): 1.0 for device in CASE.scenario().devices}
    swarm = measured(homes, speeds, BEGAN_AT, CASE.seconds, processors_percent=20.0)
    return Measurement(name="two", scenario=CASE.scenario(), config=CASE.config(), measured=swarm)


def test_a_swarm_is_judged_until_its_last_step() -> None:
    """Steps after the scenario's time are left out, and so is the time after the last step."""
    result = swarm().measured
    assert [(each.step, each.at_s, each.samples) for each in result.steps] == [(1, 40.0, 50), (2, 70.0, 50)]
    assert result.seconds == 71.0
    assert quantities_of(result) == Quantities(
        step_s=30.0, utilisation_percent=pytest.approx(100 * 100 / 121), counted_percent=100 * 100 / 110, sent_mb=2.0
    )


@pytest.mark.parametrize("who_tells", ["keeper", "member"])
def test_only_samples_that_the_average_weighed_count(who_tells: str) -> None:
    """Of a newcomer's 12 samples the 10 that it is believed are in the step, as the keeper tells, or else a member."""
    weights = {"one": 30, "newcomer": 10}
    told = {"weights": weights} if who_tells == "member" else {}
    one = Told(said("ready", 1, pseudonym="one"), step(41, 1, 30, computed=30, **told))
    newcomer = Told(said("ready", 2, pseudonym="newcomer"), step(42, 1, 12, computed=12))
    keeper = Told(step(41, 1, 0, weights=weights if who_tells == "keeper" else {}))
    homes: Any = SimpleNamespace(stays={"even-1": [one], "even-2": [newcomer]}, peers=[one, newcomer], keeper=keeper)
    speeds = {volunteer_of(device): 1.0 for device in CASE.scenario().devices}
    result = measured(homes, speeds, BEGAN_AT, CASE.seconds, processors_percent=20.0)
    assert [each.samples for each in result.steps] == [40]
    assert [each.counted for each in result.peers.values()] == [30, 10]
    assert result.peers["even-2"].lost == {"cut weight": 2}


def test_errors_are_of_the_measured_quantity() -> None:
    """The last figures are the medians of all scenarios' relative errors."""
    real = Quantities(step_s=20.0, utilisation_percent=50.0, counted_percent=100.0, sent_mb=4.0)
    high = Quantities(step_s=25.0, utilisation_percent=50.0, counted_percent=100.0, sent_mb=1.0)
    low = Quantities(step_s=19.0, utilisation_percent=40.0, counted_percent=100.0, sent_mb=4.0)
    figures = figures_of([(swarm(), high, real), (swarm(), low, real)])
    assert [figure.value for figure in figures[-4:]] == pytest.approx([15.0, 10.0, 0.0, 37.5])


def test_saved_swarms_are_compared_without_measuring(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A measurement that was saved is as it was, and its figures stand beside a rehearsal's."""
    measurement = swarm()
    (tmp_path / "two.json").write_text(measurement.model_dump_json())
    assert Measurement.model_validate_json((tmp_path / "two.json").read_text()) == measurement
    main(["--measured", str(tmp_path), "--seeds", "1"])
    assert "30 (measured)" in capsys.readouterr().out


class Recorded:
    """Homes that only note what happens in them."""

    def __init__(self) -> None:
        self.happened: list[tuple[Any, ...]] = []
        self.network = self

    def __getattr__(self, name: str) -> Any:
        return lambda *facts: self.happened.append((name, *facts))


def test_incidents_happen_when_the_scenario_says() -> None:
    """A volunteer dies and returns, and a line is slower for a time."""
    case = RehearsedCase(
        even(2, 4.0), 32.0, absences={"even-1": (0.4, 0.7)}, ends="dies", drop=("even-2", 0.1, 0.2, 0.5)
    )
    scenario = case.scenario(100.0)
    homes: Any = Recorded()
    events = events_of(homes, scenario, {volunteer_of(device): device for device in scenario.devices})
    assert [at_s for at_s, _ in events] == [10.0, 20.0, 40.0, 70.0]
    for _, happen in events:
        happen()
    first = volunteer_of(scenario.devices[0])
    line = "slow_down", "even-2"
    assert homes.happened == [(*line, 0.5), (*line, 1.0), ("kill", first), ("start", first)]
