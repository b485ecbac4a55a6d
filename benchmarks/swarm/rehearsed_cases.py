"""The swarms that rehearsal.py measures and predicts: small real ones, on lines scaled by 1/16 as in home_lines.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.support.network import HostPlan
from benchmarks.swarm.home_lines import MATCHMAKING_S, TARGET_BATCH, configure, values_of
from benchmarks.swarm.homes import JOIN_EVERY_S, KEEPER, TWO_MORE, VOLUNTEERS, Volunteer
from peer.config.run import RunConfig
from peer.rehearsal.scenario import HomeLine, Mishap, Rehearsed, Scenario, Visit

MOST_BY_DEFAULT = 8  # peers
SEQUENCE_LENGTH = 64  # tokens; few of them, or a head for the sentence order, and noise varies so much that a round of
# these small batches cuts an honest peer's weight
START_S = 1.4  # of a process that is forked from one that has imported everything
Absences = dict[str, tuple[float, float]]  # volunteer -> when it leaves and when it is back, as parts of the time


@dataclass(frozen=True)
class RehearsedCase:
    """A swarm, in a few words."""

    volunteers: tuple[Volunteer, ...]
    batch_s: float  # to compute it, by all volunteers at once
    is_small: bool = True  # the model: 0.2 million values, else 1.1 million
    seconds: float = 180.0
    absences: Absences = field(default_factory=dict)
    ends: Literal["leaves", "dies"] = "leaves"  # how
    drop: tuple[str, float, float, float] | None = None  # whose line, from when to when, what is left of it

    def config(self) -> RunConfig:
        """Return the run's configuration."""
        raw = configure("ordinary", MATCHMAKING_S, self.is_small).model_dump(mode="json")
        raw["data"]["sequence_length"] = SEQUENCE_LENGTH
        raw["objective"] = {"name": "mlm"}
        return RunConfig.from_mapping(raw)

    def scenario(self, seconds: float | None = None) -> Scenario:
        """Return what a rehearsal takes, for so many seconds."""
        duration_s = seconds or self.seconds
        all_speed = sum(volunteer.speed for volunteer in self.volunteers)
        devices = [
            Rehearsed(
                name=each.name,
                line=line_of(each.line),
                is_reachable=each.line.place == "open",
                samples_per_second=TARGET_BATCH * each.speed / all_speed / self.batch_s,
                visits=tuple(self._visits(each.name, number * JOIN_EVERY_S, duration_s)),
            )
            for number, each in enumerate(self.volunteers)
        ]
        return Scenario(
            duration_s=duration_s,
            parameters=values_of(self.config()),
            start_s=START_S,
            has_checkpoints=False,
            keeper=line_of(KEEPER),
            devices=tuple(devices),
            mishaps=tuple(self._mishaps(duration_s)),
        )

    def _visits(self, name: str, begin_s: float, duration_s: float) -> Iterator[Visit]:
        if name not in self.absences:
            yield Visit(begin_s=begin_s)
            return
        leaves, returns = self.absences[name]
        yield Visit(begin_s=begin_s, end_s=leaves * duration_s, ends=self.ends)
        yield Visit(begin_s=returns * duration_s)

    def _mishaps(self, duration_s: float) -> Iterator[Mishap]:
        if self.drop is not None:
            who, begin, end, factor = self.drop
            yield Mishap(kind="line", who=who, begin_s=begin * duration_s, end_s=end * duration_s, factor=factor)


def line_of(plan: HostPlan) -> HomeLine:
    """Return a host's line; hosts on one machine are no distance apart."""
    down = plan.down_mbit_per_second or plan.mbit_per_second
    return HomeLine(up_mbit_per_second=plan.mbit_per_second, down_mbit_per_second=down, latency_s=0.0)


def even(peers: int, mbit_per_second: float) -> tuple[Volunteer, ...]:
    """Return equal volunteers."""
    return tuple(Volunteer(HostPlan(f"even-{number}", mbit_per_second), 1) for number in range(1, peers + 1))


def homes(speeds: Sequence[float]) -> tuple[Volunteer, ...]:
    """Return volunteers on home lines of 10 up and 50 down, scaled; the last stands behind a router."""
    up, down = 10 / 16, 50 / 16
    lines = [HostPlan(f"home-{number}", up, down_mbit_per_second=down) for number in range(1, len(speeds))]
    lines.append(HostPlan(f"home-{len(speeds)}", up, "nat", down_mbit_per_second=down))
    return tuple(Volunteer(line, speed) for line, speed in zip(lines, speeds, strict=True))


FAST = tuple(Volunteer(HostPlan(f"fast-{number}", 12.5), 3) for number in (1, 2))
MIDDLE = tuple(Volunteer(HostPlan(f"middle-{number}", 6.25), 2) for number in (1, 2))

CASES = {
    "even-2-compute": RehearsedCase(even(2, 6.25), 12, is_small=False, seconds=160),
    "mixed-4-line": RehearsedCase(VOLUNTEERS, 5, is_small=False, seconds=220),
    "even-8-compute": RehearsedCase(even(8, 6.25), 12, seconds=180),
    "mixed-6-churn": RehearsedCase(
        VOLUNTEERS + TWO_MORE, 8, seconds=220, absences={"middle": (0.35, 0.5), "fast": (0.6, 0.8)}
    ),
    "mixed-8-line": RehearsedCase(FAST + MIDDLE + homes((1.5, 1.5, 1, 1)), 4, seconds=200),
    "mixed-4-drop": RehearsedCase(VOLUNTEERS, 8, seconds=220, drop=("middle", 0.4, 0.7, 0.05)),
    "mixed-4-compute": RehearsedCase(VOLUNTEERS, 14, seconds=200),
    "even-4-line": RehearsedCase(even(4, 2.5), 3, is_small=False, seconds=200),
    "homes-6-line": RehearsedCase(homes((2, 2, 1.5, 1.5, 1, 1)), 5, seconds=200),
    "even-2-line": RehearsedCase(even(2, 2.5), 3, is_small=False, seconds=160),
    "mixed-8-compute": RehearsedCase(FAST + MIDDLE + homes((1.5, 1.5, 1, 1)), 20, seconds=220),
    "even-6-death": RehearsedCase(even(6, 6.25), 10, seconds=220, absences={"even-3": (0.4, 0.7)}, ends="dies"),
    "even-16-compute": RehearsedCase(even(16, 6.25), 16, seconds=220),
    "quick": RehearsedCase(even(2, 6.25), 3, seconds=35),
}
QUICK = "quick"
DEFAULT = [name for name, case in CASES.items() if len(case.volunteers) <= MOST_BY_DEFAULT and name != QUICK]
