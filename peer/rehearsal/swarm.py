"""The rehearsal of one scenario: a whole swarm in virtual time, reproducible from its seed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from peer.config.run import RunConfig
from peer.progress.view import SwarmCourse
from peer.rehearsal.exchange import SharedCourse
from peer.rehearsal.peer import RehearsedPeer, Work
from peer.rehearsal.scenario import KEEPER, Rehearsed, Scenario, Visit
from peer.rehearsal.waits import task_of_device
from peer.rehearsal.world import Happening, RehearsedStep, TakenStep, UndoneSteps, World
from peer.transport.virtual_time import run_virtual

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
    with _silence():
        return run_virtual(_run(config, scenario, seed, shares_course, watch))


async def _run(
    config: RunConfig,
    scenario: Scenario,
    seed: int,
    shares_course: bool | None,
    watch: Callable[[TakenStep | UndoneSteps], None],
) -> RehearsedRun:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(task_of_device)
    faults: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, fault: faults.append(fault))
    world = World(config, scenario, seed, watch)
    keeper = Rehearsed(name=KEEPER, line=scenario.keeper)
    works = {device.name: Work() for device in (keeper, *scenario.devices)}
    for device in (keeper, *scenario.devices):
        world.network.lines.connect(device.name, device.line.at())
    is_large = len(scenario.devices) > OWN_COURSES if shares_course is None else shares_course
    is_shared = is_large and not world.troubles.has_sides
    common = SharedCourse.of(config, "", "trainer", world.suspicions_of("all")) if is_shared else None
    lives = [_keep(world, keeper, works[KEEPER])]
    lives += [
        _visit(world, device, visit, works[device.name], common)
        for device in scenario.devices
        for visit in device.visits
    ]
    tasks = [loop.create_task(life) for life in lives]
    world.troubles.happen()
    await asyncio.sleep(scenario.duration_s)
    for task in filter(asyncio.Task.done, tasks):
        task.result()
    for fault in faults:  # of any other task
        raise RuntimeError(f"The rehearsal failed: {fault['message']}.") from fault.get("exception")
    world.end()
    outcomes = {
        # copied: the peers that are still present are cancelled later, and then lose samples
        device.name: RehearsedDevice(
            device,
            deepcopy(works[device.name]),
            world.network.lines.moved(device.name, "up"),
            world.network.lines.moved(device.name, "down"),
        )
        for device in (keeper, *scenario.devices)
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


async def _visit(world: World, device: Rehearsed, visit: Visit, work: Work, common: SwarmCourse | None) -> None:
    await asyncio.sleep(visit.begin_s)
    course = common or _course(world, device.name, "trainer")
    peer = RehearsedPeer(world, device, "trainer" if device.samples_per_second else "auxiliary", work, course)
    life = _start(world, peer)
    if visit.end_s is not None:
        await asyncio.wait({life}, timeout=visit.end_s - world.now())
        if visit.ends == "leaves":
            peer.leave()
        else:
            peer.die()


async def _keep(world: World, keeper: Rehearsed, work: Work) -> None:
    """Run the keeper, except while its process is killed."""
    peer = RehearsedPeer(world, keeper, "keeper", work, _course(world, KEEPER, "keeper"))
    life = _start(world, peer)
    for mishap in sorted(world.scenario.mishaps, key=lambda each: each.begin_s):
        if mishap.kind == "keeper" and mishap.begin_s >= world.now():
            await asyncio.wait({life}, timeout=mishap.begin_s - world.now())
            peer.die()
            await asyncio.sleep(mishap.end_s - world.now())
            era = peer.state.era
            peer = RehearsedPeer(world, keeper, "keeper", work, _course(world, KEEPER, "keeper"))
            peer.resume(era)
            life = _start(world, peer)


def _course(world: World, name: str, role: str) -> SwarmCourse:
    return SwarmCourse.of(world.config, name, role, world.suspicions_of(name))


def _start(world: World, peer: RehearsedPeer) -> asyncio.Task[None]:
    world.arrived(peer)
    return peer.waits.spawn(peer.run())
