"""Each branch of the decision on a peer's next move, who leads its group, and the pause between downloads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.node.quorum import Quorum
from peer.progress.decision import (
    FULL_GROUP_ATTEMPTS,
    LONG_S,
    MOST_CANDIDATES,
    MOST_PAUSE_S,
    REFUSED_PAUSE_S,
    DownloadPause,
    Move,
    Situation,
    candidates,
    decide,
    longest_hold_s,
    may_average_alone,
    required_group_size,
    samples_at_once,
)
from tests.support.clocks import Clock

READY = Situation(step=4, swarm_step=4, is_full=True)
BEHIND = replace(READY, swarm_step=6)


@pytest.mark.parametrize(
    ("situation", "move"),
    [
        (READY, Move.AVERAGE),
        (replace(BEHIND, is_too_slow=True), Move.STAND_BY),
        (replace(READY, is_full=False), Move.ACCUMULATE),
        (replace(READY, is_full=False, remaining_s=0.9, microbatch_s=2.0, may_hold=True), Move.HOLD),
        (replace(READY, is_full=False, remaining_s=1.0, microbatch_s=2.0, may_hold=True), Move.ACCUMULATE),
        (replace(READY, is_full=False, remaining_s=0.9, microbatch_s=2.0), Move.ACCUMULATE),
        (replace(READY, remaining_s=0.0, microbatch_s=2.0, may_hold=True), Move.AVERAGE),
        (replace(READY, is_held=True), Move.ACCUMULATE),
        (replace(READY, is_leaving=True), Move.ACCUMULATE),
        (replace(READY, may_overlap=True), Move.AVERAGE_BESIDE),
        (replace(READY, is_full=False, may_set_aside=True, microbatch_s=LONG_S), Move.AVERAGE_BESIDE),
        (replace(READY, is_full=False, may_set_aside=True, microbatch_s=0.9 * LONG_S), Move.ACCUMULATE),
        (replace(READY, is_full=False, may_overlap=True, microbatch_s=LONG_S), Move.ACCUMULATE),
        (replace(READY, has_drifted=True), Move.DOWNLOAD),
        (replace(READY, is_undone=True), Move.DOWNLOAD),
        (replace(READY, swarm_step=3), Move.AVERAGE),
        (BEHIND, Move.FOLLOW),
        (replace(BEHIND, is_held=True, is_full=False), Move.FOLLOW),
        (replace(BEHIND, can_follow=False), Move.DOWNLOAD),
        (replace(BEHIND, is_undone=True), Move.DOWNLOAD),
        (replace(BEHIND, may_download=False), Move.FOLLOW),
        (replace(BEHIND, may_download=False, can_follow=False), Move.WAIT),
        (replace(READY, may_download=False, has_drifted=True), Move.WAIT),
        (replace(READY, may_download=False, is_undone=True), Move.WAIT),
    ],
)
def test_the_move_fits_the_situation(situation: Situation, move: Move) -> None:
    """The state comes before the batch, and what the operator wants before what the swarm could do."""
    assert decide(situation)[0] is move


def test_downloads_that_bring_no_step_are_further_and_further_apart() -> None:
    """Each takes the donors' lines; a step that was taken with the others ends that."""
    clock = Clock()
    pause, waits = DownloadPause(clock), list[float]()
    for _ in range(7):
        began = clock.now
        while not pause.is_over:
            clock.now += 1.0
        waits.append(clock.now - began)
        pause.begin(20.0)
    assert waits == [0.0, 20.0, 40.0, 80.0, 160.0, MOST_PAUSE_S, MOST_PAUSE_S]
    pause.end()
    assert pause.is_over


def test_a_donor_without_a_place_is_asked_again_soon() -> None:
    """However often it has had none."""
    clock = Clock()
    pause = DownloadPause(clock)
    for _ in range(9):
        pause.begin(None)
        assert not pause.is_over
        clock.now += REFUSED_PAUSE_S
        assert pause.is_over


