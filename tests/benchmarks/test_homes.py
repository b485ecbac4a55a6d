"""The benchmarks of homes: when a batch was full, and who took the step."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.swarm.scale import Step, full_batch_at, steps_between

TARGET = 4
Said = dict[str, Any]


def computed(at: float, samples: int) -> Said:
    """A peer has computed so many samples in all."""
    return {"event": "computed", "at": at, "computed": samples}


def step(at: float, number: int, samples: int, in_all: int, group: int = 3) -> Said:
    """It has taken a step, with so many of its samples."""
    return {"event": "step", "at": at, "step": number, "samples": samples, "group": group, "computed": in_all}


def lost(at: float, samples: int, in_all: int) -> Said:
    """So many of them are lost."""
    return {"event": "lost", "at": at, "by_cause": {"late": samples}, "computed": in_all}


def test_a_batch_is_full_with_what_was_computed_since_the_step_before() -> None:
    """Samples that were left over count when their peer has taken the step before."""
    one = [computed(1.0, 3), step(2.0, 1, 2, 3), computed(4.0, 4), step(9.0, 2, 2, 4)]
    other = [computed(1.0, 2), step(3.0, 1, 2, 2), computed(5.0, 3), computed(6.0, 4), step(8.0, 2, 2, 4)]
    assert full_batch_at([one, other], 1, TARGET) == 6.0
    assert list(steps_between([one, other], TARGET, 7.0, 8.5)) == [Step(3, 2, 3.0)]
    assert list(steps_between([one, other], TARGET, 0.0, 7.0)) == []


def test_lost_samples_fill_no_batch() -> None:
    """Nor does what a peer computes that has not taken the step before."""
    one = [step(2.0, 1, 0, 2), lost(2.0, 2, 2), computed(3.0, 5), lost(4.0, 3, 5), computed(5.0, 6), computed(6.0, 9)]
    behind = [computed(3.0, 9)]
    assert full_batch_at([one, behind], 1, TARGET) == 6.0
    assert full_batch_at([one, behind], 1, TARGET + 1) is None
    assert full_batch_at([behind], 1, TARGET) is None


@pytest.mark.parametrize("groups", [(3, 2), (2, 3)])
def test_of_several_groups_the_largest_is_told(groups: tuple[int, int]) -> None:
    """In plain hivemind one step may have several."""
    peers = [[step(1.0, 1, 0, 0), computed(2.0, 2), step(3.0, 2, 2, 2, group)] for group in groups]
    assert list(steps_between(peers, TARGET, 0.0, 9.0)) == [Step(3, 2, 1.0)]
