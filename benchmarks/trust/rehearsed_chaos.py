"""Chaos tests in virtual time over many seeds: injected faults, broken rules, and lost samples.

    make chaos SEEDS=1000

prints the table in docs/failures.md, and exits with 1 if a seed has broken a rule. `make chaos FIRST=85
SEEDS=1` rehearses seed 85 alone, and tells its story. Scenarios and rules come from
tests/support/rehearsed_chaos.py.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing import Pool

from peer.rehearsal.scenario import KEEPER, Mishap, Scenario
from tests.support.rehearsed_chaos import draw_chaos, run_chaos


@dataclass(frozen=True)
class Cost:
    """Results of a rehearsal: injected faults, computed, counted and lost samples, and broken rules."""

    seed: int
    faults: Counter[str]
    computed: int
    counted: int
    lost: Counter[str]
    steps: int
    broken: tuple[str, ...]
    hours: float  # of virtual time
    story: str  # of a seed that broke a rule


def fault_of(mishap: Mishap) -> str:
    """Return a fault's name in the table."""
    whose = "the keeper's" if mishap.who == KEEPER else "a device's"
    names = {
        "line": f"{whose} line is {'slow' if mishap.factor else 'dead'}",
        "keeper": "the keeper is killed, and resumes from a checkpoint",
        "stop": f"{whose} process stands still",
        "partition": "the swarm is divided in two",
        "records": f"{whose} records arrive late",
    }
    lies = {
        "claims": "a device claims many times its samples",
        "weight": "a device names many times its weight in rounds",
        "leaves": "a device leaves every group",
        "withholds": "a device returns no averages as a reducer",
        "leads": "a device leads groups that are not complete",
    }
    return names[mishap.kind] if mishap.lie is None else lies[mishap.lie]


def faults_of(scenario: Scenario) -> Counter[str]:
    """Count the faults that a scenario injects."""
    found = Counter(map(fault_of, scenario.mishaps))
    for device in scenario.devices:
        ends = [visit.ends for visit in device.visits if visit.end_s is not None]
        found.update("a device dies" if end == "dies" else "a device leaves" for end in ends)
        found["a device joins late, or comes back"] += sum(visit.begin_s > 15 for visit in device.visits)
    return +found


def cost_of(seed: int) -> Cost:
    """Rehearse the scenario drawn from a seed, and return the cost."""
    logging.disable()
    outcome = run_chaos(draw_chaos(seed), seed)
    works = [each.work for each in outcome.run.devices]
    lost: Counter[str] = Counter()
    for work in works:
        lost.update(work.lost)
    return Cost(
        seed,
        faults_of(outcome.scenario),
        sum(work.computed for work in works),
        outcome.audit.ledger.counted_by_device().total(),
        lost,
        len(outcome.audit.ledger.counting_steps()),
        tuple(f"{rule} {found}" for rule, found in outcome.audit.broken),
        outcome.run.duration_s / 3600,
        outcome.story if outcome.audit.broken else "",
    )


def table(costs: list[Cost]) -> str:
    """Return the table of faults, followed by summary sentences."""
    faults: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    for cost in costs:
        faults.update(cost.faults)
        lost.update(cost.lost)
    lines = ["| fault | injected | samples that count, in scenarios with it |", "|---|---|---|"]
    for fault, times in faults.most_common():
        lines.append(f"| {fault} | {times} | {_share(cost for cost in costs if cost.faults[fault])} |")
    lines += [f"| all {len(costs)} scenarios | {faults.total()} | {_share(costs)} |", ""]
    computed = sum(cost.computed for cost in costs)
    told = ", ".join(f"{100 * samples / computed:.2f} % {cause}" for cause, samples in lost.most_common())
    lines.append(f"Of {computed} computed samples devices lost: {told}.")
    broken = sum(bool(cost.broken) for cost in costs)
    steps, hours = sum(cost.steps for cost in costs), sum(cost.hours for cost in costs)
    lines.append(f"{len(costs)} seeds, {broken} broke a rule; {steps} steps in {hours:.1f} virtual hours.")
    return "\n".join(lines)


def _share(costs: Iterable[Cost]) -> str:
    pairs = [(cost.counted, cost.computed) for cost in costs]
    counted, computed = (sum(column) for column in zip(*pairs, strict=True))
    return f"{100 * counted / computed:.1f} %"


def main() -> None:
    """Rehearse the requested seeds, and print the table. Exits with 1 if one breaks a rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    with Pool(arguments.processes) as pool:
        costs = []
        for cost in pool.imap(cost_of, range(arguments.first, arguments.first + arguments.seeds)):
            costs.append(cost)
            if cost.broken:
                print(f"seed {cost.seed}: {cost.broken[0]} (make chaos FIRST={cost.seed} SEEDS=1)", flush=True)
    print(costs[0].story if arguments.seeds == 1 and costs[0].broken else table(costs))
    sys.exit(any(cost.broken for cost in costs))


if __name__ == "__main__":
    main()
