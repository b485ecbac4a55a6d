"""More than half of the members decide, and a person is one of them."""

from __future__ import annotations

import pytest

from peer.progress.view import agreed_sketch, agreed_step

SOUND, FALSE = (1.0, 2.0), (9.0, 2.0)


@pytest.mark.parametrize(
    ("claims", "step"),
    [
        ({}, 0),
        ({"a": [4]}, 4),
        ({"a": [4], "b": [9]}, 4),
        ({"a": [4], "b": [5], "c": [10**9]}, 5),
        ({"a": [4], "b": [4], "crowd": [9, 9, 9, 9]}, 4),
        ({"a": [5, 5, 2], "b": [5], "c": [1]}, 5),
    ],
)
def test_most_members_set_the_step(claims: dict[str, list[int]], step: int) -> None:
    """The highest that more than half of them have reached."""
    assert agreed_step(claims) == step


@pytest.mark.parametrize(
    ("sketches", "members", "agreed"),
    [
        ([("a", SOUND), ("b", SOUND), ("c", FALSE)], 3, SOUND),
        ([("a", SOUND), ("b", SOUND)], 4, ()),
        ([("a", SOUND), ("crowd", FALSE), ("crowd", FALSE), ("crowd", FALSE)], 2, ()),
        ([("a", SOUND), ("b", SOUND), ("b", FALSE)], 2, ()),
        ([("a", ()), ("b", SOUND), ("c", SOUND)], 3, SOUND),
        ([], 0, ()),
    ],
)
def test_most_members_confirm_a_state(
    sketches: list[tuple[str, tuple[float, ...]]], members: int, agreed: tuple[float, ...]
) -> None:
    """Half of them are not enough, nor is a member who says two things."""
    assert agreed_sketch(sketches, members) == agreed
