"""A swarm of real homes beside plain hivemind: who contributes, and how much of the computation counts.

    python benchmarks/home_lines.py [--setting stress|ordinary|both] [--seconds 330] [--systems ours,hivemind]
                                    [--logs DIR] [--quick] [--json]

Five hosts in network namespaces with lines that `tc` shapes (_network.py): a keeper, a fast volunteer, one half as
fast, and two home lines that send five times as slowly as they receive, one of them behind a router. Lines and model
are real ones and ALBERT-large, scaled alike by 1/16. Every process, its daemons included, runs on its own host; only
their processors are shared.

The computation is simulated: a microbatch of a tiny model is really computed, on few tokens, and then waited for until
the time has passed that the setting gives a sample on this volunteer's device. So this machine's speed says nothing.

- stress: the four devices compute a batch in 5 seconds, where the slowest line needs 14 for a gradient;
- ordinary: they compute it in four times the least time of a round.

Ours are the product's `Swarm`, `StateTaking` and `train` (_home_peer.py), without agents and checkpoints; the keeper is
their loop without a database. Theirs are `hivemind.Optimizer` as installed (_hivemind_peer.py): the same model,
optimizer, target batch and times, exact steps, gradients and averaged parameters in fp16 as in hivemind's own ALBERT
example, and an auxiliary peer on the keeper's host. hivemind solves for the reducers' shares with a method that today's
SciPy no longer has, so its peers declare no line, and reduce equal shares. A sample of hivemind's counts if its round
brought an average of two peers or more, although a step may have several groups there, and an average may lack parts; a
step on a peer's own gradient only that another volunteer took, too, loses its samples. Its peers begin without a
download, for all of them draw the same first weights; ours take the keeper's state. In both systems the volunteers join
one after another.

The measurement ends with the first step after `--seconds`. Samples that still wait for a step then are neither counted
nor lost. A volunteer's time begins when it holds the run's state.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from auth.keys import AuthorityKey
from benchmarks._members import admit
from benchmarks._network import Host, HostPlan, Network, why_impossible
from benchmarks._trainer_variant import SPECIAL
from benchmarks.reporting import Figure, argument_parser, report
from peer.averaging.shares import reduction_shares, round_time
from peer.config.run import BUILTIN_RUNS, RunConfig
from peer.models.build import build_model
from peer.reporting.messages import LostCause
from peer.runtime.processes import end_group

ROOT = Path(__file__).resolve().parent.parent
MODULES = {"ours": "_home_peer", "hivemind": "_hivemind_peer"}
BYTES_PER_VALUE = 2  # fp16
TARGET_BATCH = 64
MATCHMAKING_S, TIMEOUT_S, EXPIRATION_S = 15.0, 60.0, 60.0  # the first two are both systems' defaults
JOIN_EVERY_S = 3.0
OVERTIME = 0.5  # of `--seconds`: how much longer the measurement waits for the step that ends it
SETTLE_S = 3.0  # so long after it, for the others' reports of it
LEAVE_S = 60.0
POLL_S = 0.2


@dataclass(frozen=True)
class Volunteer:
    """One volunteer's line, and how fast its device is beside the others'."""

    line: HostPlan
    speed: float

    @property
    def name(self) -> str:
        """The name of its host."""
        return self.line.name


KEEPER = HostPlan("keeper", 25)
VOLUNTEERS = (
    Volunteer(HostPlan("fast", 12.5), 3),
    Volunteer(HostPlan("middle", 6.25), 2),
    Volunteer(HostPlan("home", 1.25, down_mbit_per_second=6.25), 1.5),
    Volunteer(HostPlan("home-nat", 1.25, "nat", down_mbit_per_second=6.25), 1),
)
STRESS_BATCH_S = 5.0  # to compute it, by all four at once
ORDINARY_ROUNDS = 4.0  # so many rounds' least time, likewise
SETTINGS = {"stress": 2, "ordinary": 1}  # samples in a microbatch


@dataclass(frozen=True)
class Plan:
    """What one process of _home_peer.py or _hivemind_peer.py does."""

    role: str  # "keeper" or "trainer"
    config_json: str
    address: str
    seconds_per_sample: float = 0.0
    rate: float | None = None  # of the line's slower direction, in bytes per second
    behind_nat: bool = False
    credentials_dir: str = ""
    initial_peers: tuple[str, ...] = ()


@dataclass
class Outcome:
    """One volunteer's work in one system."""

    seconds_per_sample: float
    joining_s: float = 0.0  # from its start until it held the state
    present_s: float = 0.0  # from then to the end
    computed: int = 0
    counted: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    downloads: int = 0
    download_s: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    percent_able: float = 0.0  # of all samples that all volunteers' devices could compute while they were there
    percent_counted: float = 0.0  # of all volunteers' samples that are in steps

    @property
    def pending(self) -> int:
        """Samples that waited for a step at the end."""
        return self.computed - self.counted - self.lost.total()

    @property
    def utilisation(self) -> float:
        """The time spent on what counts, of all time that the volunteer was there."""
        return self.counted * self.seconds_per_sample / self.present_s if self.present_s else 0.0


