"""When words against a device are enough to cut it off: a pure decision over what was said and by whom.

The keeper is the operator's own, so its word counts alone. A member's is a member's word against another's: strikes
count only as far as they remain whichever one of the members is left out, so nobody, with however many devices, gets
another's device cut off alone. What several notice within a minute is one strike; what nobody can prove is none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from peer.suspicion import UNPROVEN

INCIDENT_S = 45.0  # less than peers wait before they say the same again (peer.suspicion)
MEMBERS_SHARE = 4  # one of so many active devices may be in quarantine by the words of members at a time


@dataclass(frozen=True)
class Policy:
    """How much it takes; settings.yaml."""

    strikes: int = 3  # 0: nobody is cut off by itself
    window_s: float = 3600.0


@dataclass(frozen=True)
class Word:
    """What a device was said to have done."""

    at: float  # Unix seconds
    witness: str | None  # the member whose device said it; None: the keeper
    kind: str


@dataclass(frozen=True)
class Verdict:
    """That a device is to be cut off, why, and whether the keeper's words alone suffice for it."""

    reason: str
    by_keeper: bool


def incidents(words: Iterable[Word]) -> list[str]:
    """The kinds of the events behind the words: those of one kind, begun at most so long before, are one event."""
    found: list[str] = []
    began: dict[str, float] = {}
    for word in sorted(words, key=lambda word: word.at):
        if word.at > began.get(word.kind, float("-inf")) + INCIDENT_S:
            began[word.kind] = word.at
            found.append(word.kind)
    return found


def strikes(words: Sequence[Word]) -> int:
    """How many remain, whichever one of the members is left out."""
    members = {word.witness for word in words if word.witness is not None}
    without = [len(incidents(word for word in words if word.witness != left_out)) for left_out in members]
    return min(without, default=len(incidents(words)))


def decide(words: Iterable[Word], policy: Policy, members_may: bool, now: float) -> Verdict | None:
    """Whether the words of others against a device suffice; `members_may`: whether members' words may still do it."""
    if not policy.strikes:
        return None
    recent = [word for word in words if word.at > now - policy.window_s and word.kind not in UNPROVEN]
    by_keeper = strikes([word for word in recent if word.witness is None]) >= policy.strikes
    if not by_keeper and not (members_may and strikes(recent) >= policy.strikes):
        return None
    kinds = sorted(Counter(incidents(recent)).items())
    listed = ", ".join(f"{kind} {count} times" if count > 1 else kind for kind, count in kinds)
    return Verdict(f"failed checks within {policy.window_s / 60:g} minutes: {listed}", by_keeper)


def members_may(quarantined: int, active: int) -> bool:
    """Whether members' words may cut off one more, so that two who lie together cannot empty the run."""
    return quarantined < max(1, active // MEMBERS_SHARE)
