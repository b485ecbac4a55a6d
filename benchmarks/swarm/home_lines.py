"""A swarm on home connections, compared with hivemind: volunteers' contributions, and the share of samples that count.

    python benchmarks/swarm/home_lines.py [--setting stress|homes|room] [--churn] [--seconds 330]
                                    [--systems ours,delayed,hivemind-example] [--logs DIR] [--quick] [--json]

The swarm has five hosts in network namespaces, with links limited by `tc` (network.py): a keeper, a fast volunteer, one
half as fast, and two on home connections whose uplink is a fifth of the downlink, one of them behind a router. The
link rates are realistic and the model is ALBERT-large, both scaled by 1/16. Only the processors are shared.

Computation is simulated: a peer computes a microbatch of a tiny model on few tokens, then sleeps until the samples have
taken the time that the setting defines for the volunteer's device. This machine's speed therefore does not matter.

- stress: the four devices compute a batch in 5 seconds; the slowest link needs 14 seconds for a gradient;
- homes: all four have 10 Mbit/s up and 50 down (also scaled), and compute a batch in 20 seconds;
- room: all four have fast links, and compute a batch in two seconds, starting half a minute after the first joins. The
  many rounds test whether peers present since the first step stay bit-identical (later joiners get 16-bit moments).

`ours` takes exact steps, `delayed` takes steps with `averaging.delay`, and other names set other keys of `averaging`
(`OURS` in homes.py). The first system of `--systems` is compared with each of the others. Our systems are the product's
`Swarm`, `StateTaking` and `train` (home_peer.py), without agents and checkpoints; the keeper runs its loop without a
database. hivemind's systems are `hivemind.Optimizer` as installed (hivemind_peer.py) with the same model, optimizer and
target batch, and an auxiliary peer on the keeper's host. `hivemind-example` has the options and timeouts of hivemind's
ALBERT example, `hivemind-exact` has no delay (`HIVEMIND` in homes.py). A hivemind sample counts if its round averaged
two or more peers, even if the step had several groups or the average lacked parts. If a peer steps on its own gradient
while another volunteer also takes the step, the peer's samples are lost. hivemind's peers start without a download,
because all have the same initial weights; our peers download the keeper's state.

With `--churn` there are six volunteers, and every 15 seconds one leaves or returns. In `room` the first volunteer
stays, so that its parameters can be compared with the keeper's until the end.

Samples count with their weight in the step's average (`weights_in`); the cut part of a member's weight is lost. The
measurement ends with the first step after `--seconds`. A volunteer's time starts when it has the run's state.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks.support.network import why_impossible
from benchmarks.support.reporting import Figure, argument_parser, exit_at_sigterm, report
from benchmarks.support.small_run import SMALL_RUN
from benchmarks.swarm.homes import (
    HOMES,
    POLL_S,
    ROOM,
    SYSTEMS,
    UNLIKE,
    Homes,
    Peer,
    Volunteer,
    systems_of,
)
from peer.config.run import RunConfig
from peer.reporting.messages import LostCause

TARGET_BATCH = 64
TIMEOUT_S, EXPIRATION_S = 60.0, 60.0  # the first is the product's default
ROOM_BEGINS_S = 30.0  # time from the first volunteer's start until all have the initial state
CHURN_EVERY_S = 15.0
STAY_IN_ROOM = 1  # number of volunteers who do not leave
OVERTIME = 0.5  # maximum extra time for the last step, as a share of `--seconds`
CUT = "cut weight"  # cause of loss: sent samples that were not averaged
SETTLE_S = 3.0  # wait for the other peers' reports of the last step


@dataclass
class Outcome:
    """Measurements of a volunteer in one system."""

    seconds_per_sample: float
    joining_s: float = 0.0  # from the volunteer's start until the state was downloaded
    present_s: float = 0.0  # from the end of the download to the end of the measurement
    computed: int = 0
    counted: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    downloads: int = 0
    download_s: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    percent_able: float = 0.0  # this volunteer's percentage of the samples that all could compute
    percent_counted: float = 0.0  # this volunteer's percentage of all counted samples

    @property
    def pending(self) -> int:
        """Return the number of samples that waited for a step at the end."""
        return self.computed - self.counted - self.lost.total()

    @property
    def utilisation(self) -> float:
        """Return the share of the volunteer's time spent on samples that count."""
        return self.counted * self.seconds_per_sample / self.present_s if self.present_s else 0.0


