"""The active faults of a rehearsal: stopped, disconnected, delayed or dishonest devices."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import partial

from peer.rehearsal.scenario import KEEPER, Mishap, Scenario
from peer.rehearsal.waits import Signal, Thaw
from peer.transport.lines import Line
from peer.transport.memory import MemoryNetwork

LIES_TIMES = 50  # factor by which a lying device exaggerates its samples


class Troubles:
    """All faults of a scenario except the keeper's crashes."""

    def __init__(self, network: MemoryNetwork, scenario: Scenario) -> None:
        self._network, self._scenario = network, scenario
        devices = {device.name: device.line for device in scenario.devices} | {KEEPER: scenario.keeper}
        self._home_lines = devices
        self._running: list[Mishap] = []
        self._thaws: dict[str, asyncio.Event] = {}  # stopped device -> event that is set when it resumes
        self._may_stop = {mishap.who for mishap in scenario.mishaps if mishap.kind == "stop"}
        self.changed = Signal()  # tells when a fault begins or ends
        self.has_sides = any(mishap.kind == "partition" for mishap in scenario.mishaps)

    def happen(self) -> None:
        """Schedule all faults."""
        loop = asyncio.get_running_loop()
        for mishap in self._scenario.mishaps:
            if mishap.kind != "keeper":
                loop.call_at(mishap.begin_s, self._begin, mishap)
                loop.call_at(mishap.end_s, self._end, mishap)

    def is_cut_off(self, name: str) -> bool:
        """Return whether this device can neither send nor receive."""
        return name in self._thaws or any(each.kind == "line" and not each.factor for each in self._of(name))

    def are_apart(self, one: str, another: str) -> bool:
        """Return whether two devices are on different sides of a partition."""
        return self._side_of(one) != self._side_of(another)

    def _side_of(self, name: str) -> tuple[bool, ...]:
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

    def thaw_of(self, name: str) -> Thaw | None:
        """Return the look-up of the event that a stopped device waits for; None if it is never stopped."""
        return partial(self._thaws.get, name) if name in self._may_stop else None

    def line_of(self, name: str) -> Line:
        """Return a device's connection with the active faults."""
        stops = (0.0 for each in self._of(name) if each.kind == "stop")
        return self._home_lines[name].at(min([1.0, *self._factors_of(name), *stops]))

    def _factors_of(self, name: str) -> list[float]:
        return [each.factor for each in self._of(name) if each.kind == "line"]

    def _of(self, name: str) -> Collection[Mishap]:
        return [each for each in self._running if each.who == name]

    def _begin(self, mishap: Mishap) -> None:
        self._running.append(mishap)
        self._take_effect(mishap)

    def _end(self, mishap: Mishap) -> None:
        self._running.remove(mishap)
        self._take_effect(mishap)

    def _take_effect(self, mishap: Mishap) -> None:
        """Apply the active faults to connections and tasks."""
        who = mishap.who
        if mishap.kind == "partition":
            sides: dict[tuple[bool, ...], list[str]] = {}
            for name in self._home_lines:
                sides.setdefault(self._side_of(name), []).append(name)
            self._network.part(*(sides.values() if len(sides) > 1 else ()))
        elif who is not None and mishap.kind in ("line", "stop"):
            if any(each.kind == "stop" for each in self._of(who)):
                self._thaws.setdefault(who, asyncio.Event())
            elif who in self._thaws:
                self._thaws.pop(who).set()
            self._network.lines.connect(who, self.line_of(who))
            (self._network.silence if self.is_cut_off(who) else self._network.resume)(who)
        self.changed.tell()
