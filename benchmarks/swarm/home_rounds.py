"""The time of one round on home lines in each code of gradients, and its processor time, for models of two sizes.

    python -m benchmarks.swarm.home_rounds [--millions 19,151] [--codes float16,...] [--quick] [--json]

Three volunteers on lines of 10 Mbit/s up and 50 down and the keeper on one of 100 average random gradients, square
matrices, once in each code: real peers (the product's averager over libp2p) in network namespaces whose links `tc`
shapes (network.py). All share this machine's processors. Beside each time stands the least that the lines allow by the
product's own estimate, which counts a line by its slower direction. Needs root and iproute2; all of it takes a quarter
of an hour.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from auth.keys import AuthorityKey
from auth.tokens import Role
from benchmarks.support.members import admit
from benchmarks.support.network import Host, HostPlan, Network, why_impossible
from benchmarks.support.reporting import Figure, argument_parser, exit_at_sigterm, report
from benchmarks.swarm.averaging import RUN, Plan, hear, started, tell, time_of_round
from peer.averaging.shares import reduction_shares, round_time
from peer.config.training import Averaging
from peer.reduction.sizes import RoundBytes, values_sent

CODES: Mapping[str, Mapping[str, Any]] = {  # keys of `averaging`
    "float16": {},
    "8bit-blockwise": {"compression": "8bit-blockwise"},
    "powersgd 16": {"powersgd_rank": 16},
    "powersgd 8": {"powersgd_rank": 8},
    "powersgd 4": {"powersgd_rank": 4},
    "topk-2bit": {"compression": "topk-2bit"},
}
LINES = (HostPlan("keeper", 100), *(HostPlan(f"home-{n}", 10, down_mbit_per_second=50) for n in (1, 2, 3)))
ROLES: Sequence[Role] = ("keeper", "trainer", "trainer", "trainer")
SIDE = 1024  # of a matrix
MILLIONS, QUICK_MILLIONS = [19.0, 151.0], [1.1]
LONGEST_S = 1200.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Time a round in each code."""
    parser = argument_parser("The time of one round on home lines, by the code of gradients.")
    parser.add_argument("--millions", type=_numbers, default=MILLIONS, help="of values, in models (default: 19,151)")
    parser.add_argument("--codes", default=",".join(CODES), help="(default: %(default)s)")
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
                figures += measure(code, matrices, list(network.values()), Path(directory))
                print(f"{figures[-2].name}: {figures[-2].value:.1f} s", file=sys.stderr, flush=True)
    report("rounds on home lines", figures, options.json)


def _numbers(text: str) -> list[float]:
    return [float(number) for number in text.split(",")]


def measure(code: str, matrices: int, hosts: Sequence[Host], directory: Path) -> list[Figure]:
    """Return the time of a round of these hosts in this code, beside the least that their lines allow, and the
    processor time of a volunteer.
    """
    averaging, values = Averaging(**CODES[code]), matrices * SIDE**2
    sent = values_sent([(SIDE, SIDE)] * matrices, averaging.powersgd_rank)
    size = RoundBytes.of(averaging.wire_format, sent)
    rates = [line.mbit_per_second * 1e6 / 8 for line in LINES]
    trusted = [role == "keeper" for role in ROLES]
    shares = reduction_shares(sent, rates, [True] * len(rates), trusted, size.averages_of_own)
    least = round_time(size.own, shares, rates, size.averages_of_own)
    authority = AuthorityKey.generate()
    plans = [
        Plan(
            place,
            len(hosts),
            "",
            values,
            admit(directory / f"peer-{place}", authority, role, RUN),
            patience_s=LONGEST_S,
            timeout_s=LONGEST_S,
            averaging=CODES[code],
            side=SIDE,
            samples=int(role == "trainer"),
        )
        for place, role in enumerate(ROLES)
    ]
    with started(hosts, plans) as peers:
        before = used_by(peers[1])
        taken = time_of_round(peers, rates, rounds=1)
        used = used_by(peers[1]) - before
    name = f"{values / 1e6:.0f} million values, {code}"
    return [
        Figure(f"{name}: a round", taken, "s", least, "least by the lines"),
        Figure(f"{name}: processor time of a volunteer in it", used, "s"),
    ]


def used_by(peer: subprocess.Popen[str]) -> float:
    """Return the seconds of a processor that a peer's processes have used."""
    tell(peer, "processor")
    return float(hear(peer))


if __name__ == "__main__":
    exit_at_sigterm()
    main()
