"""Each branch of the decision on a peer's next move."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.swarm.decision import Move, Situation, decide

READY = Situation(step=4, swarm_step=4, is_full=True)
BEHIND = replace(READY, swarm_step=6)


@pytest.mark.parametrize(
    ("situation", "move"),
    [
        (READY, Move.AVERAGE),
        (replace(READY, is_full=False), Move.ACCUMULATE),
        (replace(READY, is_held=True), Move.ACCUMULATE),
        (replace(READY, is_leaving=True), Move.ACCUMULATE),
        (replace(READY, may_overlap=True), Move.AVERAGE_BESIDE),
        (replace(READY, may_overlap=True, others_arrive=True), Move.ACCUMULATE),
        (replace(READY, others_arrive=True), Move.AVERAGE),
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


def test_each_reason_is_named() -> None:
    """So that the log tells one download from another."""
    reasons = {
        decide(situation)[1]
        for situation in (
            replace(READY, has_drifted=True),
            replace(READY, is_undone=True),
            replace(BEHIND, can_follow=False),
        )
    }
    assert len(reasons) == 3
