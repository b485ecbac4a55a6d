"""Troubles of a rehearsal at this moment: who stands still, is cut off, is seen late, or lies."""

from __future__ import annotations

from collections.abc import Collection

import simpy

from peer.rehearsal.lines import Lines, Process
from peer.rehearsal.scenario import KEEPER, Mishap, Scenario

LIES_TIMES = 50  # its samples, in the words of a device that lies about them


class Troubles:
    """All mishaps of a scenario but the keeper's deaths."""

    def __init__(self, env: simpy.Environment, lines: Lines, scenario: Scenario) -> None:
        self._env, self._lines, self._scenario = env, lines, scenario
        devices = {device.name: device.line for device in scenario.devices} | {KEEPER: scenario.keeper}
        self._home_lines = devices
        self._running: list[Mishap] = []
        self._thaws: dict[str, simpy.Event] = {}  # by who stands still
        self._may_stop = {mishap.who for mishap in scenario.mishaps if mishap.kind == "stop"}
        self.changed = env.event()  # succeeds when a mishap begins or ends

    def happen(self) -> None:
        """Let all of them happen in their time."""
        for mishap in self._scenario.mishaps:
            if mishap.kind != "keeper":
                self._env.process(self._happen(mishap))

    @property
    def has_sides(self) -> bool:
        """Whether devices may at some time see different records."""
        return any(mishap.kind == "partition" for mishap in self._scenario.mishaps)

    def is_cut_off(self, name: str) -> bool:
        """Whether nothing comes from this device, or to it."""
        return name in self._thaws or any(each.kind == "line" and not each.factor for each in self._of(name))

    def are_apart(self, one: str, another: str) -> bool:
        """Whether two devices are on different sides of a partition."""
        return self.side_of(one) != self.side_of(another)

    def side_of(self, name: str) -> tuple[bool, ...]:
        """Return the side of a device in each partition of now."""
        return tuple(name in each.side for each in self._running if each.kind == "partition")

    def beyond(self, name: str) -> frozenset[str]:
        """Return the devices on other sides."""
        if not any(each.kind == "partition" for each in self._running):
            return frozenset()
        return frozenset(other for other in self._home_lines if self.are_apart(name, other))

    def delay_s(self, name: str) -> float:
        """Return by how much later than usual a device's records are seen."""
        return sum(each.delay_s for each in self._of(name))

    def lies(self, name: str, *lies: str) -> bool:
        """Return whether a device lies in one of these ways."""
        return any(each.lie in lies for each in self._of(name))

    def named_by(self, name: str, samples: int, *lies: str) -> int:
        """Return the number of samples that a device names, which has so many."""
        return samples * LIES_TIMES if self.lies(name, *lies) else samples

    def held(self, name: str, process: Process) -> Process:
        """Run a device's process, which stands still while the device does."""
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
        """Bring lines and processes into line with the mishaps of now."""
        who = mishap.who
        if who is not None and mishap.kind in ("line", "stop"):
            stops = [each for each in self._of(who) if each.kind == "stop"]
            if stops:
                self._thaws.setdefault(who, self._env.event())
            elif who in self._thaws:
                self._thaws.pop(who).succeed()
            factors = [each.factor for each in self._of(who) if each.kind == "line"]
            self._lines.connect(who, self._home_lines[who], min([1.0, *factors, *(0.0 for _ in stops)]))
        changed, self.changed = self.changed, self._env.event()
        changed.succeed()
