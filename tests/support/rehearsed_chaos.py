"""Chaos in virtual time: scenarios drawn from a seed, the rules that must hold in them, and a failing one made smaller.

Devices die, leave, come back, stand still, are cut off, are seen late and lie; the keeper is killed; lines are slow or
dead. All is healed at `HEALED_S`, so that recovery can be demanded of the rest.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from peer.averaging.requirements import LEAST_FILLED
from peer.config.run import RunConfig
from peer.node.quorum import Quorum
from peer.rehearsal.scenario import KEEPER, HomeLine, Mishap, Rehearsed, Scenario, Visit
from peer.rehearsal.swarm import RehearsedRun, rehearse
from peer.rehearsal.world import TakenStep, UndoneSteps
from tests.support.rehearsed_ledger import RehearsedLedger
from tests.support.tiny_albert import tiny_config

BEGIN_S, HEALED_S, RECOVERED_S, END_S = 45.0, 200.0, 340.0, 410.0
TARGET = 64
EXPIRATION_S = 30.0
NAMES = "abcdefgh"
TOLD_LINES = 30  # of a failing scenario's trace
UNSEEN_S = 3.0  # after which a peer has looked at the records, and sees who was parted from it
LAST_ROUND_S = 20.0  # in which a round ends that had begun before the keeper was back
SLOW_SHARE = 0.15  # of the devices, whose microbatches take as long as a step
LIES = ("claims", "weight", "leaves", "withholds", "leads")


def chaos_config(*, delay: bool = False) -> RunConfig:
    """A run with steps of some ten seconds, whose keeper writes a checkpoint every third."""
    raw = tiny_config().model_dump(mode="json")
    raw["averaging"] |= {
        "target_batch_size": TARGET,
        "statistics_expiration_s": EXPIRATION_S,
        "averaging_timeout_s": 30.0,
        "progress_refresh_s": 1.0,
        "delay": delay,
    }
    raw["data"]["microbatch_size"] = 4
    raw["checkpoints"]["every_steps"] = 3
    return RunConfig.from_mapping(raw)


def draw_chaos(seed: int) -> Scenario:
    """Draw a scenario of three to eight devices, and of two to five mishaps of all kinds."""
    chance = random.Random(seed)
    names = NAMES[: chance.randint(3, 8)]
    devices = [_device(chance, name) for name in names]
    usual = {"is_reachable": True, "visits": (Visit(),), "samples_per_second": max(1.0, devices[0].samples_per_second)}
    devices[0] = devices[0].model_copy(update=usual)
    mishaps = [_mishap(chance, names) for _ in range(chance.randint(2, 5))]
    liars = {mishap.who for mishap in mishaps if mishap.kind == "lies"}
    allowed = set(sorted(filter(None, liars))[: len(names) >= 4])
    kept = [mishap for mishap in mishaps if mishap.kind != "lies" or mishap.who in allowed]
    keepers = [mishap for mishap in kept if mishap.kind == "keeper"]
    kept = [mishap for mishap in kept if mishap not in keepers[1:]]
    return Scenario(duration_s=END_S, parameters=500_000, start_s=10.0, devices=tuple(devices), mishaps=tuple(kept))


def _device(chance: random.Random, name: str) -> Rehearsed:
    line = HomeLine(
        up_mbit_per_second=round(chance.uniform(5, 40), 1),
        down_mbit_per_second=round(chance.uniform(20, 100), 1),
        latency_s=round(chance.uniform(0.005, 0.1), 3),
    )
    return Rehearsed(
        name=name,
        line=line,
        is_reachable=chance.random() < 0.7,
        samples_per_second=round(chance.uniform(1.0, 4.0) / (10 if chance.random() < SLOW_SHARE else 1), 2),
        visits=_visits(chance),
    )


def _visits(chance: random.Random) -> tuple[Visit, ...]:
    begin = round(chance.uniform(0, 10), 1)
    draw = chance.random()
    if draw < 0.6:
        return (Visit(begin_s=begin),)
    if draw < 0.7:
        return (Visit(begin_s=round(chance.uniform(20, HEALED_S), 1)),)
    end = round(chance.uniform(BEGIN_S, HEALED_S - 30), 1)
    first = Visit(begin_s=begin, end_s=end, ends=chance.choice(("leaves", "dies")))
    if draw < 0.85:
        return (first,)
    return first, Visit(begin_s=round(chance.uniform(end + 1, HEALED_S), 1))


def _mishap(chance: random.Random, names: str) -> Mishap:
    kind = chance.choice(("line", "keeper", "stop", "stop", "partition", "records", "lies"))
    begin = round(chance.uniform(BEGIN_S, HEALED_S - 20), 1)
    end = round(min(HEALED_S, begin + chance.uniform(5, 100)), 1)
    times = {"kind": kind, "begin_s": begin, "end_s": end}
    everybody = [*names, KEEPER]
    if kind == "line":
        factor = chance.choice((0.0, 0.0, 0.05, 0.3))
        return Mishap(**times, who=chance.choice(everybody), factor=factor)
    if kind == "stop":
        return Mishap(**times, who=chance.choice(everybody))
    if kind == "records":
        return Mishap(**times, who=chance.choice(everybody), delay_s=round(chance.uniform(1, 20), 1))
    if kind == "lies":
        return Mishap(**times, who=chance.choice(names), lie=chance.choice(LIES))
    if kind == "partition":
        return Mishap(**times, side=tuple(sorted(chance.sample(everybody, chance.randint(1, len(names))))))
    return Mishap(**times)


# the rules


class Broken(NamedTuple):
    """A rule that did not hold, and what shows it."""

    rule: str
    found: str


@dataclass
class Audit:
    """All that a rehearsal tells while it goes on, and what was found wrong."""

    config: RunConfig
    scenario: Scenario
    ledger: RehearsedLedger = field(init=False)
    taken: list[TakenStep] = field(default_factory=list)
    undone: list[UndoneSteps] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = RehearsedLedger(self.config, [device.name for device in self.scenario.devices])

    def __call__(self, event: TakenStep | UndoneSteps) -> None:
        """Take in a step, or a return to a checkpoint."""
        if isinstance(event, UndoneSteps):
            self.undone.append(event)
            self.ledger.roll_back(event.after_step, event.era)
            return
        self.taken.append(event)
        self.ledger.take(event)
        for rule in AFTER_EACH_STEP:
            self.broken += [Broken(str(rule.__doc__), found) for found in rule(self, event)]

    @property
    def liars(self) -> set[str]:
        """Devices that lie at some time."""
        return {mishap.who for mishap in self.scenario.mishaps if mishap.kind == "lies" and mishap.who}

    def away_s(self, voter: str, name: str, met_s: float, at_s: float) -> float:
        """Return for how long `name` had not been able to see a voter at this time; infinite if that has left."""
        outages = [
            (mishap.begin_s, mishap.end_s)
            for mishap in self.scenario.mishaps
            if _parts(mishap, name, voter)
            or (mishap.kind == "keeper" and voter == KEEPER)
            or (mishap.kind == "stop" and mishap.who == voter)
        ]
        for device in self.scenario.devices:
            for visit in device.visits if device.name == voter else ():
                ends_s = visit.end_s or math.inf
                has_left = visit.begin_s < met_s and ends_s <= at_s and visit.ends == "leaves"
                if has_left or met_s < visit.begin_s <= at_s:  # it has said so, or returned without the state
                    return math.inf
                outages.append((ends_s, math.inf))
        since_s = at_s
        for begin_s, end_s in sorted(outages, key=lambda outage: outage[1], reverse=True):
            if begin_s <= since_s <= end_s + LAST_ROUND_S:
                since_s = begin_s
        return at_s - since_s

    def were_apart(self, one: TakenStep, another: TakenStep) -> bool:
        """Whether peers of two groups were on different sides when one of them took its step."""
        first_s, last_s = sorted((one.at_s, another.at_s))
        return any(
            any(_parts(mishap, ours, theirs) for ours in one.group.peers for theirs in another.group.peers)
            and mishap.begin_s <= last_s
            and first_s <= mishap.end_s + LAST_ROUND_S
            for mishap in self.scenario.mishaps
        )

    def was_alone(self, taken: TakenStep) -> bool:
        """Whether a peer took a step by itself while each other device was away, stood still or was on another side."""
        return len(taken.group.peers) == 1 and not any(
            self._is_in_sight(device, taken) for device in self.scenario.devices if device.name != taken.name
        )

    def _is_in_sight(self, device: Rehearsed, taken: TakenStep) -> bool:
        steps_at_s = [other.at_s for other in self.taken if other.name == device.name and other.at_s <= taken.at_s]
        is_there = any(  # and has taken a step since: one that still looks for a donor of the state does not train
            visit.begin_s + self.scenario.start_s <= max(steps_at_s, default=-1.0)
            and taken.at_s <= (visit.end_s or END_S)
            for visit in device.visits
        )
        return is_there and not any(
            mishap.begin_s <= taken.at_s <= mishap.end_s + UNSEEN_S
            and (_parts(mishap, device.name, taken.name) or (mishap.kind == "stop" and mishap.who == device.name))
            for mishap in self.scenario.mishaps
        )


def _parts(mishap: Mishap, one: str, another: str) -> bool:
    return mishap.kind == "partition" and (one in mishap.side) != (another in mishap.side)


def one_average_for_one_step(audit: Audit, taken: TakenStep) -> Iterator[str]:
    """Peers take a step of one era from one average, but for sides of a partition and lone peers."""
    for other in audit.taken[:-1]:
        is_same_step = (other.era, other.step) == (taken.era, taken.step)
        if not is_same_step or other.group.number == taken.group.number:
            continue
        if not (audit.were_apart(taken, other) or audit.was_alone(taken) or audit.was_alone(other)):
            yield f"step {taken.step}: by {other.name} at {other.at_s:.1f} s, by {taken.name} at {taken.at_s:.1f} s"
            return


def most_who_took_the_last_step_take_the_next(audit: Audit, taken: TakenStep) -> Iterator[str]:
    """A group has most of the peers that took the last step; with the keeper, most of those lately in sight."""
    last = [other for other in audit.taken if (other.era, other.step) == (taken.era, taken.step - 1)]
    at_s = taken.group.ended_at  # a peer that stands still takes the step later
    for group in {other.group.number: other.group for other in last}.values():
        away_s = {
            voter: audit.away_s(voter, taken.name, group.ended_at - group.seconds, at_s)
            for voter in group.peers - taken.group.peers
        }
        quorum = Quorum(
            frozenset(voter for voter in group.peers if away_s.get(voter, 0.0) < math.inf),
            frozenset(voter for voter, seconds in away_s.items() if seconds >= EXPIRATION_S),
            frozenset({KEEPER}),
        )
        if quorum.is_in(taken.group.peers):
            return
    if last:
        yield f"step {taken.step} at {taken.at_s:.1f} s by {','.join(sorted(taken.group.peers))}"


def the_batch_is_full(audit: Audit, taken: TakenStep) -> Iterator[str]:
    """No step is taken from far fewer samples than the run's batch."""
    if taken.group.samples < LEAST_FILLED * audit.config.averaging.target_batch_size:
        yield f"step {taken.step} of {taken.group.samples} samples"


