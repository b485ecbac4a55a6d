"""A rehearsal's scenario as a real swarm: the peers of home_lines.py, each on a host of its own, and what they tell.

Times are in seconds from the first volunteer's start.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import psutil
from pydantic import BaseModel

from benchmarks.support.network import HostPlan
from benchmarks.swarm.home_lines import (
    SETTLE_S,
    Events,
    Outcome,
    Weights,
    let_happen,
    outcomes_at,
    weighed_samples,
    weights_in,
)
from benchmarks.swarm.homes import POLL_S, Homes, Peer, Volunteer
from peer.config.run import RunConfig
from peer.rehearsal.scenario import Rehearsed, Scenario


class Taken(BaseModel):
    """A step, as one peer took it."""

    at_s: float
    group: int  # peers, the keeper included
    group_samples: int
    samples: int  # its own, as the average weighed them
    round_s: float


class MeasuredStep(BaseModel):
    """A step, as all peers took it."""

    step: int
    at_s: float  # by the first of them
    group: int  # the largest
    samples: int
    round_s: float  # the longest
    peers: dict[str, Taken]


class Stay(BaseModel):
    """One stay of a volunteer."""

    begun_s: float
    joined_s: float | None  # it held the run's state
    left_s: float | None


class Measured(BaseModel):
    """The swarm until its last step."""

    seconds: float
    steps: list[MeasuredStep]
    peers: dict[str, Outcome]
    stays: dict[str, list[Stay]]
    processors_percent: float  # of this machine, busy without processes that are nice: near 100 the figures tell of it


class Measurement(BaseModel):
    """A scenario with the measured swarm, as a file holds them."""

    name: str
    scenario: Scenario
    config: RunConfig
    measured: Measured


def measure(config: RunConfig, scenario: Scenario, logs: Path | None) -> Measured:
    """Run the scenario."""
    volunteers = {volunteer_of(device): device for device in scenario.devices}
    speeds = {volunteer: 1 / (device.samples_per_second or 0.0) for volunteer, device in volunteers.items()}
    with tempfile.TemporaryDirectory() as scratch:
        log_dir = logs or Path(scratch)
        log_dir.mkdir(parents=True, exist_ok=True)
        with Homes("ours", config, speeds, Path(scratch), log_dir) as homes:
            began_at = homes.peers[0].began_at
            psutil.cpu_times_percent()
            events = events_of(homes, scenario, volunteers)
            while (elapsed_s := time.monotonic() - began_at) < scenario.duration_s + SETTLE_S:
                let_happen(homes, events, elapsed_s)
                time.sleep(POLL_S)
            use = psutil.cpu_times_percent()
    return measured(homes, speeds, began_at, scenario.duration_s, 100 - use.idle - use.iowait - use.nice)


def volunteer_of(device: Rehearsed) -> Volunteer:
    """Return a device as a volunteer of home_lines.py."""
    up, down = device.line.up_mbit_per_second, device.line.down_mbit_per_second
    line = HostPlan(device.name, up, "open" if device.is_reachable else "nat", down_mbit_per_second=down)
    return Volunteer(line, device.samples_per_second or 0.0)


def events_of(homes: Homes, scenario: Scenario, volunteers: Mapping[Volunteer, Rehearsed]) -> Events:
    """Return what happens after the first visits' begin, for which `Homes` cares, one after another."""
    events: Events = []
    for volunteer, device in volunteers.items():
        events += [(visit.begin_s, partial(homes.start, volunteer)) for visit in device.visits[1:]]
        for visit in device.visits:
            leave = homes.leave if visit.ends == "leaves" else homes.kill
            events += [(visit.end_s, partial(leave, volunteer))] if visit.end_s is not None else []
    for mishap in scenario.mishaps:
        assert mishap.who is not None, "the keeper of these swarms is never killed"
        if mishap.factor:
            begin = partial(homes.network.slow_down, mishap.who, mishap.factor)
            end = partial(homes.network.slow_down, mishap.who, 1.0)
        else:
            begin, end = partial(homes.network.cut, mishap.who), partial(homes.network.mend, mishap.who)
        events += [(mishap.begin_s, begin), (mishap.end_s, end)]
    return sorted(events, key=lambda event: event[0])


def measured(
    homes: Homes, speeds: Mapping[Volunteer, float], began_at: float, duration_s: float, processors_percent: float
) -> Measured:
    """Return what the peers tell of the steps that began to be taken in this time."""
    said = {**homes.stays, "keeper": [homes.keeper]}
    steps = _steps(said, weights_in(homes), began_at, duration_s)
    seconds = max((each.at_s for step in steps for each in step.peers.values()), default=duration_s)
    return Measured(
        seconds=seconds,
        steps=steps,
        peers=outcomes_at(homes, speeds, began_at + seconds),
        stays={name: [_stay(peer, began_at) for peer in stays] for name, stays in homes.stays.items()},
        processors_percent=processors_percent,
    )


def _steps(
    said: Mapping[str, Sequence[Peer]], weights: Weights, began_at: float, duration_s: float
) -> list[MeasuredStep]:
    taken: dict[int, dict[str, Taken]] = {}
    for name, peer, event in (
        (name, stay, event) for name, stays in said.items() for stay in stays for event in stay.events("step")
    ):
        taken.setdefault(event["step"], {})[name] = Taken(
            at_s=event["at"] - began_at,
            group=event["group"],
            group_samples=event["group_samples"],
            samples=weighed_samples(peer, event, weights),
            round_s=event["seconds"],
        )
    steps = [
        MeasuredStep(
            step=step,
            at_s=min(each.at_s for each in peers.values()),
            group=max(each.group for each in peers.values()),
            samples=sum(each.samples for each in peers.values()),
            round_s=max(each.round_s for each in peers.values()),
            peers=peers,
        )
        for step, peers in sorted(taken.items())
    ]
    return [step for step in steps if step.at_s <= duration_s]


def _stay(peer: Peer, began_at: float) -> Stay:
    joined = [event["at"] - began_at for event in peer.events("ready")]
    left_s = peer.left_at - began_at
    return Stay(
        begun_s=peer.began_at - began_at,
        joined_s=joined[0] if joined else None,
        left_s=left_s if left_s < float("inf") else None,
    )