@dataclass
class Result:
    """One system in one setting."""

    seconds: float  # from the first volunteer's start to the end
    steps: int
    volunteers: dict[str, Outcome]
    processors_percent: float  # that were busy, of this machine: near 100 the figures tell of it, not of the lines

    @property
    def counted(self) -> int:
        """All volunteers' samples that are in steps."""
        return sum(outcome.counted for outcome in self.volunteers.values())

    @property
    def percent_counted(self) -> float:
        """The counted part of all samples that are in steps or lost."""
        judged = sum(outcome.computed - outcome.pending for outcome in self.volunteers.values())
        return 100 * self.counted / judged if judged else 0.0


class Peer:
    """One process: keeps what it says, with the time."""

    def __init__(self, host: Host, system: str, plan: Plan, log: Path) -> None:
        self.began_at = time.monotonic()
        command = host.command(sys.executable, "-m", f"benchmarks.{MODULES[system]}", json.dumps(asdict(plan)))
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with log.open("w") as file:
            self.process = subprocess.Popen(  # noqa: S603
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                start_new_session=True,
            )
        self.said: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(json.loads(line))

    def events(self, kind: str) -> list[dict[str, Any]]:
        """All that it said of this kind."""
        return [said for said in list(self.said) if said["event"] == kind]

    def leave(self) -> None:
        """Tell it to stop."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def end(self, patience_s: float) -> None:
        """Wait until it has left, and end all of it."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience_s)
        end_group(self.process.pid)
        self.process.wait()
        self._thread.join()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure both systems in each setting."""
    parser = argument_parser("Who contributes on home lines, beside plain hivemind.")
    parser.add_argument("--setting", choices=[*SETTINGS, "both"], default="both", help="how long a batch computes")
    parser.add_argument("--seconds", type=float, default=330.0, help="of each system in each setting")
    parser.add_argument("--systems", default="ours,hivemind", help="which to measure: ours, hivemind, or both")
    parser.add_argument("--matchmaking", type=float, default=MATCHMAKING_S, help="seconds to look for a group, of both")
    parser.add_argument("--logs", type=Path, help="a directory for the processes' logs")
    options = parser.parse_args(arguments)
    if reason := why_impossible():
        sys.exit(f"Hosts with lines of their own cannot be made here: {reason}. Run this as root, with iproute2.")
    systems = options.systems.split(",")
    if unknown := set(systems) - set(MODULES):
        parser.error(f"`--systems` names {', '.join(sorted(unknown))}: take {' and '.join(MODULES)}")
    settings = list(SETTINGS) if options.setting == "both" else [options.setting]
    seconds = options.seconds
    if options.quick:
        settings, systems, seconds = ["stress"], systems[:1], 10.0
    figures = []
    for setting in settings:
        config = configure(setting, options.matchmaking, options.quick)
        results = {system: measure(system, setting, config, seconds, options.logs) for system in systems}
        figures += figures_of(setting, results)
    report("home lines", figures, options.json)


def configure(setting: str, matchmaking_s: float, quick: bool) -> RunConfig:
    """The run: 1.1 million values (`quick`: a fifth of them), a batch of 64, product's defaults elsewhere."""
    size = 64 if quick else 256
    raw = RunConfig.from_yaml(BUILTIN_RUNS / "demo.yaml").model_dump(mode="json")
    raw["model"] |= {"hidden_size": size, "intermediate_size": 4 * size, "num_hidden_layers": 2}
    raw["tokenizer"] |= {"vocab_size": 2000 if quick else 4000}
    raw["data"] |= {"sequence_length": 16, "microbatch_size": SETTINGS[setting]}
    raw["averaging"] |= {
        "target_batch_size": TARGET_BATCH,
        "matchmaking_time_s": matchmaking_s,
        "averaging_timeout_s": TIMEOUT_S,
        "statistics_expiration_s": EXPIRATION_S,
        "progress_refresh_s": 0.5,
    }
    return RunConfig.from_mapping(raw)