@dataclass
class Result:
    """Measurements of a system in one setting."""

    seconds: float  # from the first volunteer's start to the end of the measurement
    steps: int
    split_steps: int  # number of steps that volunteers took in more than one group
    compared_steps: int  # number of steps after which parameters of two or more peers were compared
    unlike_steps: int  # number of compared steps after which the parameters differed in any bit
    volunteers: dict[str, Outcome]
    processors_percent: float  # CPU load on this machine; near 100, CPUs rather than links limit the figures

    @property
    def counted(self) -> int:
        """Return the number of all volunteers' samples that count."""
        return sum(outcome.counted for outcome in self.volunteers.values())

    @property
    def utilisation(self) -> float:
        """Return the share of all volunteers' time spent on samples that count."""
        present_s = sum(outcome.present_s for outcome in self.volunteers.values())
        useful_s = sum(outcome.counted * outcome.seconds_per_sample for outcome in self.volunteers.values())
        return useful_s / present_s if present_s else 0.0

    @property
    def percent_counted(self) -> float:
        """Return the percentage of samples that count, among samples that count or are lost."""
        judged = sum(outcome.computed - outcome.pending for outcome in self.volunteers.values())
        return 100 * self.counted / judged if judged else 0.0


@dataclass(frozen=True)
class Setting:
    """Volunteers and their speed; the last two take part only with churn, so that enough volunteers remain."""

    volunteers: tuple[Volunteer, ...]
    batch_s: float  # time for all volunteers together to compute a batch
    microbatch: int  # number of samples


SETTINGS = {
    "stress": Setting(UNLIKE, 5.0, 2),
    "homes": Setting(HOMES, 20.0, 1),
    "room": Setting(ROOM, 2.0, 4),
}


@dataclass(frozen=True)
class Case:
    """A case to measure: a key of `SETTINGS`, whether volunteers leave and return, and the duration."""

    setting: str
    churns: bool
    seconds: float

    @property
    def name(self) -> str:
        """Return a short description of the case."""
        return f"{self.setting}, churn" if self.churns else self.setting

    @property
    def volunteers(self) -> tuple[Volunteer, ...]:
        """Return the volunteers that take part in this case."""
        everybody = SETTINGS[self.setting].volunteers
        return everybody if self.churns else everybody[:-2]

    def seconds_per_sample(self) -> dict[Volunteer, float]:
        """Return the seconds per sample on each volunteer's device."""
        all_speed, batch_s = sum(volunteer.speed for volunteer in self.volunteers), SETTINGS[self.setting].batch_s
        return {each: batch_s / TARGET_BATCH * all_speed / each.speed for each in self.volunteers}


Weights = Mapping[
    int, Mapping[str, int]
]  # step -> device's pseudonym in receipts -> its weight in the average, in samples
Events = list[tuple[float, Callable[[], object]]]  # (seconds since the start, action)


