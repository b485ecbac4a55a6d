"""Swarms of growing size, compared with hivemind: peers per step, step delay, traffic, processor time and memory.

    python -m benchmarks.swarm.scale [--sizes 5,10,20,30] [--seconds 60] [--systems ours,hivemind-example]
                                     [--logs DIR] [--quick] [--json]

`--sizes` gives the numbers of volunteers, in addition to the keeper (for hivemind: an auxiliary peer). Each has a host
in a network namespace (network.py), with a link much faster than the tiny model needs. The peers are the same as in
home_lines.py, with all of their processes and simulated computation. All peers together compute a batch in 10 seconds,
so the figures depend on the protocol and on this machine's processors, which all peers share.

The measurement starts when the last volunteer has the run's state, and lasts `--seconds`.

- A step's peers are its largest group, including the keeper.
- A batch is full when the samples computed by volunteers since the previous step, excluding lost ones, reach the
  target. The delay lasts from that moment until the last participating peer has taken the step.
- DHT bytes include calls and responses; line bytes include all traffic. Both are for one direction, averaged over
  volunteers; on average a volunteer receives as much as it sends.
- Processor time and memory include all of a volunteer's processes; shared pages are divided among them (PSS).
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.support.network import HostPlan, why_impossible
from benchmarks.support.reporting import Figure, argument_parser, exit_at_sigterm, report
from benchmarks.support.small_run import SMALL_RUN
from benchmarks.swarm.home_peer import DhtCalls
from benchmarks.swarm.homes import POLL_S, SYSTEMS, Homes, Peer, Volunteer, systems_of
from peer.config.run import RunConfig

SIZES = "5,10,20,30"
SAMPLES_EACH = 4  # number of samples in a batch per volunteer
BATCH_S = 10.0  # time to compute a batch
LINE_MBIT = 100.0
TIMEOUT_S, EXPIRATION_S = 60.0, 60.0  # same timeouts as in home_lines.py
READY_S = 600.0  # maximum wait for the last volunteer
MIB = 2**20


@dataclass(frozen=True)
class Step:
    """A step taken during the measurement."""

    group: int  # number of peers in the largest group
    followers: int  # number of volunteers that took the step
    delay_s: float  # from the full batch until the last volunteer took the step


@dataclass(frozen=True)
class Use:
    """Use of network, processors and memory, averaged over volunteers."""

    line_kb_per_s: float  # rate in one direction
    busiest_kb_per_s: float  # rate of the volunteer that sent most
    dht_kb_per_s: dict[str, float]  # rate by kind of call
    processor_share: float  # share of a core
    mib: float


@dataclass(frozen=True)
class Result:
    """Measurements of a system at one size."""

    volunteers: int
    ready_s: float  # from the first volunteer's start until the last had the state
    steps: list[Step]
    downloads: int  # number of whole-state downloads after joining
    use: Use
    processors_percent: float  # CPU load on this machine


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all systems at each size."""
    parser = argument_parser("Swarms of growing size, compared with hivemind.")
    parser.add_argument("--sizes", default=SIZES, help="numbers of volunteers, separated by commas")
    parser.add_argument("--seconds", type=float, default=60.0, help="duration per system and size in seconds")
    parser.add_argument("--systems", type=systems_of, default=SYSTEMS, help=systems_of.__doc__)
    parser.add_argument("--logs", type=Path, help="a directory for the processes' logs")
    options = parser.parse_args(arguments)
    if reason := why_impossible():
        sys.exit(f"Hosts with lines of their own cannot be made here: {reason}. Run this as root, with iproute2.")
    sizes, systems, seconds = [int(size) for size in options.sizes.split(",")], options.systems, options.seconds
    if options.quick:
        sizes, systems, seconds = [2], systems[:1], 15.0
    figures = []
    for size in sizes:
        results = {system: measure(system, size, seconds, options.logs) for system in systems}
        figures += figures_of(results)
    report(f"a swarm that grows: {' beside '.join(systems)}", figures, options.json)