def slower_rate(line: HostPlan) -> float:
    """Bytes per second of the line's slower direction."""
    return min(line.mbit_per_second, line.down_mbit_per_second or line.mbit_per_second) * 1e6 / 8


def least_round_s(values: int) -> float:
    """The least time of a round of all on these lines; who is behind a router reduces nothing."""
    lines = [KEEPER, *(volunteer.line for volunteer in VOLUNTEERS)]
    rates = [slower_rate(line) for line in lines]
    declared = [rate if line.place == "open" else 0.0 for line, rate in zip(lines, rates, strict=True)]
    shares = reduction_shares(values, declared, [True] * len(lines))
    return round_time(BYTES_PER_VALUE * values, shares, rates)


def values_of(config: RunConfig) -> int:
    """How many values the run's model has."""
    model = build_model(config, config.tokenizer.vocab_size, SPECIAL)
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def measure(system: str, setting: str, config: RunConfig, seconds: float, logs: Path | None) -> Result:
    """Run one system in one setting."""
    batch_s = STRESS_BATCH_S if setting == "stress" else ORDINARY_ROUNDS * least_round_s(values_of(config))
    all_speed = sum(volunteer.speed for volunteer in VOLUNTEERS)
    outcomes = {each.name: Outcome(batch_s / TARGET_BATCH * all_speed / each.speed) for each in VOLUNTEERS}
    with Network([KEEPER, *(each.line for each in VOLUNTEERS)]) as hosts, tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        log_dir = directory if logs is None else logs / f"{setting}-{system}"
        log_dir.mkdir(parents=True, exist_ok=True)
        with _started(system, config, hosts, directory, log_dir, outcomes) as peers:
            volunteers = peers[1:]
            began_at = volunteers[0].began_at
            psutil.cpu_percent()
            ended_at = _run(peers, began_at, seconds)
            busy = psutil.cpu_percent()
    taken = Counter(event["step"] for peer in volunteers for event in peer.events("step"))
    for peer, outcome in zip(volunteers, outcomes.values(), strict=True):
        _judge(peer, outcome, ended_at, taken)
    able = sum(outcome.present_s / outcome.seconds_per_sample for outcome in outcomes.values())
    counted = sum(outcome.counted for outcome in outcomes.values())
    for outcome in outcomes.values():
        outcome.percent_able = 100 * outcome.present_s / outcome.seconds_per_sample / able if able else 0.0
        outcome.percent_counted = 100 * outcome.counted / counted if counted else 0.0
    return Result(ended_at - began_at, len(taken), outcomes, busy)


