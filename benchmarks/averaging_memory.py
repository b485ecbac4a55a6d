"""What a peer holds in memory over rounds of averaging of which half fail: hivemind's is reported to grow with them.

    python benchmarks/averaging_memory.py [--quick] [--json]

Two peers average over loopback; one of them breaks every second round off, so that it fails for the other. Counted is
what all processes of the other one hold between rounds. The baseline is the memory after over three minutes of rounds:
by then everything has been allocated once, and hivemind's DHT begins to forget requests (it remembers each for three
minutes, lest it be replayed). The growth is that of a line through what is held from then on.

A page that processes share counts for each in part, strangers' too: let nothing else of ours run meanwhile.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeAlias

from benchmarks.averaging import ROOT, Plan, hear, swarm_plans, tell
from benchmarks.reporting import Figure, argument_parser, report
from peer.averaging.averager import SETTLE_S

VALUES = 1_000_000
ADDRESS = "127.0.0.1"
MATCHMAKING_S, PATIENCE_S = 1.0, 2.0
ROUNDS_PER_LOOK = 10
PAUSE_S = 2 * SETTLE_S  # before a look
KIB, MIB = 2**10, 2**20
Peer: TypeAlias = subprocess.Popen[str]


def main(arguments: Sequence[str] | None = None) -> None:
    """Average, and look at the memory now and then."""
    options = argument_parser("The memory of a peer over rounds of averaging of which half fail.").parse_args(arguments)
    warm_up, rounds = (10, 20) if options.quick else (180, 200)
    report("memory over rounds of which half fail", measure(warm_up, rounds), options.json)


def measure(warm_up: int, rounds: int) -> list[Figure]:
    """What the peer that does not fail itself holds, after the first rounds and after all, and how fast that grows."""
    with started() as (peer, failing):
        failed = _average(peer, failing, warm_up)
        held = [_look(peer)]
        for _ in range(rounds // ROUNDS_PER_LOOK):
            failed += _average(peer, failing, ROUNDS_PER_LOOK)
            held.append(_look(peer))
    first, *_, last = [sum(look.values()) / MIB for look in held]
    return [
        Figure(f"memory after {warm_up + rounds} rounds", last, "MiB", first, f"after {warm_up}"),
        Figure("growth, all processes", _growth([sum(look.values()) for look in held]), "KiB a round"),
        *(Figure(f"growth, {name}", _growth([look[name] for look in held]), "KiB a round") for name in held[0]),
        Figure("rounds that failed", failed, "rounds", warm_up + rounds, "all"),
    ]


@contextmanager
def started() -> Iterator[tuple[Peer, Peer]]:
    """Two peers that know each other, the second of which fails. They leave at the end."""
    with tempfile.TemporaryDirectory() as directory:
        first, second = (
            replace(plan, address=ADDRESS, matchmaking_s=MATCHMAKING_S, patience_s=PATIENCE_S)
            for plan in swarm_plans(Path(directory), VALUES, 2)
        )
        with _start(first) as peer, _start(replace(second, initial_peers=tuple(hear(peer)), fails=True)) as failing:
            hear(failing)
            yield peer, failing
            for process in (peer, failing):
                process.communicate()  # ends its input, upon which it leaves


def run_round(peer: Peer, failing: Peer) -> bool:
    """Let both average once; returns whether that succeeded for the first."""
    for process in (peer, failing):
        tell(process, None)
    answers = [hear(process) for process in (peer, failing)]
    return answers[0] is not None


def _average(peer: Peer, failing: Peer, rounds: int) -> int:
    """So many rounds; returns how many of them failed."""
    return sum(not run_round(peer, failing) for _ in range(rounds))


def _look(peer: Peer) -> dict[str, int]:
    """Bytes by process, when what the last round held has been given back."""
    time.sleep(PAUSE_S)
    tell(peer, "memory")
    answer: dict[str, int] = hear(peer)
    return answer


def _growth(held_bytes: Sequence[int]) -> float:
    """KiB a round, of the line that fits best what was held at each look."""
    rounds = [look * ROUNDS_PER_LOOK for look in range(len(held_bytes))]
    return statistics.linear_regression(rounds, held_bytes).slope / KIB


def _start(plan: Plan) -> Peer:
    command = [sys.executable, "-m", "benchmarks._averaging_peer", json.dumps(asdict(plan))]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603


if __name__ == "__main__":
    main()