def churn(homes: Homes, case: Case) -> Events:
    """Return timed actions: every 15 seconds the next volunteer leaves, or the one that left returns."""
    staying = STAY_IN_ROOM if case.setting == "room" else 0
    turns = (
        action
        for each in itertools.cycle(case.volunteers[staying:])
        for action in (partial(homes.leave, each), partial(homes.start, each))
    )
    times = itertools.takewhile(lambda at: at < case.seconds, itertools.count(4 * CHURN_EVERY_S, CHURN_EVERY_S))
    return list(zip(times, turns, strict=False))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all systems."""
    parser = argument_parser("A swarm on home connections, compared with hivemind.")
    parser.add_argument("--setting", choices=SETTINGS, default="stress", help="the setting (default: %(default)s)")
    parser.add_argument("--churn", action="store_true", help=churn.__doc__)
    parser.add_argument("--seconds", type=float, default=330.0, help="duration per system in seconds")
    parser.add_argument("--systems", type=systems_of, default=SYSTEMS, help=systems_of.__doc__)
    parser.add_argument("--logs", type=Path, help="a directory for the processes' logs")
    options = parser.parse_args(arguments)
    if reason := why_impossible():
        sys.exit(f"Hosts with lines of their own cannot be made here: {reason}. Run this as root, with iproute2.")
    systems = options.systems[:1] if options.quick else options.systems
    case = Case(options.setting, options.churn, 25.0 if options.quick else options.seconds)
    config = configure(options.setting, options.quick)
    results = {system: measure(system, case, config, options.logs) for system in systems}
    report(f"home lines: {' beside '.join(systems)}", figures_of(case.name, results), options.json)


def configure(setting: str, quick: bool) -> RunConfig:
    """Return a run with 1.1 million parameters (`quick`: a fifth), a batch of 64, and defaults otherwise."""
    size = 64 if quick else 256
    raw = RunConfig.from_yaml(SMALL_RUN).model_dump(mode="json")
    raw["model"] |= {"hidden_size": size, "intermediate_size": 4 * size, "num_hidden_layers": 2}
    raw["tokenizer"] |= {"vocab_size": 2000 if quick else 4000}
    raw["data"] |= {"sequence_length": 16, "microbatch_size": SETTINGS[setting].microbatch}
    raw["averaging"] |= {
        "target_batch_size": TARGET_BATCH,
        "averaging_timeout_s": TIMEOUT_S,
        "statistics_expiration_s": EXPIRATION_S,
        "progress_refresh_s": 0.5,
    }
    return RunConfig.from_mapping(raw)


def measure(system: str, case: Case, config: RunConfig, logs: Path | None) -> Result:
    """Run a system in a case, and return the measurements."""
    seconds_per_sample = case.seconds_per_sample()
    with tempfile.TemporaryDirectory() as scratch:
        log_dir = Path(scratch) if logs is None else logs / f"{case.name.replace(', ', '-')}-{system}"
        log_dir.mkdir(parents=True, exist_ok=True)
        begin_after_s = ROOM_BEGINS_S if case.setting == "room" else 0.0
        with Homes(system, config, seconds_per_sample, Path(scratch), log_dir, begin_after_s) as homes:
            began_at = homes.peers[0].began_at
            psutil.cpu_percent()
            ended_at = _run(homes, case, began_at)
            busy = psutil.cpu_percent()
    outcomes, groups = outcomes_at(homes, seconds_per_sample, ended_at), groups_at(homes.peers, ended_at)
    able = sum(outcome.present_s / outcome.seconds_per_sample for outcome in outcomes.values())
    counted = sum(outcome.counted for outcome in outcomes.values())
    for outcome in outcomes.values():
        outcome.percent_able = 100 * outcome.present_s / outcome.seconds_per_sample / able if able else 0.0
        outcome.percent_counted = 100 * outcome.counted / counted if counted else 0.0
    split = sum(len(set(sizes)) > 1 or len(sizes) > max(sizes) for sizes in groups.values())
    compared = states_after_steps([homes.keeper, *homes.peers])
    unlike = sum(len(set(states)) > 1 for states in compared)
    return Result(ended_at - began_at, len(groups), split, len(compared), unlike, outcomes, busy)


def states_after_steps(peers: Sequence[Peer]) -> list[list[str]]:
    """Return each step's parameter digests of peers present since the first step, if there are two or more."""
    digests: dict[int, list[str]] = {}
    for peer in peers:
        if not any(event["step"] for event in peer.events("ready")) and len(peer.events("download")) <= 1:
            for event in peer.events("step"):
                if digest := event.get("digest"):
                    digests.setdefault(event["step"], []).append(digest)
    return [found for found in digests.values() if len(found) > 1]


def outcomes_at(homes: Homes, seconds_per_sample: Mapping[Volunteer, float], ended_at: float) -> dict[str, Outcome]:
    """Return each volunteer's measurements until this time, summed over its processes."""
    groups, weights = groups_at(homes.peers, ended_at), weights_in(homes)
    outcomes = {each.name: Outcome(seconds) for each, seconds in seconds_per_sample.items()}
    for name, outcome in outcomes.items():
        for peer in homes.stays[name]:
            _add_up(peer, outcome, ended_at, groups, weights)
    return outcomes


def weights_in(homes: Homes) -> Weights:
    """Return the weights in each step's average, as recorded by the keeper or by a member that reduced a part."""
    return {
        event["step"]: event["weights"]
        for peer in (*homes.peers, homes.keeper)
        for event in peer.events("step")
        if event.get("weights")
    }


def weighed_samples(peer: Peer, event: Mapping[str, Any], weights: Weights) -> int:
    """Return the number of a peer's samples in a step's average, or all samples if the weights are unknown."""
    samples: int = event["samples"]
    if not samples or event["step"] not in weights:
        return samples
    return min(samples, weights[event["step"]].get(peer.events("ready")[0]["pseudonym"], 0))


def groups_at(peers: Sequence[Peer], ended_at: float) -> dict[int, list[int]]:
    """Return the group sizes reported by the peers that took each step, for steps until this time."""
    groups: dict[int, list[int]] = {}
    for event in (event for peer in peers for event in peer.events("step") if event["at"] <= ended_at):
        groups.setdefault(event["step"], []).append(event["group"])
    return groups


def _run(homes: Homes, case: Case, began_at: float) -> float:
    """Wait for the first step after the case's duration; return the time of the step, or of the timeout."""
    due, events = began_at + case.seconds, churn(homes, case) if case.churns else []
    while (now := time.monotonic()) < due + OVERTIME * case.seconds:
        while events and now - began_at >= events[0][0]:
            events.pop(0)[1]()
        for peer in homes.peers:
            peer.look()
        if any(event["at"] >= due for peer in homes.peers for event in peer.events("step")):
            time.sleep(SETTLE_S)
            now = max(float(event["at"]) for peer in homes.peers for event in peer.events("step"))
            break
        time.sleep(POLL_S)
    return now


