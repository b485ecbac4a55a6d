"""One step, one average: all that may happen to a small swarm, by the product's own rules.

Each search visits every world that may come of a keeper and a few trainers, whatever records they see or miss, who dies
and returns, and which groups average. docs/training.md says what is promised, and when.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from peer.swarm.decision import NEVER, Move, Situation, decide
from peer.swarm.view import SwarmView
from tests.support.small_swarms import Bounds, Rules, Search, begin, settle

pytestmark = pytest.mark.usefixtures("no_suspicions")
ONE_STEP = Bounds(last_step=2, deaths=1)
TWO_STEPS = Bounds(last_step=3, deaths=1)
TODAY = Rules()  # the product's, for all searches: it remembers what a peer may do that sees a world so


@pytest.fixture
def no_suspicions(caplog: pytest.LogCaptureFixture) -> None:
    """The log has no place for what each of a hundred thousand looks finds."""
    caplog.set_level("ERROR", logger="peer.reporting.suspicions")


def fault_in(trainers: int, bounds: Bounds, rules: Rules = TODAY) -> list[str]:
    """The shortest way to a world in which one step has two averages; empty if there is none."""
    search = Search(rules, bounds)
    for world in search.worlds(begin(trainers)):
        if world.is_split or world.is_astray:
            return search.story(world)
    return []


@pytest.mark.parametrize(
    ("trainers", "bounds"),
    [
        (2, TWO_STEPS),
        (3, ONE_STEP),
        (4, ONE_STEP),
        pytest.param(3, TWO_STEPS, marks=pytest.mark.thorough),
        pytest.param(2, replace(TWO_STEPS, deaths=2), marks=pytest.mark.thorough),
    ],
)
def test_no_step_has_two_averages(trainers: int, bounds: Bounds) -> None:
    """Where a round brings its average to all members that outlive it, whatever records its members see."""
    assert fault_in(trainers, bounds) == []


@pytest.mark.parametrize(("trainers", "bounds"), [(2, TWO_STEPS), (3, ONE_STEP)])
def test_everybody_comes_into_one_step_once_records_arrive_and_the_keeper_is_back(
    trainers: int, bounds: Bounds
) -> None:
    """From every world, also from those in which nobody may take a step without the keeper."""
    for world in Search(TODAY, bounds).worlds(begin(trainers)):
        assert settle(world, TODAY).is_together, world


@pytest.mark.parametrize(
    "bounds",
    [
        replace(ONE_STEP, endings="some"),
        pytest.param(replace(TWO_STEPS, endings="some"), marks=pytest.mark.thorough),
        pytest.param(replace(TWO_STEPS, deaths=2), marks=pytest.mark.thorough),
    ],
)
def test_a_swarm_that_confirms_no_state_needs_an_operator(bounds: Bounds) -> None:
    """The keeper lost two rounds that others won: they are further, differ, and so no majority confirms a state."""
    worlds = list(Search(TODAY, bounds).worlds(begin(2)))
    assert all(settle(world, TODAY, goes_back=True).is_together for world in worlds)
    stuck = [settled for world in worlds if not (settled := settle(world, TODAY)).is_together]
    assert stuck
    assert all(peer.strays for world in stuck for peer in world.peers[1:])


@pytest.mark.parametrize("trainers", [2, 3])
def test_who_alone_won_a_round_beside_the_keeper_is_left_to_the_keepers_word(trainers: int) -> None:
    """A round may end well for some only: then the keeper's average is the one of all who are not found to differ."""
    assert fault_in(trainers, replace(ONE_STEP, deaths=0, endings="some")) == []


def test_without_the_keeper_a_round_that_some_lost_may_lead_to_two_averages() -> None:
    """They may form another majority before they see that the step is taken; docs/training.md names the exception."""
    story = fault_in(3, replace(ONE_STEP, endings="some"))
    assert story[1::2][:-1] == ["the keeper dies", "A, B average, A take the step, B fail"]


def half(view: SwarmView, has_keeper: bool, is_taken: bool) -> int:
    """Half of all who live instead of more than half."""
    return NEVER if has_keeper or is_taken else max(2, view.live // 2)


def beside_the_keeper(view: SwarmView, has_keeper: bool, is_taken: bool) -> int:
    """A majority, though the keeper is there."""
    return NEVER if is_taken else view.live // 2 + 1


def of_this_step(view: SwarmView, has_keeper: bool, is_taken: bool) -> int:
    """More than half of those at this step instead of all who live."""
    return NEVER if has_keeper or is_taken else view.averaging // 2 + 1


def of_one_look(view: SwarmView, has_keeper: bool, is_taken: bool) -> int:
    """More than half of those in the last look, which may have missed some."""
    return NEVER if has_keeper or is_taken else sum(count for _, _, count in view.census) // 2 + 1


def taken_or_not(view: SwarmView, has_keeper: bool, is_taken: bool) -> int:
    """A majority takes a step that others have taken already."""
    return NEVER if has_keeper else view.live // 2 + 1


@pytest.mark.parametrize(
    ("trainers", "bounds", "weaker"),
    [
        pytest.param(4, ONE_STEP, Rules(keeperless=half), id="half"),
        pytest.param(2, ONE_STEP, Rules(keeperless=beside_the_keeper), id="beside the keeper"),
        pytest.param(4, ONE_STEP, Rules(keeperless=of_this_step), id="of this step"),
        pytest.param(4, ONE_STEP, Rules(keeperless=of_one_look), id="of one look"),
        pytest.param(3, ONE_STEP, Rules(keeperless=taken_or_not), id="taken or not"),
        pytest.param(2, ONE_STEP, Rules(waits_for_late_keeper=False), id="no wait for the keeper"),
        pytest.param(
            2,
            ONE_STEP,
            Rules(may_step_alone=lambda view, late: view.averaging <= 1 and not late),
            id="alone beside others",
        ),
        pytest.param(
            2, ONE_STEP, Rules(may_step_alone=lambda view, late: view.averaging <= 1 >= view.live), id="alone at once"
        ),
        pytest.param(2, TWO_STEPS, Rules(meets_at_one_step=False), id="of any step"),
    ],
)
def test_the_model_notices_a_weaker_rule(trainers: int, bounds: Bounds, weaker: Rules) -> None:
    """Each of them lets two groups take one step, or a group go on beside the keeper."""
    assert fault_in(trainers, bounds, weaker)


def deaf_to(what: str) -> Callable[[Situation], tuple[Move, str]]:
    """The decision of a peer that does not heed one fact."""
    return lambda now: decide(replace(now, **{what: False}))


@pytest.mark.parametrize("fact", ["has_drifted", "is_undone"])
def test_the_model_notices_peers_that_never_find_themselves_apart(fact: str) -> None:
    """They would stay with a state that is not the swarm's."""
    rules = Rules(decide=deaf_to(fact))
    assert not all(settle(world, rules).is_together for world in Search(rules, ONE_STEP).worlds(begin(2)))
