"""The active faults of a rehearsal: stopped, disconnected, delayed or dishonest devices."""

from __future__ import annotations

from collections.abc import Collection, Generator
from typing import Any

import simpy

from peer.rehearsal.scenario import KEEPER, Mishap, Scenario
from peer.transport.lines import Lines

Process = Generator[simpy.Event, Any, Any]
LIES_TIMES = 50  # factor by which a lying device exaggerates its samples


class Troubles:
    """All faults of a scenario except the keeper's crashes."""

    def __init__(self, env: simpy.Environment, lines: Lines, scenario: Scenario) -> None:
        self._env, self._lines, self._scenario = env, lines, scenario
        devices = {device.name: device.line for device in scenario.devices} | {KEEPER: scenario.keeper}
        self._home_lines = devices
        self._running: list[Mishap] = []
        self._thaws: dict[str, simpy.Event] = {}  # stopped device -> event that succeeds when it resumes
        self._may_stop = {mishap.who for mishap in scenario.mishaps if mishap.kind == "stop"}
        self.changed = env.event()  # succeeds when a fault begins or ends

    def happen(self) -> None:
        """Schedule all faults."""
        for mishap in self._scenario.mishaps:
            if mishap.kind != "keeper":
                self._env.process(self._happen(mishap))

    @property
    def has_sides(self) -> bool:
        """Whether the scenario has partitions, in which devices see different records."""
        return any(mishap.kind == "partition" for mishap in self._scenario.mishaps)

    def is_cut_off(self, name: str) -> bool:
        """Return whether this device can neither send nor receive."""
        return name in self._thaws or any(each.kind == "line" and not each.factor for each in self._of(name))

    def are_apart(self, one: str, another: str) -> bool:
        """Return whether two devices are on different sides of a partition."""
        return self.side_of(one) != self.side_of(another)

    def side_of(self, name: str) -> tuple[bool, ...]:
        """Return the device's side in each active partition."""
        return tuple(name in each.side for each in self._running if each.kind == "partition")

    def beyond(self, name: str) -> frozenset[str]:
        """Return the devices on other sides of the active partitions."""
        if not any(each.kind == "partition" for each in self._running):
            return frozenset()
        return frozenset(other for other in self._home_lines if self.are_apart(name, other))

    def delay_s(self, name: str) -> float:
        """Return the additional delay, in seconds, of a device's records."""
        return sum(each.delay_s for each in self._of(name))

    def lies(self, name: str, *lies: str) -> bool:
        """Return whether any of these kinds of dishonesty is active for a device."""
        return any(each.lie in lies for each in self._of(name))

    def named_by(self, name: str, samples: int, *lies: str) -> int:
        """Return the claimed number of samples, which is too high while one of `lies` is active."""
        return samples * LIES_TIMES if self.lies(name, *lies) else samples

    def held(self, name: str, process: Process) -> Process:
        """Run a device's process, which is suspended while the device is stopped."""
        return self._held(name, process) if name in self._may_stop else process

    def _held(self, name: str, process: Process) -> Process:
        outcome, interrupt = None, None
        while True:
            try:
                event = process.send(outcome) if interrupt is None else process.throw(interrupt)
            except StopIteration as end:
                return end.value
            outcome = interrupt = None
            try:
                outcome = yield event
                while name in self._thaws:
                    yield self._thaws[name]
            except simpy.Interrupt as error:
                interrupt = error

    def _of(self, name: str) -> Collection[Mishap]:
        return [each for each in self._running if each.who == name]

    def _happen(self, mishap: Mishap) -> Process:
        yield self._env.timeout(mishap.begin_s)
        self._running.append(mishap)
        self._take_effect(mishap)
        yield self._env.timeout(mishap.end_s - mishap.begin_s)
        self._running.remove(mishap)
        self._take_effect(mishap)

    def _take_effect(self, mishap: Mishap) -> None:
        """Apply the active faults to connections and processes."""
        who = mishap.who
        if who is not None and mishap.kind in ("line", "stop"):
            stops = [each for each in self._of(who) if each.kind == "stop"]
            if stops:
                self._thaws.setdefault(who, self._env.event())
            elif who in self._thaws:
                self._thaws.pop(who).succeed()
            factors = [each.factor for each in self._of(who) if each.kind == "line"]
            self._lines.connect(who, self._home_lines[who].at(min([1.0, *factors, *(0.0 for _ in stops)])))
        changed, self.changed = self.changed, self._env.event()
        changed.succeed()
