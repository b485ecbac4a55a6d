"""The benchmark of attacks: what peers say becomes a row."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.trust.attacks import ATTACKS, as_table, main, measured
from tests.security import member_swarm as staging
from tests.security.member_swarm import INSIDER, MemberSwarm
from tests.support.receipts import pseudonym_of, receipt_by

Said = dict[str, Any]


@dataclass
class Peer:
    """A peer that has said all that it will."""

    said: list[Said] = field(default_factory=list)


def step(at: float, number: int, loss: float, samples: int = 8, receipt: str = "", averaged: bool = True) -> Said:
    """An attempt at a step."""
    lost = "" if averaged else "averaging failed"
    facts = {"samples": samples, "loss": loss, "averaged": averaged, "receipt": receipt, "lost_reason": lost}
    return {"event": "step", "at": at, "step": number} | facts


def suspicion(member: str, kind: str) -> Said:
    """A word against a member."""
    return {"event": "suspicion", "at": 0.0, "member": member, "kind": kind}


@pytest.fixture
def swarm() -> MemberSwarm:
    """Two honest members, of whom one is accused falsely, and an insider who is credited with twice its samples."""
    receipt = receipt_by("keeper", 2, {"ada-1": 16})
    keeper = Peer([step(3.0, 2, 4.0, 0, receipt), suspicion(INSIDER, "weight"), suspicion("alice", "reduction")])
    alice = Peer([step(1.0, 1, 5.0), step(3.0, 2, 4.0), suspicion(INSIDER, "weight")])
    bob = Peer([step(1.5, 1, 5.0), step(2.0, 1, 5.0, averaged=False), step(9.0, 3, 3.0)])
    made = SimpleNamespace(
        keeper=keeper,
        honest=[alice, bob],
        insiders=[Peer([step(1.0, 1, 5.0), step(3.0, 2, 4.0)])],
        pseudonyms=[pseudonym_of("ada-1")],
        step=3,
        witnesses=lambda: [("keeper", keeper), ("alice", alice), ("bob", bob)],
    )
    return cast(MemberSwarm, made)


def test_a_row_says_who_was_named_and_what_it_cost(swarm: MemberSwarm) -> None:
    """Insiders and honest members apart; a step's wait is from when the first has told of either."""
    outcome = measured(swarm, "an attack", (INSIDER,), "", 3)
    assert outcome.named == {"weight by keeper": 1, "weight by alice": 1}
    assert outcome.honest_named == {"reduction by keeper": 1}
    assert (outcome.credited, outcome.true) == (16, 8)
    assert (outcome.first_loss, outcome.last_loss) == (5.0, 3.5)
    assert (outcome.failed_rounds, outcome.seconds) == (1, 8.0)
    assert outcome.longest_wait_s >= 6.0


def test_the_table_has_the_band_of_honest_runs(swarm: MemberSwarm) -> None:
    """Each row stands beside the final losses of the same swarm without a liar."""
    outcome = measured(swarm, ATTACKS[0].name, (INSIDER,), "gained nothing", 2)
    table = as_table(ATTACKS[:1], [outcome], {1: [outcome]})
    assert "| 5.00 to 4.50 | 4.50 to 4.50 |" in table.splitlines()[-1]
    assert "weight by keeper, alice; gained nothing" in table


@pytest.mark.parametrize("options", [("--steps", "2"), ("--honest-runs", "0")])
def test_a_swarm_that_cannot_be_is_refused(options: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """With the option's name."""
    with pytest.raises(SystemExit):
        main(options)
    assert f"{options[0]} (" in capsys.readouterr().err


def test_an_attack_that_does_not_exist_is_refused() -> None:
    """With the names of those that do."""
    with pytest.raises(SystemExit, match="a false beacon"):
        main(["--only", "earthquake"])


def test_every_order_is_staged() -> None:
    """An insider that does not know what it is told would be honest, and the table wrong."""
    staged = "".join(path.read_text() for path in Path(staging.__file__).parent.glob("[!t]*.py"))
    orders = {order for attack in ATTACKS for order in attack.orders}
    assert {order for order in orders if f'"{order}"' not in staged} == set()