@contextmanager
def _started(
    system: str, config: RunConfig, hosts: dict[str, Host], directory: Path, logs: Path, outcomes: dict[str, Outcome]
) -> Iterator[list[Peer]]:
    """The keeper, then the volunteers, one after another; all have left at the end."""
    authority = AuthorityKey.generate()
    run, config_json = config.run.name, config.to_json()
    with ExitStack() as stack:

        def start(name: str, plan: Plan) -> Peer:
            host = hosts[name]
            peer = Peer(host, system, replace(plan, address=host.address), logs / f"{name}.log")
            stack.callback(peer.end, LEAVE_S)
            return peer

        keeper = start(
            "keeper",
            Plan("keeper", config_json, "", credentials_dir=admit(directory / "keeper", authority, "keeper", run)),
        )
        stack.callback(keeper.leave)
        addresses = tuple(_await(keeper, "addresses")["addresses"])
        peers = [keeper]
        for volunteer in VOLUNTEERS:
            plan = Plan(
                "trainer",
                config_json,
                "",
                outcomes[volunteer.name].seconds_per_sample,
                slower_rate(volunteer.line),
                volunteer.line.place == "nat",
                admit(directory / volunteer.name, authority, "trainer", run),
                addresses,
            )
            peers.append(start(volunteer.name, plan))
            time.sleep(JOIN_EVERY_S)
        yield peers
        for peer in peers[1:]:
            peer.leave()


def _await(peer: Peer, kind: str) -> dict[str, Any]:
    while not (found := peer.events(kind)):
        if peer.process.poll() is not None:
            raise RuntimeError("a peer has ended; its log says why: see `--logs`")
        time.sleep(POLL_S)
    return found[0]


def _run(peers: Sequence[Peer], began_at: float, seconds: float) -> float:
    """Wait for the first step after so many seconds; return its time, or when it is waited for no longer."""
    due = began_at + seconds
    while (now := time.monotonic()) < due + OVERTIME * seconds:
        if gone := [peer for peer in peers if peer.process.poll() is not None]:
            raise RuntimeError(f"{len(gone)} peers have ended; their logs say why: see `--logs`")
        steps = [event["at"] for peer in peers for event in peer.events("step") if event["at"] >= due]
        if steps:
            time.sleep(SETTLE_S)
            return max(float(event["at"]) for peer in peers for event in peer.events("step"))
        time.sleep(POLL_S)
    return now


def _judge(peer: Peer, outcome: Outcome, ended_at: float, taken: Counter[int]) -> None:
    """Add up what a volunteer said; `taken`: how many volunteers took each step."""
    ready = peer.events("ready")
    ready_at = ready[0]["at"] if ready else ended_at
    outcome.joining_s, outcome.present_s = ready_at - peer.began_at, ended_at - ready_at
    for event in peer.events("step"):
        if event["group"] == 1 and taken[event["step"]] > 1:  # it only thought that it was alone
            outcome.lost[LostCause.AVERAGING.value] += event["samples"]
        else:
            outcome.counted += event["samples"]
    for event in peer.events("lost"):
        outcome.lost += Counter({cause: lost for cause, lost in event["by_cause"].items() if cause != "left"})
    for event in peer.events("download"):
        outcome.downloads += 1
        outcome.download_s += event["seconds"]
    last = peer.said[-1] if peer.said else {}
    outcome.computed = last.get("computed", 0)
    outcome.sent_bytes, outcome.received_bytes = last.get("sent", 0), last.get("received", 0)


SWARM_FIGURES: tuple[tuple[str, str, Callable[[Result], float]], ...] = (
    ("steps", "", lambda result: result.steps),
    ("samples counted", "samples/s", lambda result: result.counted / result.seconds),
    ("batch averaged", "of the target", lambda result: result.counted / TARGET_BATCH / max(1, result.steps)),
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
    """Every figure of the first system, beside the second's."""
    (_, ours), *others = results.items()
    name, theirs = others[0] if others else ("", None)

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
    main()
