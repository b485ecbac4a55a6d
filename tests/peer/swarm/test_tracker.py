"""What a peer knows of the swarm's progress when its own state changes; real swarms are in tests/system."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from peer.swarm.tracker import StepTracker


@pytest.mark.parametrize(("era", "known"), [(1, (23, 40)), (2, (5, 0))])
def test_a_return_to_a_checkpoint_takes_the_swarms_progress_back(era: int, known: tuple[int, int]) -> None:
    """Otherwise this peer would take itself to be behind, and fetch the very state that was undone."""
    begun: list[int] = []
    tracker = SimpleNamespace(
        era=1,
        global_progress=SimpleNamespace(epoch=23, samples_accumulated=40),
        update_epoch=lambda new_epoch: begun.append(new_epoch),
    )
    StepTracker.begin_step_after(tracker, 5, era)  # type: ignore[arg-type]
    assert (tracker.global_progress.epoch, tracker.global_progress.samples_accumulated) == known
    assert (tracker.era, begun) == (era, [5])
