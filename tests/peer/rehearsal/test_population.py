"""Populations: the draws follow the tables, and every figure of the tables has a source."""

from __future__ import annotations

import math

import pytest

from auth.errors import ConfigError
from peer.config.run import RunConfig
from peer.rehearsal.population import draw_scenario, population_tables, provenance, training_flops
from peer.rehearsal.scenario import Rehearsed, Scenario

ALBERT_LARGE = {"run": {"name": "population"}}


def population(
    seed: int = 1, volunteers: int = 40, hours: float = 4.0, region: str = "world", **model: object
) -> Scenario:
    """A drawn scenario of ALBERT-large with changes of its sizes."""
    config = RunConfig.from_mapping({**ALBERT_LARGE, "model": model})
    return draw_scenario(config, parameters=18_000_000, volunteers=volunteers, hours=hours, seed=seed, region=region)


def at_home(scenario: Scenario) -> list[Rehearsed]:
    """The devices that stand in homes."""
    return [device for device in scenario.devices if not device.name.startswith("colab")]


def test_a_seed_draws_the_same_population_and_another_seed_another() -> None:
    """A rehearsal can be repeated from its seed."""
    assert population(seed=7).model_dump_json() == population(seed=7).model_dump_json()
    assert population(seed=7).devices != population(seed=8).devices


@pytest.mark.parametrize("region", population_tables().lines.regions)
def test_lines_have_the_quantiles_of_the_table(region: str) -> None:
    """Of 2000 lines, the share below each quantile of the table is its level, within three percentage points."""
    tables = population_tables().lines
    lines = [device.line for device in at_home(population(volunteers=2000, region=region))]
    quantiles = tables.regions[region]
    columns = (
        ([line.down_mbit_per_second for line in lines], quantiles.down_mbit_per_second),
        ([line.up_mbit_per_second for line in lines], quantiles.up_mbit_per_second),
        ([line.latency_s * 1000 for line in lines], quantiles.round_trip_ms),
    )
    for drawn, row in columns:
        assert (min(drawn), max(drawn)) == pytest.approx((row[0], row[-1]))
        for level, value in [*zip(tables.levels, row, strict=True)][1:-1]:
            assert sum(one < value for one in drawn) / len(drawn) == pytest.approx(level, abs=0.03)


def test_a_fast_downlink_comes_with_a_fast_uplink() -> None:
    """Both directions are drawn for one home: of the faster half, most are faster in the other direction."""
    median = population_tables().lines.regions["world"]
    lines = [device.line for device in at_home(population(volunteers=2000))]
    fast = [line for line in lines if line.down_mbit_per_second > median.down_mbit_per_second[2]]
    assert sum(line.up_mbit_per_second > median.up_mbit_per_second[2] for line in fast) > 0.65 * len(fast)


def test_devices_have_the_shares_of_the_table() -> None:
    """Of 2000 devices, each class has its share, within three percentage points."""
    classes = population_tables().devices.classes
    names = [device.name.rpartition("-")[0] for device in population(volunteers=2000).devices]
    total = sum(its.share.value for its in classes.values())
    for name, its in classes.items():
        assert names.count(name) / len(names) == pytest.approx(its.share.value / total, abs=0.03)


def test_every_figure_has_a_source() -> None:
    """Published figures name an address or a paper with its year, and no figure is without a source."""
    entries = [name for origin in provenance() for name in origin.entries]
    classes = population_tables().devices.classes
    assert {f"devices.classes.{name}.{key}" for name in classes for key in ("share", "peak_tflops")} <= {*entries}
    assert {"lines", "lines.correlation", "sessions.mean_hours", "reachability.hole_punching"} <= {*entries}
    assert len(entries) == len({*entries})
    for origin in provenance():
        assert origin.kind == "assumption" or "https://" in origin.source or "arXiv" in origin.source


def test_a_larger_model_makes_all_devices_slower_alike() -> None:
    """Speeds are inverse to the work of a sample: twice the layers take almost twice the time, on every device."""
    deep, flat = population(num_hidden_layers=48).devices, population(num_hidden_layers=24).devices
    ratios = [a.samples_per_second / b.samples_per_second for a, b in zip(deep, flat, strict=True)]  # type: ignore[operator]
    assert ratios == pytest.approx([0.5] * len(ratios), rel=0.01)


def test_a_sample_of_albert_large_takes_a_teraflop() -> None:
    """The layers' products, by hand: 24 layers of 12.6 million weights and of attention over 512 tokens."""
    flops = training_flops(RunConfig.from_mapping(ALBERT_LARGE))
    by_hand = 6 * 512 * 24 * (12 * 1024**2 + 2 * 512 * 1024)
    assert by_hand < flops < 1.02 * by_hand


@pytest.mark.parametrize("hours", [0.5, 4.0, 30.0, 9 * 24.0])
def test_stays_lie_within_the_run(hours: float) -> None:
    """Every volunteer comes early in the run, and no stay begins or ends after it."""
    scenario = population(hours=hours, volunteers=200)
    for device in scenario.devices:
        assert device.visits[0].begin_s <= 0.25 * min(scenario.duration_s, 24 * 3600)
        assert all(visit.begin_s < scenario.duration_s for visit in device.visits)
        assert all((visit.end_s or 0) < scenario.duration_s for visit in device.visits)


def test_sessions_of_nine_days_are_those_of_sahajbert() -> None:
    """Forty volunteers have about 600 sessions of 4 hours, none above 21, more of them by day than by night."""
    visits = [visit for device in population(hours=9 * 24, volunteers=400).devices for visit in device.visits]
    lengths = [visit.end_s - visit.begin_s for visit in visits if visit.end_s is not None]
    assert len(visits) / 10 == pytest.approx(600, rel=0.1)
    assert sum(lengths) / len(lengths) / 3600 == pytest.approx(4, rel=0.1)
    assert max(lengths) <= 21 * 3600
    assert sum(visit.ends == "dies" for visit in visits) / len(lengths) == pytest.approx(0.3, abs=0.03)
    by_day = sum(math.cos(2 * math.pi * visit.begin_s / (24 * 3600)) > 0 for visit in visits)
    assert by_day > 0.6 * len(visits)


def test_the_share_of_reachable_homes_is_as_stated() -> None:
    """Homes without NAT and 70 % of the others can be reached, over many populations; hosted notebooks cannot."""
    populations = [population(seed=seed, volunteers=100) for seed in range(100)]
    homes = [device for scenario in populations for device in at_home(scenario)]
    assert sum(device.is_reachable for device in homes) / len(homes) == pytest.approx(0.1 + 0.9 * 0.7, abs=0.03)
    assert not any(device.is_reachable for device in populations[0].devices if device.name.startswith("colab"))


def test_an_unknown_region_is_refused() -> None:
    """The message names the regions that there are."""
    with pytest.raises(ConfigError, match=r"\(mars\) .* choose one of world, north-america"):
        population(region="mars")