def _add_up(
    peer: Peer, outcome: Outcome, ended_at: float, groups: Mapping[int, Sequence[int]], weights: Weights
) -> None:
    """Add one process's measurements until `ended_at`; `groups` has the group sizes reported for each step."""
    if peer.began_at >= ended_at:
        return
    said = [event for event in list(peer.said) if event["at"] <= ended_at]

    def events(kind: str) -> list[dict[str, Any]]:
        return [event for event in said if event["event"] == kind]

    ready, end = events("ready"), min(peer.left_at, ended_at)
    ready_at = min(ready[0]["at"], end) if ready else end
    outcome.joining_s += ready_at - peer.began_at
    outcome.present_s += end - ready_at
    last = said[-1] if said else {}
    computed, counted = last.get("computed", 0), 0
    outcome.sent_bytes, outcome.received_bytes = last.get("sent", 0), last.get("received", 0)  # totals since start
    lost: Counter[str] = Counter()
    for event in events("step"):
        if event["group"] == 1 and len(groups[event["step"]]) > 1:  # the peer wrongly considered itself alone
            lost[LostCause.AVERAGING.value] += event["samples"]
        else:
            weighed = weighed_samples(peer, event, weights)
            counted += weighed
            lost[CUT] += event["samples"] - weighed
    for event in events("lost"):
        lost += Counter(event["by_cause"])
    del lost[LostCause.LEFT.value]
    if peer.left_at < ended_at:
        cause = LostCause.DIED if peer.has_died else LostCause.LEFT
        lost[cause.value] = computed - counted - lost.total()
    for event in events("download"):
        outcome.downloads += 1
        outcome.download_s += event["seconds"]
    outcome.computed += computed
    outcome.counted += counted
    outcome.lost += lost


SWARM_FIGURES: tuple[tuple[str, str, Callable[[Result], float]], ...] = (
    ("steps", "", lambda result: result.steps),
    ("steps of several groups", "", lambda result: result.split_steps),
    ("steps after which peers were compared", "", lambda result: result.compared_steps),
    ("of these, with unlike bits", "", lambda result: result.unlike_steps),
    ("samples counted", "samples/s", lambda result: result.counted / result.seconds),
    ("utilisation", "%", lambda result: 100 * result.utilisation),
    ("batch averaged", "samples", lambda result: result.counted / max(1, result.steps)),
    ("counted, of computed", "%", lambda result: result.percent_counted),
    ("this machine's processors busy", "%", lambda result: result.processors_percent),
)
VOLUNTEER_FIGURES: tuple[tuple[str, str, Callable[[Outcome], float]], ...] = (
    ("computed", "samples", lambda outcome: outcome.computed),
    ("counted", "samples", lambda outcome: outcome.counted),
    ("its part of all that could be computed", "%", lambda outcome: outcome.percent_able),
    ("its part of all counted", "%", lambda outcome: outcome.percent_counted),
    ("pending at the end", "samples", lambda outcome: outcome.pending),
    ("utilisation", "%", lambda outcome: 100 * outcome.utilisation),
    ("until it held the state", "s", lambda outcome: outcome.joining_s),
    ("states downloaded", "", lambda outcome: outcome.downloads),
    ("time spent on them", "s", lambda outcome: outcome.download_s),
    ("sent", "MB", lambda outcome: outcome.sent_bytes / 1e6),
    ("received", "MB", lambda outcome: outcome.received_bytes / 1e6),
)


def figures_of(setting: str, results: dict[str, Result]) -> list[Figure]:
    """Return every figure of the first system, with each other system as the baseline."""
    (_, ours), *others = results.items()
    beside: list[tuple[str, Result | None]] = [*others] or [("", None)]
    return [figure for name, theirs in beside for figure in _beside(setting, ours, name, theirs)]


def _beside(setting: str, ours: Result, name: str, theirs: Result | None) -> list[Figure]:
    def row(text: str, unit: str, value: float, other: float | None) -> Figure:
        return Figure(f"{setting}, {text}", value, unit, other, name)

    rows = [row(f"swarm: {text}", unit, of(ours), of(theirs) if theirs else None) for text, unit, of in SWARM_FIGURES]
    for volunteer, outcome in ours.volunteers.items():
        other = theirs.volunteers[volunteer] if theirs else None
        rows += [
            row(f"{volunteer}: {text}", unit, of(outcome), of(other) if other else None)
            for text, unit, of in VOLUNTEER_FIGURES
        ]
        rows += [
            row(f"{volunteer}: lost, {cause}", "samples", outcome.lost[cause], other.lost[cause] if other else None)
            for cause in sorted(outcome.lost | (other.lost if other else Counter()))
        ]
    return rows


if __name__ == "__main__":
    exit_at_sigterm()
    main()
