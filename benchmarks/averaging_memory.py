"""What a peer holds in memory over rounds of averaging of which half fail: hivemind's is reported to grow with them.

    python benchmarks/averaging_memory.py [--quick] [--json]

Two peers average over loopback; one of them breaks every second round off, so that it fails for the other. The baseline
is the memory after the first rounds, when everything has been allocated once.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.averaging import ROOT, Plan, hear, swarm_plans, tell
from benchmarks.reporting import Figure, argument_parser, report

VALUES = 1_000_000
ADDRESS = "127.0.0.1"
MATCHMAKING_S, PATIENCE_S = 1.0, 2.0
WARM_UP_ROUNDS = 10
MIB = 2**20


def main(arguments: Sequence[str] | None = None) -> None:
    """Average, and look at the memory before and after."""
    options = argument_parser("The memory of a peer over rounds of averaging of which half fail.").parse_args(arguments)
    report("memory over rounds of which half fail", measure(20 if options.quick else 200), options.json)


def measure(rounds: int) -> list[Figure]:
    """What the peer holds that does not fail itself, after the first rounds and after all."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        plans = swarm_plans(Path(directory), VALUES, 2)
        first, second = (
            replace(plan, address=ADDRESS, matchmaking_s=MATCHMAKING_S, patience_s=PATIENCE_S) for plan in plans
        )
        peer = stack.enter_context(_start(first))
        addresses = tuple(hear(peer))
        failing = stack.enter_context(_start(replace(second, initial_peers=addresses, fails=True)))
        hear(failing)
        held, failed = [], 0
        for count in (WARM_UP_ROUNDS, rounds):
            for _ in range(count):
                for process in (peer, failing):
                    tell(process, None)
                answers = [hear(process) for process in (peer, failing)]
                failed += answers[0] is None
            tell(peer, "memory")
            held.append(hear(peer) / MIB)
        for process in (peer, failing):
            process.communicate()  # ends its input, upon which it leaves
    name = f"memory after {WARM_UP_ROUNDS + rounds} rounds"
    return [
        Figure(name, held[1], "MiB", held[0], f"after {WARM_UP_ROUNDS}"),
        Figure("rounds that failed", failed, "rounds", WARM_UP_ROUNDS + rounds, "all"),
    ]


def _start(plan: Plan) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks._averaging_peer", json.dumps(asdict(plan))]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603


if __name__ == "__main__":
    main()
