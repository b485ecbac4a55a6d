"""How long one round of averaging takes on unequal links, by who reduces how much.

    python benchmarks/swarm/averaging.py [--quick] [--json]

Real peers (the product's averager over libp2p) in network namespaces whose links `tc` shapes (network.py). `adaptive`
is what the product does; equal shares and one server are what it is compared with. Beside them stands the least time
that the links' rates allow. Needs root and iproute2.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from auth.keys import AuthorityKey
from benchmarks.support.members import admit
from benchmarks.support.network import Host, HostPlan, Network, why_impossible
from benchmarks.support.reporting import Figure, argument_parser, exit_at_sigterm, report
from peer.averaging.shares import reduction_shares, round_time

ROOT = Path(__file__).resolve().parents[2]
RUN = "averaging"
BYTES_PER_VALUE = 2  # fp16


@dataclass(frozen=True)
class Setting:
    """Which links, how many values, how often."""

    mbit_per_second: tuple[float, ...]
    values: int
    rounds: int


# All share this machine's processor, so both are an eighth of 200, 100 and 50 Mbit/s and of 17.8 million values.
FULL = Setting((25, 25, 12.5, 12.5, 12.5, 12.5, 6.25, 6.25), 2_225_000, 3)
QUICK = Setting((25, 12.5, 12.5, 6.25), 600_000, 1)


@dataclass(frozen=True)
class Plan:
    """What one process of averaging_peer.py does."""

    place: int
    peers: int
    address: str
    values: int
    credentials_dir: str = ""
    matchmaking_s: float = 4.0
    patience_s: float = 100.0  # with a peer that sends nothing
    timeout_s: float = 300.0  # of a round
    fails: bool = False  # every second round, as a reducer that goes away in the middle
    initial_peers: tuple[str, ...] = ()
    averaging: Mapping[str, Any] = field(default_factory=dict)  # keys of a run file's section
    side: int = 0  # of the square matrices that the values are in; 0 for one vector
    samples: int = 1  # behind its gradient; 0 for the keeper


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each way on the same links."""
    options = argument_parser("The time of one averaging round on unequal links.").parse_args(arguments)
    if reason := why_impossible():
        sys.exit(f"Hosts with links of their own cannot be made here: {reason}. Run this as root, with iproute2.")
    setting = QUICK if options.quick else FULL
    report("averaging on unequal links", measure(setting), options.json)


def measure(setting: Setting) -> list[Figure]:
    """The time of a round in each way, beside the least that the links allow."""
    rates = [rate * 1e6 / 8 for rate in setting.mbit_per_second]
    everybody = [True] * len(rates)
    size_bytes = BYTES_PER_VALUE * setting.values
    least = round_time(size_bytes, reduction_shares(setting.values, rates, everybody), rates)
    ways: dict[str, list[float | None]] = {
        "adaptive": list(rates),
        "equal shares": [None] * len(rates),
        "one server": [rates[0], *[0.0] * (len(rates) - 1)],
    }
    links = [HostPlan(f"h{place}", rate) for place, rate in enumerate(setting.mbit_per_second)]
    with Network(links) as network, tempfile.TemporaryDirectory() as directory:
        hosts = list(network.values())
        with started(hosts, swarm_plans(Path(directory), setting.values, len(hosts))) as peers:
            times = {way: time_of_round(peers, declared, setting.rounds) for way, declared in ways.items()}
    return [Figure(f"{way}: time of a round", taken, "s", least, "least by the links") for way, taken in times.items()]


def swarm_plans(directory: Path, values: int, peers: int) -> list[Plan]:
    """Peers that have joined one run, without their addresses."""
    authority = AuthorityKey.generate()
    return [
        Plan(place, peers, "", values, admit(directory / f"peer-{place}", authority, "trainer", RUN))
        for place in range(peers)
    ]


@contextmanager
def started(hosts: Sequence[Host], plans: Sequence[Plan]) -> Iterator[list[subprocess.Popen[str]]]:
    """A process for each plan; all but the first begin with its addresses. They leave at the end."""
    with ExitStack() as stack:
        addresses: tuple[str, ...] = ()
        peers = []
        for host, plan in zip(hosts, plans, strict=True):
            process = stack.enter_context(_start(host, replace(plan, address=host.address, initial_peers=addresses)))
            peers.append(process)
            addresses = addresses or tuple(hear(process))
        for process in peers[1:]:
            hear(process)
        yield peers
        for process in peers:
            process.communicate()  # ends its input


def time_of_round(peers: Sequence[subprocess.Popen[str]], declared: Sequence[float | None], rounds: int) -> float:
    """Return the median time of a round at its slowest peer, in seconds; `declared`: the rates of their lines."""
    taken = []
    for _ in range(rounds):
        for process, bandwidth in zip(peers, declared, strict=True):
            tell(process, bandwidth)
        taken.append(max(float(hear(process)) for process in peers))
    return statistics.median(taken)


def _start(host: Host, plan: Plan) -> subprocess.Popen[str]:
    command = host.command(sys.executable, "-m", "benchmarks.swarm.averaging_peer", json.dumps(asdict(plan)))
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603


def tell(process: subprocess.Popen[str], content: object) -> None:
    """Say something to a peer."""
    assert process.stdin is not None
    process.stdin.write(f"{json.dumps(content)}\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> Any:
    """What a peer says next."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("a peer has ended; what it says is above")
    return json.loads(line)


if __name__ == "__main__":
    exit_at_sigterm()
    main()