AFTER_EACH_STEP: tuple[Callable[[Audit, TakenStep], Iterator[str]], ...] = (
    one_average_for_one_step,
    most_who_took_the_last_step_take_the_next,
    the_batch_is_full,
)


def one_average_counts(audit: Audit, run: RehearsedRun) -> Iterator[str]:
    """Where peers took a step from different averages, as the sides of a partition may, the samples of one count."""
    for step, averages in audit.ledger.counted_averages().items():
        if len(averages) > 1:
            yield f"step {step}: {averages}"


def nothing_counts_twice(audit: Audit, run: RehearsedRun) -> Iterator[str]:
    """A device's counted samples are no more than it brought to steps, and none that it brought was lost as well."""
    counted = audit.ledger.counted_by_device()
    for each in run.devices:
        name, work = each.device.name, each.work
        if counted[name] > work.counted and name not in audit.liars:
            yield f"{name} brought {work.counted}, and {counted[name]} count"
        if work.counted + work.lost.total() > work.computed:
            yield f"{name} computed {work.computed}, brought {work.counted} and lost {work.lost.total()}"


def steps_have_no_gaps(audit: Audit, run: RehearsedRun) -> Iterator[str]:
    """The ledger has every step from the first to the last that a device took."""
    of_devices = {taken.step for taken in audit.taken if taken.name != KEEPER}
    if missing := sorted({step.step for step in run.steps} & of_devices - audit.ledger.counting_steps()):
        yield f"missing: {missing}"


