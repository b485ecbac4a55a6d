"""Milestones in words, and which of them share a mark; pure."""

from __future__ import annotations

import pytest

from coordinator.milestones import Kind, Milestone
from coordinator.web.milestone_marks import MilestoneTexts, groups
from coordinator.web.overview_page import curve_texts
from coordinator.web.translations import texts_of


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (Kind.FIRST_STEP, 1, "The first global step"),
        (Kind.SAMPLES, 10_000_000, "10,000,000 samples"),
        (Kind.DEVICES, 20, "Record: 20 devices in one step"),
        (Kind.LOSS, 4.5, "Record: loss on held-out text below 4.5"),
    ],
)
def test_each_kind_has_its_words(kind: Kind, value: float, words: str) -> None:
    """Without a language they are those of the English pages."""
    milestone = Milestone(kind, value, 7, 0.0)
    assert MilestoneTexts().of(milestone) == (7, words)
    assert curve_texts(texts_of("en")).milestones.of(milestone) == (7, words)
    assert curve_texts(texts_of("es")).milestones.of(milestone)[1] != words


def test_close_ones_share_a_mark() -> None:
    """Those at most so many steps after a group's first; a long row of close ones is more than one group."""
    told = [(step, str(step)) for step in (1, 1, 4, 10, 13, 16, 19, 22)]
    steps = [[step for step, _ in group] for group in groups(told, 10)]
    assert steps == [[1, 1, 4, 10], [13, 16, 19, 22]]
    assert groups([], 10) == []
    assert [len(group) for group in groups(told[:2], 0)] == [2]
    assert [len(group) for group in groups(told, 0.5)] == [2, 1, 1, 1, 1, 1, 1]