def configure(volunteers: int) -> RunConfig:
    """Return a run with a tiny model, a few samples per volunteer and batch, and defaults otherwise."""
    raw = RunConfig.from_yaml(SMALL_RUN).model_dump(mode="json")
    raw["model"] |= {"embedding_size": 16, "hidden_size": 16, "intermediate_size": 64, "num_hidden_layers": 1}
    raw["tokenizer"] |= {"vocab_size": 500}
    raw["data"] |= {"sequence_length": 16, "microbatch_size": 1}
    raw["averaging"] |= {
        "target_batch_size": SAMPLES_EACH * volunteers,
        "averaging_timeout_s": TIMEOUT_S,
        "statistics_expiration_s": EXPIRATION_S,
        "progress_refresh_s": 0.5,
    }
    return RunConfig.from_mapping(raw)


def measure(system: str, volunteers: int, seconds: float, logs: Path | None) -> Result:
    """Run a system at one size, and return the measurements."""
    speeds = {Volunteer(HostPlan(f"v{number}", LINE_MBIT), 1.0): BATCH_S / SAMPLES_EACH for number in range(volunteers)}
    config = configure(volunteers)
    with tempfile.TemporaryDirectory() as scratch:
        log_dir = Path(scratch) if logs is None else logs / f"{system}-{volunteers}"
        log_dir.mkdir(parents=True, exist_ok=True)
        with Homes(system, config, speeds, Path(scratch), log_dir) as homes:
            ready_s = _await_all(homes.peers)
            trees = [Processes(peer.process.pid) for peer in homes.peers]
            began_at = time.monotonic()
            psutil.cpu_percent()
            time.sleep(seconds)
            busy, ended_at = psutil.cpu_percent(), time.monotonic()
            use = _use(homes.peers, trees, began_at, ended_at)
            told = [list(peer.said) for peer in homes.peers]
    steps = list(steps_between(told, config.averaging.target_batch_size, began_at, ended_at))
    downloads = sum(event["event"] == "download" and event["at"] > began_at for each in told for event in each)
    return Result(volunteers, ready_s, steps, downloads, use, busy)


def _await_all(peers: Sequence[Peer]) -> float:
    """Wait until each volunteer has the state; return the seconds since the first volunteer's start."""
    deadline = time.monotonic() + READY_S
    while not all(peer.events("ready") for peer in peers):
        for peer in peers:
            peer.look()
        if any(peer.has_died for peer in peers) or time.monotonic() > deadline:
            raise RuntimeError("not all peers have the state; see their logs (`--logs`)")
        time.sleep(POLL_S)
    return time.monotonic() - peers[0].began_at


class Processes:
    """A peer's process with all its descendants."""

    def __init__(self, pid: int) -> None:
        root = psutil.Process(pid)
        self._all = [root, *root.children(recursive=True)]
        self._began_s = self._processor_s()

    def _processor_s(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self._all)

    def used_s(self) -> float:
        """Return the processor time in seconds since this object was created."""
        return self._processor_s() - self._began_s

    def memory_bytes(self) -> int:
        """Return the memory of all processes; shared pages are divided among the processes that share them (PSS)."""
        return sum(int(process.memory_full_info().pss) for process in self._all)


def _use(peers: Sequence[Peer], trees: Sequence[Processes], began_at: float, ended_at: float) -> Use:
    seconds = ended_at - began_at
    processor_s = sum(tree.used_s() for tree in trees)
    mib = statistics.mean(tree.memory_bytes() / MIB for tree in trees)
    sent, called = [], dict.fromkeys(DhtCalls.KINDS, 0.0)
    for peer in peers:
        within = [event for event in list(peer.said) if began_at <= event["at"] <= ended_at]
        if len(within) < 2:  # the peer is stuck
            continue
        first, last = within[0], within[-1]
        told_s = last["at"] - first["at"]
        sent.append((last["sent"] - first["sent"]) / 1e3 / told_s)
        for kind in called:
            called[kind] += (last["dht"][kind] - first["dht"][kind]) / 1e3 / told_s / len(peers)
    return Use(statistics.mean(sent), max(sent), called, processor_s / seconds / len(peers), mib)


