"""What authorization costs: for a round of averaging, and for a call of the DHT, beside the same without any.

    python benchmarks/authorization.py [--quick] [--json]

Two swarms on this machine take turns: in one every request is signed and every token looked at, the other is open to
everybody as plain hivemind is. Of a round, counted are its time from the group's forming to the last average, and the
processor time of all processes, from the search for a group on; of a call, its time between two nodes, records stored
under the caller's own key: on this machine, and over a line of 20 ms there and back (_delayed_line.py), as between two
homes.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import hivemind
import psutil
from hivemind.utils import get_dht_time

from auth.credentials import Credentials
from auth.swarm.authorizer import peers_key, record_subkey
from benchmarks._averaging_peer import join
from benchmarks.averaging import ROOT, RUN, Plan, hear, swarm_plans, tell
from benchmarks.reporting import Figure, argument_parser, report

ADDRESS = "127.0.0.1"
PEERS = 4
VALUES = 1_000_000
MATCHMAKING_S = 1.0
RECORD = {"step": 12, "samples": 345, "rate": 67.8, "sketch": [0.5] * 32}
LIFETIME_S = 600.0
DELAY_S = 0.01  # one way


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure rounds, then calls."""
    options = argument_parser("What authorization costs.").parse_args(arguments)
    rounds, calls = (4, 40) if options.quick else (30, 400)
    report("authorization", [*measure_rounds(rounds), *measure_calls(calls)], options.json)


def measure_rounds(rounds: int) -> list[Figure]:
    """The median time of a round, and the mean processor time that it takes from all who are in it."""
    with ExitStack() as stack:
        swarms = {is_open: stack.enter_context(swarm(is_open)) for is_open in (False, True)}
        for peers in swarms.values():  # the first finds out who is there
            run_round(peers)
        seconds: dict[bool, list[float]] = {False: [], True: []}
        spent = {is_open: -processor_time(peers) for is_open, peers in swarms.items()}
        for _ in range(rounds):
            for is_open, peers in swarms.items():
                seconds[is_open].append(run_round(peers))
        spent = {is_open: (spent[is_open] + processor_time(peers)) / rounds for is_open, peers in swarms.items()}
    times = {is_open: statistics.median(taken) for is_open, taken in seconds.items()}
    return [
        Figure("a round of averaging", times[False], "s", times[True], "open to everybody"),
        Figure("its processor time, all peers", spent[False], "s", spent[True], "open to everybody"),
    ]


def run_round(peers: Sequence[subprocess.Popen[str]]) -> float:
    """The time of the slowest peer's round, in seconds; raises `RuntimeError` if one failed."""
    for peer in peers:
        tell(peer, None)
    taken = [hear(peer) for peer in peers]
    if None in taken:
        raise RuntimeError("a round has failed")
    return max(map(float, taken))


def processor_time(peers: Sequence[subprocess.Popen[str]]) -> float:
    """Seconds that these processes and all that they started have used."""
    processes = [psutil.Process(peer.pid) for peer in peers]
    processes += [child for process in processes for child in process.children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in processes)


@contextmanager
def swarm(is_open: bool) -> Iterator[list[subprocess.Popen[str]]]:
    """Peers that have joined each other. They leave at the end."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        peers: list[subprocess.Popen[str]] = []
        addresses: tuple[str, ...] = ()
        for plan in swarm_plans(Path(directory), VALUES, PEERS):
            whole = replace(
                plan, address=ADDRESS, matchmaking_s=MATCHMAKING_S, is_open=is_open, initial_peers=addresses
            )
            command = [sys.executable, "-m", "benchmarks._averaging_peer", json.dumps(asdict(whole))]
            peer = stack.enter_context(
                subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603
            )
            peers.append(peer)
            addresses = addresses or tuple(hear(peer))
        for peer in peers[1:]:
            hear(peer)
        yield peers
        for peer in peers:
            peer.communicate()  # ends its input, upon which it leaves


def measure_calls(calls: int) -> list[Figure]:
    """The median times of storing a record and of reading one, at another node: near, and over a longer line."""
    figures = []
    for where, delay_s in ("on one machine", 0.0), (f"over {2000 * DELAY_S:g} ms", DELAY_S):
        with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
            nodes = {
                is_open: pair(Path(directory) / str(is_open), is_open, delay_s, stack) for is_open in (False, True)
            }
            storing = {is_open: storer(dht, credentials) for is_open, (dht, credentials) in nodes.items()}
            reading = {is_open: reader(dht) for is_open, (dht, _) in nodes.items()}
            figures += [
                compare(f"a record stored, {where}", storing, calls),
                compare(f"a record read, {where}", reading, calls),
            ]
    return figures


def pair(directory: Path, is_open: bool, delay_s: float, stack: ExitStack) -> tuple[hivemind.DHT, Path]:
    """A node with one other, the credentials of which are in the folder that is returned with it."""
    first, second = swarm_plans(directory, 0, 2)
    holder = start(replace(first, is_open=is_open), (), stack)
    address = str(holder.get_visible_maddrs()[0])
    reached = delayed(address, delay_s, stack) if delay_s else address
    return start(replace(second, is_open=is_open), (reached,), stack), Path(second.credentials_dir)


def delayed(address: str, delay_s: float, stack: ExitStack) -> str:
    """The address of a line to this one that needs so long in each direction."""
    port = address.split("/")[4]
    command = [sys.executable, "-m", "benchmarks._delayed_line", port, str(delay_s)]
    line = stack.enter_context(
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603
    )
    stack.callback(line.communicate)  # ends its input
    return address.replace(f"/tcp/{port}/", f"/tcp/{hear(line)}/")


def start(plan: Plan, initial_peers: tuple[str, ...], stack: ExitStack) -> hivemind.DHT:
    """A node that leaves with the stack."""
    dht = join(replace(plan, address=ADDRESS, initial_peers=initial_peers), Credentials(Path(plan.credentials_dir)))
    stack.callback(dht.shutdown)
    return dht


def storer(dht: hivemind.DHT, credentials_dir: Path) -> Callable[[], bool]:
    """Stores a record under the device's own key, as a peer does again and again."""
    owner = record_subkey(Credentials(credentials_dir).device_key.peer_id)
    return lambda: bool(dht.store(peers_key(RUN), RECORD, get_dht_time() + LIFETIME_S, owner))


def reader(dht: hivemind.DHT) -> Callable[[], bool]:
    """Asks the other nodes for the newest records."""
    return lambda: dht.get(peers_key(RUN), latest=True) is not None


def compare(name: str, actions: dict[bool, Callable[[], bool]], calls: int) -> Figure:
    """Time both in turns; raises `RuntimeError` if a call fails."""
    taken: dict[bool, list[float]] = {is_open: [] for is_open in actions}
    for _ in range(calls):
        for is_open, action in actions.items():
            began = time.perf_counter()
            if not action():
                raise RuntimeError(f"{name}: the call failed")
            taken[is_open].append(1000 * (time.perf_counter() - began))
    return Figure(name, statistics.median(taken[False]), "ms", statistics.median(taken[True]), "open to everybody")


if __name__ == "__main__":
    main()
