"""To how many peers at once a donor gives its state, and who is asked to come back (pure).

Each download holds a copy of the whole state, and all of them share one line: fifty joiners at once would take the
keeper's memory and make every download so slow that none ends before the state is old.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

AT_ONCE = 4
OF_ONE_MEMBER = 2  # whatever its number of devices: nobody holds all the places
STALLED_S = 30.0  # who has taken nothing for so long holds no place, and gets no more


@dataclass
class Donation:
    """One download."""

    member: str
    moved_at: float  # when its last part was taken


class Donations:
    """The downloads that are under way at one donor."""

    def __init__(self, clock: Callable[[], float], at_once: int = AT_ONCE) -> None:
        self._clock, self._at_once = clock, at_once
        self._under_way: list[Donation] = []

    def begin(self, member: str) -> Donation | None:
        """A place for one of this member's devices; None: there is none now."""
        now = self._clock()
        self._under_way = [each for each in self._under_way if now - each.moved_at < STALLED_S]
        of_member = sum(each.member == member for each in self._under_way)
        if len(self._under_way) >= self._at_once or of_member >= OF_ONE_MEMBER:
            return None
        donation = Donation(member, now)
        self._under_way.append(donation)
        return donation

    def goes_on(self, donation: Donation) -> bool:
        """Its next part is about to be sent: whether it still has its place."""
        donation.moved_at = self._clock()
        return any(each is donation for each in self._under_way)

    def end(self, donation: Donation) -> None:
        """Give its place back, if it still had one."""
        self._under_way = [each for each in self._under_way if each is not donation]
