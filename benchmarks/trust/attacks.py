"""Attacks on real swarms: who is named, what the liar gains, and whether the others go on learning as without it.

    python -m benchmarks.trust.attacks [--only NAME ...] [--steps 40] [--honest-runs 3] [--quick] [--json]

Each swarm is a keeper, four honest members and one or two insiders, or beside an honest fifth member an outsider; all
are real processes with tokens of one authority, their libp2p daemons, and a tiny model whose loss soon falls. Insiders
begin to lie after the second step and never stop. What they change is in tests/security; nothing of it is in the
program. Each attack has a swarm of its own. The baseline is the same swarm in which all are honest, several times: its
final losses are the band within which those of a harmless attack lie.

- A step's wait is the time since the step before, as the first honest peer tells of either.
- Credited are the samples that the keeper's receipts name for the insiders, true those that they had computed.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from auth.receipts import read_receipt
from benchmarks.support.reporting import argument_parser, exit_at_sigterm
from tests.security.member_swarm import INSIDER, MemberSwarm
from tests.security.outsiders import OUTSIDERS, Outsider
from tests.security.processes import PeerProcess
from tests.support.waiting import PATIENCE_S

FOUR = ("alice", "bob", "carol", "dan")
SECOND = "trudy"
BEFORE = 2  # honest steps before the attack
FAT_LINE, LINE = 25e6, 1.25e6  # bytes per second, as the insider and the honest claim
SECONDS_PER_STEP = 15.0  # on the average; what takes longer has been stopped
POLL_S = 0.1
QUICK_STEPS = 6
ATTEMPTS = 3  # to begin a swarm
MORE_DEVICES = 11
RULER = "-"

Act = Callable[[MemberSwarm], str]  # returns what it gained, in words


@dataclass(frozen=True)
class Attack:
    """One attack: what the insiders are told to do, or what is done from outside."""

    name: str
    orders: tuple[str, ...] = ()
    insiders: int = 1
    second: tuple[str, ...] | None = None  # what the second insider is told; None: the same
    more_devices: int = 0
    act: Act | None = None


@dataclass(frozen=True)
class Outcome:
    """The outcome of one swarm."""

    attack: str
    steps: int
    seconds: float  # for all steps
    longest_wait_s: float  # for a step
    failed_rounds: int  # of all honest trainers together
    first_loss: float
    last_loss: float
    named: Mapping[str, int]  # "kind by whom" -> times, of the insiders
    honest_named: Mapping[str, int]  # the same of honest members: false accusations
    credited: int  # samples
    true: int
    gained: str = ""


def outside(shows: str) -> Act:
    """Let a plain hivemind peer that shows this try every door."""

    def act(swarm: MemberSwarm) -> str:
        with Outsider(swarm, shows) as outsider:
            doors = outsider.doors_opened()
        return f"gained: {', '.join(doors)}" if doors else "gained nothing"

    return act


def replay(swarm: MemberSwarm) -> str:
    """Keep the others' records, and send them and forged ones later."""
    swarm.insider.tell("keep records")
    swarm.insider.wait_for_event("kept")
    last = swarm.step + 2
    swarm.honest[0].wait_for_step(last)
    swarm.insider.tell("replay")
    answers = swarm.insider.wait_for_event("replayed")
    taken = [kind for kind, stored in answers.items() if isinstance(stored, list) and kind != "own" and any(stored)]
    return f"stored: {', '.join(taken)}" if taken else "no node stored any"


def _claims(name: str, order: str) -> tuple[Attack, Attack]:
    return Attack(name, (order,)), Attack(f"{name}: two of six", (order,), insiders=2)


