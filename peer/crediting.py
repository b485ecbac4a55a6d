"""How many of the samples that a device claims count: as many as others confirm by their receipts.

Pure, and in one place: the coordinator counts by it, and `manyhands verify` recomputes by it what was published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low


@dataclass(frozen=True)
class Word:
    """What one receipt says of one device."""

    member: str  # whose device signed it
    is_keeper: bool
    samples: int  # 0 if it does not name the device


def newcomer_share(members: int, least: float) -> float:
    """The share of a batch that a member without credit may fill: twice a fair one, or `least`, where that is more."""
    return min(1.0, max(2.0 / max(1, members), least))


def credited(claim: int, member: str, words: Sequence[Word]) -> int | None:
    """How many samples of this member's claim count; None as long as nobody has said anything that matters.

    The keeper's word suffices alone: it is the operator's own, and whoever runs the run must believe it anyway. Without
    it the median of what *other* members' devices received decides, so a single liar among three neither gives nor
    takes anything; of two the smaller counts. What a member's own devices say of each other is no evidence. Nobody is
    credited with more than was claimed.
    """
    keepers = [word.samples for word in words if word.is_keeper]
    others = [word.samples for word in words if not word.is_keeper and word.member != member]
    evidence = keepers or others
    if claim == 0:
        return 0
    return min(claim, median_low(evidence)) if evidence else None


def disproved(claim: int, member: str, words: Sequence[Word], believed: float) -> bool:
    """Whether a claim is so plainly larger than what was received that its member is to be named.

    By the keeper, or by most of the others and two at least: one member's word against another's is none. A receipt
    says how much counted: of more a reducer may have cut what exceeds its caps, which are no less than is `believed` of
    anybody.
    """
    least = min(claim, believed)
    keepers = [word.samples < least for word in words if word.is_keeper]
    others = [word.samples < least for word in words if not word.is_keeper and word.member != member]
    return all(keepers) if keepers else sum(others) >= 2 and 2 * sum(others) > len(others)