def honest_peers_are_not_named(audit: Audit, run: RehearsedRun) -> Iterator[str]:
    """Nobody is suspected but devices that lie."""
    for (who, what), times in run.suspected.items():
        if who not in audit.liars:
            yield f"{who} of {what}, {times} times"


def all_come_to_one_state(audit: Audit, run: RehearsedRun) -> Iterator[str]:
    """Once all is healed, peers take each step from one average."""
    late: dict[tuple[int, int], dict[int, str]] = {}
    for taken in audit.taken:
        if taken.at_s > RECOVERED_S:
            late.setdefault((taken.era, taken.step), {})[taken.state] = taken.name
    for position, states in late.items():
        if len(states) > 1:
            yield f"step {position}: {states}"


def the_run_recovers(audit: Audit, run: RehearsedRun) -> Iterator[str]:
    """Once all is healed, steps follow one another again."""
    usual_s = TARGET / _rate_at_the_end(audit) + 15
    times = [RECOVERED_S, *sorted({taken.at_s for taken in audit.taken if taken.at_s > RECOVERED_S}), END_S]
    longest_s = max(later - sooner for sooner, later in pairwise(times))
    if longest_s > 2 * usual_s:
        yield f"no step for {longest_s:.0f} s, where one takes some {usual_s:.0f} s"


