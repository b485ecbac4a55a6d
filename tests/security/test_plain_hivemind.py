"""What attacks on the swarm's course do to plain hivemind: they succeed.

One swarm for all of them, the attack that ends it last. What the same attacks come to here is in `test_course.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.plain_peer import BOMB, POISON, TARGET, PlainPlan, run_claimant, run_donor, run_honest
from tests.security.plain_reducer import AVERAGE, FALSE_DELTAS, ReducerPlan, run_false_reducer
from tests.security.plain_rounds import HONEST, LIARS, RoundsPlan, run_rounds
from tests.security.processes import PeerProcess


class PlainSwarm:
    """Two honest peers that have begun to train."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.peers: list[PeerProcess] = []
        first = PeerProcess(run_honest, PlainPlan(seed=1), directory / "honest-1.log")
        self.peers.append(first)
        self.plan = PlainPlan(first.wait_for_event("joined")["addresses"], seed=2)
        self.honest = [first, self.start(run_honest, "honest-2")]

    def start(self, main: object, name: str) -> PeerProcess:
        """Start a further peer and wait until it has joined."""
        peer = PeerProcess(main, self.plan, self.directory / f"{name}.log")  # type: ignore[arg-type]
        self.peers.append(peer)
        peer.wait_for_event("joined")
        return peer


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainSwarm]:
    """One swarm for all attacks."""
    swarm = PlainSwarm(tmp_path_factory.mktemp("plain"))
    yield swarm
    for peer in swarm.peers:
        peer.kill()


def test_whoever_claims_samples_makes_steps_of_tiny_batches(swarm: PlainSwarm) -> None:
    """A node without a model and with a key that nobody knows lets steps begin on a few of the thousand samples."""
    claimant = swarm.start(run_claimant, "inflation")
    claimant.tell("inflation")
    third_step = swarm.honest[0].wait_for(lambda said: said["event"] == "microbatch" and said["step"] >= 3)
    assert third_step["computed"] < TARGET
    claimant.tell("nothing")


def test_newcomers_copy_whoever_claims_the_highest_priority(swarm: PlainSwarm) -> None:
    """The donor's parameters are taken as they are."""
    donor = swarm.start(run_donor, "donor")
    newcomer = swarm.start(run_honest, "newcomer")
    assert newcomer.wait_for_event("microbatch")["bias"] == pytest.approx(POISON, rel=0.1)
    donor.kill()
    newcomer.kill()


def test_one_claim_of_an_enormous_step_ends_training(swarm: PlainSwarm) -> None:
    """Everybody discards all gradients from then on and waits for a state that never comes."""
    bomber = swarm.start(run_claimant, "bomber")
    bomber.tell("step bomb")
    honest = swarm.honest[0]
    hit = honest.wait_for(lambda said: said["event"] == "microbatch" and said["swarm_step"] == BOMB)
    for _ in range(5):
        later = honest.wait_for_event("microbatch")
        assert (later["accumulated"], later["step"]) == (0, hit["step"])


def test_one_sender_makes_the_average(tmp_path: Path) -> None:
    """Of 1, 3 and 5, of which the average is 3, comes what the liar wants, by whatever weight or numbers it names."""
    weights, values = ["huge weight", "negative weight", "no weight"], ["no number", "infinite", "thousandfold"]
    attacks = ["nothing", *weights, *values, "opposite"]
    rounds = PeerProcess(run_rounds, RoundsPlan(attacks), tmp_path / "rounds.log")
    try:
        came: dict[str, list[float]] = {}
        for _ in attacks:
            said = rounds.wait_for_event("averaged")
            came[said["attack"]] = said["values"]
    finally:
        rounds.kill()
    assert came["nothing"] == pytest.approx([3.0] * 9)
    assert pytest.approx(LIARS) in came["huge weight"]  # the liar's alone
    assert pytest.approx((sum(HONEST) - 1.5 * LIARS) / 0.5) in came["negative weight"]
    assert any(map(math.isnan, came["no weight"]))
    assert any(map(math.isnan, came["no number"]))
    assert not all(map(math.isfinite, came["infinite"]))
    assert pytest.approx((sum(HONEST) - 1000 * LIARS) / 3) in came["thousandfold"]
    assert pytest.approx((sum(HONEST) - LIARS) / 3) in came["opposite"]


def test_everybody_takes_what_a_reducer_returns(tmp_path: Path) -> None:
    """No numbers, averages of the wrong sign, or other ones to each: nothing is looked at, and nobody is named."""
    peer = PeerProcess(run_false_reducer, ReducerPlan(list(FALSE_DELTAS)), tmp_path / "rounds.log")
    try:
        held = {said["attack"]: said["held"] for said in (peer.wait_for_event("averaged") for _ in FALSE_DELTAS)}
    finally:
        peer.kill()
    assert all(any(map(math.isnan, values)) for values in held["not finite"])
    assert all(any(abs(value - AVERAGE) > 1.0 for value in values) for values in held["flipped"])
    assert held["unlike"][0] != held["unlike"][1]