@pytest.mark.parametrize(
    ("usual_s", "missing", "faster_rate", "seconds"),
    [(100.0, 4, 0.0, 1.5), (100.0, 4, 2.0, 3.5), (100.0, 40, 2.0, 10.0), (2.0, 4, 2.0, 0.2), (0.0, 4, 2.0, 0.0)],
)
def test_the_last_samples_are_waited_for_in_the_order_of_speed(
    usual_s: float, missing: int, faster_rate: float, seconds: float
) -> None:
    """The fastest peer waits only for reports, the others for it; nobody for more than a tenth of a usual step."""
    assert longest_hold_s(usual_s, 0.5, missing, faster_rate) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("rate", "usual_s", "samples"),
    [
        (0.5, 100.0, 10),
        (0.9, 100.0, 20),
        (0.1, 100.0, 2),
        (0.01, 100.0, 1),
        (10.0, 100.0, 20),
        (0.0, 100.0, 20),
        (0.1, 0.0, 20),
    ],
)
def test_a_microbatch_takes_at_most_a_quarter_of_a_step(rate: float, usual_s: float, samples: int) -> None:
    """Halved until it does, down to one sample; whole where the device's speed or the step's length is unknown."""
    assert samples_at_once(20, rate, usual_s) == samples


@pytest.mark.parametrize(
    ("attempts", "has_waited", "size"),
    [(0, False, 5), (FULL_GROUP_ATTEMPTS - 1, False, 5), (FULL_GROUP_ATTEMPTS, False, 3), (0, True, 3)],
)
def test_a_group_needs_all_at_first_and_then_most(attempts: int, has_waited: bool, size: int) -> None:
    """After some failures or a long wait one that does not come stops nobody."""
    assert required_group_size(5, attempts, has_waited) == size


@pytest.mark.parametrize(
    ("voters", "samples", "alone"),
    [(["own"], 64, True), (["own"], 63, False), (["other"], 64, False), (["own", "other", "third"], 64, False)],
)
def test_who_is_most_of_the_voters_steps_alone(voters: list[str], samples: int, alone: bool) -> None:
    """With a whole batch."""
    assert may_average_alone("own", Quorum(frozenset(voters)), samples, 64) is alone


PEERS = [f"Qm{number}" for number in range(100)]


def test_the_keeper_leads() -> None:
    """Alone, whoever else is there; several in an order that all see."""
    assert candidates({"keeper"}, {"keeper", *PEERS}, "run", (0, 4)) == ("keeper",)
    assert candidates({"b", "a"}, PEERS, "run", (0, 4)) == candidates(["a", "b"], [], "run", (1, 9)) == ("a", "b")
    assert candidates([], [], "run", (0, 4)) == ()


def test_without_the_keeper_all_choose_the_same_leaders() -> None:
    """A few of those at the step, whatever the order in which a peer has heard of them; a newcomer changes little."""
    assert candidates((), PEERS[1:5], "run", (0, 4)) == ("Qm2", "Qm4", "Qm3", "Qm1")  # in every process
    chosen = candidates((), PEERS, "run", (0, 4))
    assert len(chosen) == len(set(chosen)) == MOST_CANDIDATES
    assert chosen == candidates(frozenset(), frozenset(reversed(PEERS)), "run", (0, 4))
    for lost in chosen:
        left = candidates((), [peer for peer in PEERS if peer != lost], "run", (0, 4))
        assert left[:-1] == tuple(peer for peer in chosen if peer != lost)


def test_each_step_has_other_leaders() -> None:
    """So does each era and each run; over time everybody leads about as often."""
    places = [("run", (0, 4)), ("run", (0, 5)), ("run", (1, 4)), ("other", (0, 4))]
    assert len({candidates((), PEERS, run, position) for run, position in places}) == len(places)
    leaders = [candidates((), PEERS[:4], "run", (0, step))[0] for step in range(1000)]
    assert all(200 < leaders.count(peer) < 300 for peer in PEERS[:4])
