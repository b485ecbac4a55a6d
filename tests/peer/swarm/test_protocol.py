"""One step, one average: all that may happen to a small swarm, by the product's own quorums and rulings.

Each search visits every world that may come of a keeper and a few trainers, whatever peers they see or miss, which
rounds fail for whom, whom rulings reach, and who dies and returns. docs/training.md says what is promised, and when.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from peer.node.quorum import KnownAverages, Quorum
from tests.support.small_swarms import (
    KEEPER,
    Bounds,
    Rules,
    Search,
    World,
    begin,
    goes_on,
    is_split,
)

RULES = Rules()
CALM = Bounds(deaths=0)
KEEPERS = frozenset({KEEPER})


def is_stuck(world: World, rules: Rules) -> bool:
    """Whether no round is under way, and yet not all come to one state once all see all."""
    return not (any(peer.runs for peer in world.living) or goes_on(world, rules))


def fault_in(
    first: World,
    bounds: Bounds,
    rules: Rules = RULES,
    is_fault: Callable[[World, Rules], bool] = lambda world, _: is_split(world.living),
) -> list[str]:
    """The shortest way to such a fault, by default that one step has two averages; empty if there is none."""
    search = Search(rules, bounds)
    return next((search.story(world) for world in search.worlds(first) if is_fault(world, rules)), [])


@pytest.mark.parametrize(
    ("first", "bounds"),
    [
        (begin(2), Bounds()),
        (begin(1, newcomers=1), Bounds()),
        pytest.param(begin(1, newcomers=1), Bounds(deaths=2), marks=pytest.mark.thorough),
        pytest.param(begin(2), Bounds(deaths=2), marks=pytest.mark.thorough),
        pytest.param(begin(2), Bounds(deaths=2, unseen=True), marks=pytest.mark.thorough),
        pytest.param(begin(2), Bounds(steps=2), marks=pytest.mark.thorough),
        pytest.param(begin(3), CALM, marks=pytest.mark.thorough),
        pytest.param(begin(3, voters="abc"), CALM, marks=pytest.mark.thorough),
    ],
)
def test_no_step_has_two_averages(first: World, bounds: Bounds) -> None:
    """Among all who are there."""
    assert fault_in(first, bounds) == []


def test_the_steps_of_the_dead_count_until_they_are_taken_for_gone() -> None:
    """They may have taken a step that nobody else has."""
    patient = replace(RULES, takes_for_gone=False)
    assert fault_in(begin(2), Bounds(deaths=2, returns=False), patient, lambda world, _: is_split(world.peers)) == []


def test_everybody_goes_on_together_once_the_keeper_is_back() -> None:
    """From every world in which no round is under way, once all see all."""
    assert fault_in(begin(2), CALM, is_fault=is_stuck) == []


def test_a_keeper_that_has_lost_what_it_held_does_not_follow_the_one_that_took_the_step() -> None:
    """One of several members may lie; docs/training.md names the limit."""
    assert fault_in(begin(2), Bounds(), is_fault=is_stuck)


def test_who_misses_a_ruling_would_wait_for_ever_without_certificates() -> None:
    """One voter that has gone on is not enough to follow."""
    assert fault_in(begin(2), CALM, Rules(shows_certificates=False), is_stuck)


class PresentQuorum(Quorum):
    """Most of the voters that are there, with or without the keeper."""

    def is_in(self, peers: Collection[str]) -> bool:
        return self.voters == self.gone or self._are_most(peers, self.voters - self.gone)


def without_absent(leader: Any, held: Any, holders: Any, here: Any, members: Any, *, is_led: bool) -> set[str]:
    """The possible holders among those who are there, of rounds that the leader has led, or of others."""
    possible = KnownAverages.possible_holders(leader, held, holders, here, members)
    is_weak = (leader.led.group_id == held.group_id) == is_led
    return possible & {*here, leader._own} if is_weak else possible


@pytest.mark.parametrize(
    ("first", "bounds", "weaker"),
    [
        pytest.param(
            begin(2),
            Bounds(deaths=2, unseen=True),
            Rules(quorum=lambda voters, gone: PresentQuorum(voters, gone, KEEPERS)),
            id="the gone without the keeper",
        ),
        pytest.param(begin(2), CALM, Rules(confirms=False), id="no confirmation"),
        pytest.param(
            begin(2),
            CALM,
            Rules(possible=partial(without_absent, is_led=True)),
            id="a round's leader without absent members",
        ),
        pytest.param(
            begin(2),
            CALM,
            Rules(possible=partial(without_absent, is_led=False)),
            id="another leader without absent voters",
        ),
        pytest.param(begin(2), CALM, Rules(averages_no_more=False), id="averages given up"),
        pytest.param(begin(2), Bounds(), Rules(only_holders_certify=False), id="certificates of leaders"),
        pytest.param(begin(2), Bounds(), Rules(heeds_later_steps=False), id="steps taken again"),
    ],
)
def test_the_model_notices_a_weaker_rule(first: World, bounds: Bounds, weaker: Rules) -> None:
    """Each of them lets two groups take one step."""
    assert fault_in(first, bounds, weaker)
