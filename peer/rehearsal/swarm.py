"""The rehearsal of one scenario: a whole swarm in virtual time, reproducible from its seed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import simpy

from peer.config.run import RunConfig
from peer.progress.view import SwarmCourse
from peer.rehearsal.exchange import SharedCourse
from peer.rehearsal.peer import RehearsedPeer, Work
from peer.rehearsal.scenario import KEEPER, Rehearsed, Scenario, Visit
from peer.rehearsal.troubles import Process
from peer.rehearsal.waits import process_of
from peer.rehearsal.world import Happening, RehearsedStep, TakenStep, UndoneSteps, World

OWN_COURSES = 12  # maximum number of devices that evaluate the records separately


@dataclass(frozen=True)
class RehearsedDevice:
    """One device's work and traffic in a rehearsal."""

    device: Rehearsed
    work: Work
    sent_bytes: float
    received_bytes: float

    @property
    def utilisation(self) -> float:
        """The fraction of the device's time in the swarm spent on samples that ended in steps."""
        rate, present_s = self.device.samples_per_second, self.work.present_s
        return self.work.counted / rate / present_s if rate and present_s else 0.0


@dataclass(frozen=True)
class RehearsedRun:
    """The outcome of a rehearsal."""

    duration_s: float
    steps: tuple[RehearsedStep, ...]
    devices: tuple[RehearsedDevice, ...]
    keeper: RehearsedDevice
    suspected: Mapping[tuple[str, str], int]  # (device, suspicion) -> number of suspicions
    trace: tuple[Happening, ...]

    @property
    def step_s(self) -> float | None:
        """The median time between steps; None with fewer than two steps."""
        times = [step.at_s for step in self.steps]
        return median(later - sooner for sooner, later in pairwise(times)) if times[1:] else None

    @property
    def utilisation(self) -> float:
        """The fraction of all trainers' time spent on samples that ended in steps."""
        trainers = [each for each in self.devices if each.device.samples_per_second]
        present_s = sum(each.work.present_s for each in trainers)
        return sum(each.utilisation * each.work.present_s for each in trainers) / present_s if present_s else 0.0

    @property
    def counted_share(self) -> float:
        """The fraction of all counted and lost samples that ended in steps."""
        counted = sum(each.work.counted for each in self.devices)
        judged = counted + sum(each.work.lost.total() for each in self.devices)
        return counted / judged if judged else 0.0


def rehearse(
    config: RunConfig,
    scenario: Scenario,
    seed: int,
    *,
    shares_course: bool | None = None,
    watch: Callable[[TakenStep | UndoneSteps], None] = lambda _: None,
) -> RehearsedRun:
    """Run a scenario in virtual time, with `seed` for all random draws.

    `shares_course`: whether trainers share one evaluation of the records, which is faster; None: only
    with more than `OWN_COURSES` devices. `watch` is called for each step taken or undone.
    """
    env = simpy.Environment()
    world = World(env, config, scenario, seed, watch)
    keeper = Rehearsed(name=KEEPER, line=scenario.keeper)
    works = {device.name: Work() for device in (keeper, *scenario.devices)}
    for device in (keeper, *scenario.devices):
        world.lines.connect(device.name, device.line.at())
    env.process(_keep(world, keeper, works[KEEPER]))
    is_large = len(scenario.devices) > OWN_COURSES if shares_course is None else shares_course
    is_shared = is_large and not world.troubles.has_sides
    common = SharedCourse.of(config, "", "trainer", world.suspicions_of("all")) if is_shared else None
    for device in scenario.devices:
        for visit in device.visits:
            env.process(_visit(world, device, visit, works[device.name], common))
    lines = {device.name: device for device in (keeper, *scenario.devices)}
    world.troubles.happen()
    with _silence():
        env.run(until=scenario.duration_s)
    world.end()
    outcomes = {
        # copied: Python later closes the generators of present peers, which then lose samples
        name: RehearsedDevice(
            device, deepcopy(works[name]), world.lines.moved(name, "up"), world.lines.moved(name, "down")
        )
        for name, device in lines.items()
    }
    return RehearsedRun(
        duration_s=scenario.duration_s,
        steps=tuple(world.steps[step] for step in sorted(world.steps)),
        devices=tuple(outcomes[device.name] for device in scenario.devices),
        keeper=outcomes[KEEPER],
        suspected=dict(world.suspicions),
        trace=tuple(world.trace),
    )


@contextmanager
def _silence() -> Iterator[None]:
    """Write no logs of the rehearsed peers."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _visit(world: World, device: Rehearsed, visit: Visit, work: Work, common: SwarmCourse | None) -> Process:
    yield world.env.timeout(visit.begin_s)
    course = common or _course(world, device.name, "trainer")
    peer = RehearsedPeer(world, device, "trainer" if device.samples_per_second else "auxiliary", work, course)
    process = _start(world, peer)
    if visit.end_s is not None:
        yield world.env.timeout(visit.end_s - world.env.now)
        if visit.ends == "leaves":
            peer.leave()
        elif process.is_alive:
            process.interrupt("its device has died")


def _keep(world: World, keeper: Rehearsed, work: Work) -> Process:
    """Run the keeper, except while its process is killed."""
    peer = RehearsedPeer(world, keeper, "keeper", work, _course(world, KEEPER, "keeper"))
    process = _start(world, peer)
    for mishap in sorted(world.scenario.mishaps, key=lambda each: each.begin_s):
        if mishap.kind == "keeper" and mishap.begin_s >= world.env.now:
            yield world.env.timeout(mishap.begin_s - world.env.now)
            process.interrupt("the keeper was killed")
            yield world.env.timeout(mishap.end_s - world.env.now)
            era = peer.state.era
            peer = RehearsedPeer(world, keeper, "keeper", work, _course(world, KEEPER, "keeper"))
            peer.resume(era)
            process = _start(world, peer)


def _course(world: World, name: str, role: str) -> SwarmCourse:
    return SwarmCourse.of(world.config, name, role, world.suspicions_of(name))


def _start(world: World, peer: RehearsedPeer) -> simpy.Process:
    world.arrived(peer)
    return world.env.process(world.troubles.held(peer.name, process_of(peer.run())))
