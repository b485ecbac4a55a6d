"""Duration and processor time of one averaging round on home connections, for each gradient encoding.

    python -m benchmarks.swarm.averaging [--millions 19,151] [--codes float16,...] [--quick] [--json]

Three volunteers (10 Mbit/s up, 50 down) and a keeper (100 Mbit/s) average random square matrices, once in each
encoding. All are real peers (the product's node over libp2p) in network namespaces with links limited by `tc`
(network.py), and share this machine's processors. The baseline is the minimum time that the links allow, estimated
by the product from the slower direction of each link. Needs root and iproute2; takes a quarter of an hour.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from auth.keys import AuthorityKey
from auth.tokens import Role
from benchmarks.support.members import admit
from benchmarks.support.network import Host, HostPlan, Network, why_impossible
from benchmarks.support.reporting import Figure, argument_parser, exit_at_sigterm, report
from peer.averaging.shares import reduction_shares, round_time
from peer.config.training import Averaging
from peer.reduction.sizes import round_bytes, values_sent

ROOT = Path(__file__).resolve().parents[2]
RUN = "averaging"
CODES: Mapping[str, Mapping[str, Any]] = {  # name of an encoding -> keys of `averaging`
    "float16": {},
    "8bit-blockwise": {"compression": "8bit-blockwise"},
    "powersgd 16": {"powersgd_rank": 16},
    "powersgd 8": {"powersgd_rank": 8},
    "powersgd 4": {"powersgd_rank": 4},
}
LINES = (HostPlan("keeper", 100), *(HostPlan(f"home-{n}", 10, down_mbit_per_second=50) for n in (1, 2, 3)))
ROLES: Sequence[Role] = ("keeper", "trainer", "trainer", "trainer")
RATES = [line.mbit_per_second * 1e6 / 8 for line in LINES]
SIDE = 1024  # side length of a matrix
MILLIONS, QUICK_MILLIONS = [19.0, 151.0], [1.1]
LONGEST_S = 1200.0


@dataclass(frozen=True)
class Plan:
    """The configuration of an averaging_peer.py process."""

    place: int
    peers: int
    address: str
    values: int
    credentials_dir: str = ""
    timeout_s: float = 300.0  # timeout of a round
    fails: bool = False  # whether to abort as a reducer in every second round
    initial_peers: tuple[str, ...] = ()
    averaging: Mapping[str, Any] = field(default_factory=dict)  # keys of the run file's section
    side: int = 0  # side length of square matrices of values; 0: one vector
    samples: int = 1  # number of samples in this peer's gradient; 0 for the keeper


def main(arguments: Sequence[str] | None = None) -> None:
    """Time a round in each encoding."""
    parser = argument_parser("Duration of one round on home connections, for each gradient encoding.")
    parser.add_argument("--millions", type=_numbers, default=MILLIONS, help="values in millions (default: 19,151)")
    parser.add_argument("--codes", default=",".join(CODES), help="gradient encodings (default: %(default)s)")
    options = parser.parse_args(arguments)
    if unknown := set(options.codes.split(",")) - CODES.keys():
        parser.error(f"{', '.join(sorted(unknown))}: take {', '.join(CODES)}")
    if reason := why_impossible():
        sys.exit(f"Hosts with links of their own cannot be made here: {reason}. Run this as root, with iproute2.")
    figures = []
    for millions in QUICK_MILLIONS if options.quick else options.millions:
        matrices = max(1, round(millions * 1e6 / SIDE**2))
        for code in options.codes.split(","):
            with Network(LINES) as network, tempfile.TemporaryDirectory() as directory:
                found = measure(code, matrices, list(network.values()), Path(directory))
            print(f"{found[0].name}: {found[0].value:.1f} s", file=sys.stderr, flush=True)
            figures += found
    report("rounds on home lines", figures, options.json)


def _numbers(text: str) -> list[float]:
    return [float(number) for number in text.split(",")]


def measure(code: str, matrices: int, hosts: Sequence[Host], directory: Path) -> list[Figure]:
    """Return a round's duration at its slowest peer, and a volunteer's processor time."""
    averaging, values = Averaging(**CODES[code]), matrices * SIDE**2
    sent = values_sent([(SIDE, SIDE)] * matrices, averaging.powersgd_rank)
    trusted = [role == "keeper" for role in ROLES]
    shares = reduction_shares(sent, RATES, [True] * len(RATES), trusted)
    least = round_time(round_bytes(averaging, sent), shares, RATES)
    common = {"averaging": CODES[code], "side": SIDE, "timeout_s": LONGEST_S}
    with started(hosts, swarm_plans(directory, ROLES, values, **common)) as peers:
        before = used_by(peers[1])
        for process, rate in zip(peers, RATES, strict=True):
            tell(process, rate)
        taken = max(float(hear(process)) for process in peers)
        used = used_by(peers[1]) - before
    name = f"{values / 1e6:.0f} million values, {code}"
    return [
        Figure(f"{name}: a round", taken, "s", least, "least by the lines"),
        Figure(f"{name}: processor time of a volunteer in it", used, "s"),
    ]


def swarm_plans(directory: Path, roles: Sequence[Role], values: int, **options: Any) -> list[Plan]:
    """Return plans for peers admitted to one run, without initial peers."""
    authority = AuthorityKey.generate()
    return [
        Plan(
            place,
            len(roles),
            "",
            values,
            admit(directory / f"peer-{place}", authority, role, RUN),
            samples=int(role == "trainer"),
            **options,
        )
        for place, role in enumerate(roles)
    ]


@contextmanager
def started(hosts: Sequence[Host], plans: Sequence[Plan]) -> Iterator[list[subprocess.Popen[str]]]:
    """Start a process per plan, pass the first process's addresses to the others, and stop all on exit."""
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
            process.communicate()  # closes the process's input


def used_by(peer: subprocess.Popen[str]) -> float:
    """Return the processor time, in seconds, of all processes of a peer."""
    tell(peer, "processor")
    return float(hear(peer))


def _start(host: Host, plan: Plan) -> subprocess.Popen[str]:
    command = host.command(sys.executable, "-m", "benchmarks.swarm.averaging_peer", json.dumps(asdict(plan)))
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603


def tell(process: subprocess.Popen[str], content: object) -> None:
    """Send a peer one message as a line of JSON."""
    assert process.stdin is not None
    process.stdin.write(f"{json.dumps(content)}\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> Any:
    """Return a peer's next message."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("a peer has ended; see its output above")
    return json.loads(line)


if __name__ == "__main__":
    exit_at_sigterm()
    main()