ATTACKS: tuple[Attack, ...] = (
    Attack("gradients that are no numbers", ("no number",)),
    Attack("infinite gradients", ("infinite",)),
    Attack("1000 times its gradient", ("thousand times",)),
    Attack("-1000 times its gradient", ("thousandfold",)),
    *_claims("the opposite gradient", "opposite"),
    Attack("zeros", ("zeros",)),
    Attack("-3 times its gradient, and zeros of another", ("-3 times",), insiders=2, second=("zeros",)),
    *_claims("20 times its samples claimed", "20 times"),
    *_claims("20 times claimed, and flipped", "20 times, opposite"),
    Attack("a false step", ("step bomb",)),
    Attack("false progress", ("inflation",)),
    Attack("a reducer returns the negative", ("flipped",)),
    Attack("a reducer returns 1.05 times the average", ("a little larger",)),
    Attack("a reducer returns others to some", ("unlike",)),
    Attack("the same, with an attestation for each", ("two accounts",)),
    Attack("frames a reducer: shows what it has not sent", ("frames",)),
    Attack("stalls as a reducer", ("stall",)),
    Attack("a slow reducer: answers a message each five seconds", ("slow",)),
    Attack("refuses as a reducer", ("refuse",)),
    Attack("a reducer counts nothing", ("counts nothing",)),
    Attack("a reducer counts little", ("counts little",)),
    Attack("a reducer counts every second member", ("counts half",)),
    Attack("a reducer counts almost all", ("counts almost all",)),
    Attack("leaves each round from its start", ("leave",)),
    Attack("replayed and forged records", act=replay),
    Attack("twelve devices of a member", ("many devices",), more_devices=MORE_DEVICES),
    Attack("a false sketch", ("false sketch",)),
    Attack("a false beacon", ("false beacon",)),
    *(Attack(f"an outsider with {shows}", act=outside(shows)) for shows in OUTSIDERS),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Let honest swarms train, then attack each of its own; print who was named."""
    options = _options(arguments)
    chosen = [attack for attack in ATTACKS if not options.only or any(word in attack.name for word in options.only)]
    if not chosen:
        sys.exit(
            f"--only {' '.join(options.only)}: no such attack; there are: {', '.join(each.name for each in ATTACKS)}"
        )
    honest: dict[int, list[Outcome]] = {}
    for size in sorted({attack.insiders for attack in chosen}):
        for _ in range(options.honest_runs):
            runs = honest.setdefault(size, [])
            runs.append(run_swarm(Attack("all honest", insiders=size), options.steps))
            _show(runs[-1], runs, options.json)
    outcomes = []
    for attack in chosen:
        outcomes.append(run_swarm(attack, options.steps))
        _show(outcomes[-1], honest[attack.insiders], options.json)
    print(as_json_text(chosen, outcomes, honest) if options.json else as_table(chosen, outcomes, honest))


def _show(outcome: Outcome, honest: Sequence[Outcome], as_json: bool) -> None:
    """Print a row when it is there: all of them take an hour."""
    if not as_json:
        print(" | ".join(_row(outcome, honest)), flush=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argument_parser("What attacks come to in real swarms.")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="attacks with one of these words in their name")
    parser.add_argument("--steps", type=int, default=40, help="of each swarm (default: 40)")
    parser.add_argument("--honest-runs", type=int, default=3, help="swarms without a liar (default: 3)")
    options = parser.parse_args(arguments)
    if options.quick:
        options.steps, options.honest_runs = min(options.steps, QUICK_STEPS), 1
        options.only = options.only or ["a false step"]
    if options.steps <= BEFORE:
        parser.error(f"--steps ({options.steps}) must be above {BEFORE}, after which attacks begin")
    if options.honest_runs < 1:
        parser.error(f"--honest-runs ({options.honest_runs}) must be at least 1")
    return options


def run_swarm(attack: Attack, steps: int) -> Outcome:
    """Let a swarm take so many steps under this attack, or as many as it can in the time."""
    insiders = (INSIDER, SECOND)[: attack.insiders]
    with tempfile.TemporaryDirectory(prefix="attacks-") as folder:
        swarm = _begun(folder, insiders, attack.more_devices)
        try:
            gained = _play(swarm, attack, steps)
            return measured(swarm, attack.name, insiders, gained, steps)
        finally:
            swarm.close()


def _begun(folder: str, insiders: Sequence[str], more_devices: int) -> MemberSwarm:
    """Begin a swarm, and again where a member of it could not join: on a busy machine pings go unanswered."""
    lines = dict.fromkeys(insiders, FAT_LINE) | dict.fromkeys(FOUR, LINE)

    def begin() -> MemberSwarm:
        directory = Path(tempfile.mkdtemp(dir=folder))
        return MemberSwarm(directory, lines, honest=FOUR, insiders=insiders, more_devices=more_devices)

    again = retry_if_exception_type(AssertionError)
    return Retrying(retry=again, stop=stop_after_attempt(ATTEMPTS), reraise=True)(begin)


def _play(swarm: MemberSwarm, attack: Attack, steps: int) -> str:
    _wait_for_step(swarm, BEFORE, time.monotonic() + PATIENCE_S)
    deadline = time.monotonic() + SECONDS_PER_STEP * steps
    for number, insider in enumerate(swarm.insiders):
        for order in attack.orders if number == 0 or attack.second is None else attack.second:
            insider.tell(order)
    gained = "" if attack.act is None else attack.act(swarm)
    _wait_for_step(swarm, steps, deadline)
    return gained


def _wait_for_step(swarm: MemberSwarm, step: int, deadline: float) -> None:
    while swarm.step < step and time.monotonic() < deadline:
        time.sleep(POLL_S)


def measured(swarm: MemberSwarm, name: str, insiders: Sequence[str], gained: str, steps: int) -> Outcome:
    """The outcome so far, from the peers' messages; the last loss is that of this step, or of the last before it."""
    first_told: dict[int, float] = {}
    for said in sorted(_steps(*swarm.honest), key=lambda said: float(said["at"])):
        first_told.setdefault(said["step"], said["at"])
    times = sorted(first_told.values())
    waits = [later - earlier for earlier, later in zip(times, [*times[1:], time.monotonic()], strict=True)]
    courses = [[said["loss"] for said in _steps(peer) if said["step"] <= steps] for peer in swarm.honest]
    first, last = ([losses[place] for losses in courses if losses] for place in (0, -1))
    named, honest_named = Counter[str](), Counter[str]()
    for witness, peer in swarm.witnesses():
        for said in peer.said:
            if said["event"] == "suspicion":
                (named if said["member"] in insiders else honest_named)[f"{said['kind']} by {witness}"] += 1
    credited, true = _credit(swarm)
    return Outcome(
        attack=name,
        steps=swarm.step,
        seconds=times[-1] - times[0] if times else 0.0,
        longest_wait_s=max(waits, default=0.0),
        failed_rounds=sum(
            not said["averaged"] and said["lost_reason"] == "averaging failed" for said in _steps(*swarm.honest)
        ),
        first_loss=statistics.fmean(first) if first else float("nan"),
        last_loss=statistics.fmean(last) if last else float("nan"),
        named=dict(named),
        honest_named=dict(honest_named),
        credited=credited,
        true=true,
        gained=gained,
    )


def _steps(*peers: PeerProcess) -> list[dict[str, Any]]:
    return [said for peer in peers for said in list(peer.said) if said["event"] == "step"]


def _credit(swarm: MemberSwarm) -> tuple[int, int]:
    """Samples of the insiders that the keeper has signed, and those that they brought to the same steps."""
    received = {
        said["step"]: json.loads(read_receipt(said["receipt"]).body)["samples"]
        for said in _steps(swarm.keeper)
        if said["averaged"] and said["receipt"]
    }
    credited = true = 0
    for pseudonym, insider in zip(swarm.pseudonyms, swarm.insiders, strict=False):
        for said in _steps(insider):
            if said["averaged"] and said["step"] in received:
                credited += received[said["step"]].get(pseudonym, 0)
                true += said["samples"]
    return credited, true


HEAD = (
    "attack",
    "loss at start and end",
    "without a liar",
    "steps",
    "longest wait",
    "named",
    "honest named",
    "credited / true",
)


def as_table(chosen: Sequence[Attack], outcomes: Sequence[Outcome], honest: Mapping[int, Sequence[Outcome]]) -> str:
    """Rows of a table in Markdown, as it stands in docs/attacks.md."""
    rows = [HEAD, tuple("---" for _ in HEAD)]
    for size, runs in honest.items():
        rows += [_row(run, runs, f"all honest, {len(FOUR) + size} members") for run in runs]
    rows += [_row(outcome, honest[attack.insiders]) for attack, outcome in zip(chosen, outcomes, strict=True)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(outcome: Outcome, honest: Sequence[Outcome], name: str = "") -> tuple[str, ...]:
    band = sorted(run.last_loss for run in honest)
    named = _counts(outcome.named)
    return (
        name or outcome.attack,
        f"{outcome.first_loss:.2f} to {outcome.last_loss:.2f}",
        f"{band[0]:.2f} to {band[-1]:.2f}",
        f"{outcome.steps} in {outcome.seconds:.0f} s, {outcome.failed_rounds} failed",
        f"{outcome.longest_wait_s:.1f} s",
        "; ".join(filter(None, (named, outcome.gained))) or RULER,
        _counts(outcome.honest_named) or RULER,
        f"{outcome.credited} / {outcome.true}",
    )


def _counts(named: Mapping[str, int]) -> str:
    """Kinds, with the witnesses of each."""
    witnesses: dict[str, list[str]] = {}
    for words in named:
        kind, _, witness = words.partition(" by ")
        witnesses.setdefault(kind, []).append(witness)
    return "; ".join(f"{kind} by {', '.join(found)}" for kind, found in witnesses.items())


def as_json_text(chosen: Sequence[Attack], outcomes: Sequence[Outcome], honest: Mapping[int, Sequence[Outcome]]) -> str:
    """One object for machines."""
    machine = {"platform": platform.platform(), "python": platform.python_version()}
    rows = [asdict(outcome) | {"insiders": attack.insiders} for attack, outcome in zip(chosen, outcomes, strict=True)]
    runs = {str(size): [asdict(run) for run in found] for size, found in honest.items()}
    return json.dumps({"benchmark": "attacks", "machine": machine, "honest": runs, "attacks": rows}, indent=2)


if __name__ == "__main__":
    exit_at_sigterm()
    main()
