"""The averaging mode of a rehearsed swarm with `averaging.compression: auto`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from peer.averaging.choice import AveragingChoice, RoundPace, choose
from peer.averaging.shares import GroupLines, believed
from peer.averaging.ways import AveragingWay, ways_of
from peer.config.run import RunConfig
from peer.network.traffic import BYTES_PER_S_OF_MBIT
from peer.rehearsal.scenario import Rehearsed, Scenario


def with_chosen_way(
    config: RunConfig, scenario_of: Callable[[RunConfig, int], Scenario]
) -> tuple[RunConfig, AveragingChoice | None]:
    """Return the run with the mode chosen for the first seed's swarm, and the choice itself.

    A run with an explicit mode, or without trainers, is returned unchanged, with None as the choice.
    """
    scenario = scenario_of(config, 1)
    present = _in_the_middle(scenario)
    speed = sum(device.samples_per_second or 0.0 for device in present)
    if config.averaging.compression != "auto" or not speed:
        return config, None

    @cache
    def values(rank: int) -> int:
        swarm = scenario_of(_with_way(config, AveragingWay("float16", rank)), 1)
        return swarm.averaged or swarm.parameters

    keeper_rate = None if scenario.line_mbit is None else scenario.line_mbit * BYTES_PER_S_OF_MBIT
    lines = GroupLines(
        rates=(believed(keeper_rate), *(believed(device.line.slower_rate) for device in present)),
        reduces=(True, *(device.is_reachable for device in present)),
        trusted=(True, *(False for _ in present)),
        second_reducers=(),
    )
    averaging = config.averaging
    speeds = (0.0, *(device.samples_per_second or 0.0 for device in present))
    pace = RoundPace(averaging, values, lines, speeds, averaging.target_batch_size / speed, speed)
    choice = choose(pace, ways_of(averaging))
    return _with_way(config, choice.way), choice


def _with_way(config: RunConfig, way: AveragingWay) -> RunConfig:
    return config.model_copy(update={"averaging": config.averaging.model_copy(update=way.keys)})


def _in_the_middle(scenario: Scenario) -> list[Rehearsed]:
    """Return the devices present halfway through, or all devices if none of those trains."""
    moment = scenario.duration_s / 2
    present = [
        device
        for device in scenario.devices
        if any(visit.begin_s <= moment < (visit.end_s or scenario.duration_s) for visit in device.visits)
    ]
    return present if any(device.samples_per_second for device in present) else list(scenario.devices)