def steps_between(
    told: Sequence[Sequence[dict[str, Any]]], target: int, began_at: float, ended_at: float
) -> Iterator[Step]:
    """Yield the steps first taken between two times, if the time of the full batch is known from the peers' events."""
    taken = [{event["step"]: event for event in each if event["event"] == "step"} for each in told]
    for step in sorted(set().union(*taken)):
        events = [each[step] for each in taken if step in each]
        full_at = full_batch_at(told, step - 1, target)
        if full_at is not None and began_at <= min(event["at"] for event in events) <= ended_at:
            delay_s = max(event["at"] for event in events) - full_at
            yield Step(max(event["group"] for event in events), len(events), delay_s)


def full_batch_at(told: Sequence[Sequence[dict[str, Any]]], step: int, target: int) -> float | None:
    """Return the time at which the samples computed after `step` filled a batch, or None."""
    pending = sorted(gain for each in told for gain in _gains_after(each, step))
    total = 0
    for at, samples in pending:
        total += samples
        if total >= target:
            return at
    return None


def _gains_after(told: Sequence[dict[str, Any]], step: int) -> Iterator[tuple[float, int]]:
    """Yield (time, change) of the samples that a peer has accumulated for the next step."""
    settled, has_taken = 0, False  # number of samples in steps or lost
    computed = 0
    for event in told:
        if event["event"] == "step":
            settled += event["samples"]
            if event["step"] == step:
                has_taken, computed = True, settled
        elif event["event"] == "lost":
            samples = sum(event["by_cause"].values())
            settled += samples
            if has_taken:
                yield event["at"], -samples
        if has_taken and event["computed"] > computed:
            yield event["at"], event["computed"] - computed
            computed = event["computed"]


def figures_of(results: dict[str, Result]) -> list[Figure]:
    """Return every figure of the first system, with each other system as the baseline."""
    (_, ours), *others = results.items()
    beside = [(name, dict(_rows(theirs))) for name, theirs in others] or [("", {})]
    return [
        Figure(f"{ours.volunteers} volunteers: {text}", value, unit, known.get((text, unit)), name)
        for name, known in beside
        for (text, unit), value in _rows(ours)
    ]


def _rows(result: Result) -> Iterator[tuple[tuple[str, str], float]]:
    use, delays = result.use, [step.delay_s for step in result.steps]
    yield ("until all held the state", "s"), result.ready_s
    yield ("steps", ""), len(result.steps)
    if result.steps:
        yield (f"peers in a step, of {result.volunteers + 1}, mean", ""), statistics.mean(s.group for s in result.steps)
        yield ("peers in a step, least", ""), min(step.group for step in result.steps)
        yield ("volunteers that took a step, mean", ""), statistics.mean(step.followers for step in result.steps)
        yield ("from full batch to last step, median", "s"), statistics.median(delays)
        yield ("from full batch to last step, most", "s"), max(delays)
    yield ("states downloaded after the joins", ""), result.downloads
    yield ("DHT, a volunteer", "kB/s"), sum(use.dht_kb_per_s.values())
    for kind, rate in use.dht_kb_per_s.items():
        yield (f"DHT, {kind}", "kB/s"), rate
    yield ("line, a volunteer", "kB/s"), use.line_kb_per_s
    yield ("line, the busiest volunteer", "kB/s"), use.busiest_kb_per_s
    yield ("processor, a volunteer", "% of a core"), 100 * use.processor_share
    yield ("memory, a volunteer", "MiB"), use.mib
    yield ("this machine's processors busy", "%"), result.processors_percent


if __name__ == "__main__":
    exit_at_sigterm()
    main()
