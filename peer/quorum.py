"""What more than half of the members say. A person has one vote, however many devices it brings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median_low

from peer.sketch import Sketch, drifted


def agreed_step(claims: Mapping[str, Sequence[int]]) -> int:
    """The highest step that more than half of the members have reached, each with more than half of its devices.

    `claims` has the steps of each member's devices; 0 if there are none.
    """
    votes = [median_low(steps) for steps in claims.values() if steps]
    return median_low(votes) if votes else 0


def agreed_sketch(sketches: Iterable[tuple[str, Sketch]], members: int) -> Sketch:
    """The sketch that more than half of `members` report, each with all of its devices; empty if there is none.

    `sketches` are (member, sketch) of the devices at one step.
    """
    reported = [(member, sketch) for member, sketch in sketches if sketch]
    for _, candidate in reported:
        others = {member for member, sketch in reported if drifted(sketch, candidate)}
        supporters = {member for member, _ in reported} - others
        if 2 * len(supporters) > members:
            return candidate
    return ()