def everybody_contributes(audit: Audit, run: RehearsedRun) -> Iterator[str]:
    """Once all is healed, each honest device that computes a sample within two batches brings samples to steps."""
    brought = Counter(taken.name for taken in audit.taken if taken.at_s > RECOVERED_S and taken.samples)
    batches_s = 2 * TARGET / _rate_at_the_end(audit)
    for device in audit.scenario.devices:
        stays = device.visits[-1].end_s is None and (device.samples_per_second or 0.0) * batches_s >= 1
        if stays and device.name not in audit.liars and not brought[device.name]:
            yield f"{device.name} brought nothing"


AT_THE_END: tuple[Callable[[Audit, RehearsedRun], Iterator[str]], ...] = (
    one_average_counts,
    nothing_counts_twice,
    steps_have_no_gaps,
    honest_peers_are_not_named,
    all_come_to_one_state,
    the_run_recovers,
    everybody_contributes,
)


def _rate_at_the_end(audit: Audit) -> float:
    return sum(
        device.samples_per_second or 0.0
        for device in audit.scenario.devices
        if device.visits[-1].end_s is None and device.name not in audit.liars
    )


@dataclass(frozen=True)
class Outcome:
    """A rehearsal of chaos, and the rules that it broke."""

    scenario: Scenario
    seed: int
    run: RehearsedRun
    audit: Audit

    @property
    def story(self) -> str:
        """The scenario, the rules that it broke, and the last lines of its trace."""
        broken = [f"{rule} {found}" for rule, found in self.audit.broken]
        lines = [f"seed {self.seed}", *broken, *_told(self.scenario), "...", *map(str, self.run.trace[-TOLD_LINES:])]
        return "\n".join(lines)


def _told(scenario: Scenario) -> Iterator[str]:
    for part in (*scenario.devices, *scenario.mishaps):
        yield part.model_dump_json(exclude_defaults=True)


def run_chaos(scenario: Scenario, seed: int) -> Outcome:
    """Rehearse a scenario, with delayed steps for every other seed, and hold it to all rules."""
    config = chaos_config(delay=seed % 2 == 1)
    audit = Audit(config, scenario)
    run = rehearse(config, scenario, seed, watch=audit)
    audit.ledger.settle(run.duration_s)
    for rule in AT_THE_END:
        audit.broken += [Broken(str(rule.__doc__), found) for found in rule(audit, run)]
    return Outcome(scenario, seed, run, audit)


def shrunk(failing: Outcome) -> Outcome:
    """Leave out mishaps and devices, one after another, as long as the same rule is broken."""
    smallest, rule = failing, failing.audit.broken[0].rule
    while smaller := next(
        (each for each in _smaller(smallest) if any(broken.rule == rule for broken in each.audit.broken)), None
    ):
        smallest = smaller
    return smallest


def _smaller(outcome: Outcome) -> Iterator[Outcome]:
    scenario = outcome.scenario
    for mishap in scenario.mishaps:
        rest = tuple(each for each in scenario.mishaps if each != mishap)
        yield run_chaos(scenario.model_copy(update={"mishaps": rest}), outcome.seed)
    named = {name for mishap in scenario.mishaps for name in mishap.names}
    for device in scenario.devices[1:]:
        if device.name not in named and len(scenario.devices) > 2:
            rest = tuple(each for each in scenario.devices if each != device)
            yield run_chaos(scenario.model_copy(update={"devices": rest}), outcome.seed)
    for device in scenario.devices:
        if device.visits != (Visit(),):
            still = device.model_copy(update={"visits": (Visit(),)})
            rest = tuple(still if each == device else each for each in scenario.devices)
            yield run_chaos(scenario.model_copy(update={"devices": rest}), outcome.seed)
