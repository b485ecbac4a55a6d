"""The places of a donor: how many downloads it serves at once.

Each download of a state holds a copy of it, and all share the donor's bandwidth. Fifty downloads
would exhaust the keeper's memory and be outdated before completion. An interrupted download cannot
be resumed, so the keeper rejects that device for a while; the device then uses a checkpoint, which
is resumable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

AT_ONCE = 4
FOLLOWERS_AT_ONCE = 16  # concurrent downloads of averages, which have a quarter of a state's size and are not copied
OF_ONE_MEMBER = 2  # maximum number of downloads by one member, over all its devices
STALLED_S = 30.0  # time without progress after which a download loses its slot
BROKEN_OFF_S = 120.0  # rejection time after an interrupted download; long enough to write a checkpoint


@dataclass(eq=False)
class Donation:
    """One download of the state by a member's device."""

    member: str
    device: str
    moved_at: float  # time at which the last part was read
    stop: Callable[[], object]  # called when the download loses its slot


class Donations:
    """The active downloads from one donor, and the devices with a recently interrupted download."""

    def __init__(self, clock: Callable[[], float], at_once: int = AT_ONCE, after_break_s: float = 0.0) -> None:
        """Set up the slots; reject a device for `after_break_s` after an interrupted download."""
        self._clock, self._at_once, self._after_break_s = clock, at_once, after_break_s
        self._under_way: list[Donation] = []
        self._broken_off: dict[str, float] = {}  # device -> time of the interruption

    def begin(self, member: str, device: str, stop: Callable[[], object] = lambda: None) -> Donation | None:
        """Begin a device's download; return None if no slot is free or the device is rejected."""
        now = self._clock()
        for each in list(self._under_way):
            if now - each.moved_at >= STALLED_S or each.device == device:  # a device has at most one download
                self.end(each, is_whole=False)
                each.stop()
        self._broken_off = {who: at for who, at in self._broken_off.items() if now - at < self._after_break_s}
        of_member = sum(each.member == member for each in self._under_way)
        if device in self._broken_off or len(self._under_way) >= self._at_once or of_member >= OF_ONE_MEMBER:
            return None
        donation = Donation(member, device, now, stop)
        self._under_way.append(donation)
        return donation

    def goes_on(self, donation: Donation) -> bool:
        """Record progress of a download; return whether it still has its slot."""
        donation.moved_at = self._clock()
        return donation in self._under_way

    def end(self, donation: Donation, *, is_whole: bool = True) -> None:
        """Release a download's slot if it has one; a partial download counts as interrupted."""
        if donation in self._under_way:
            self._under_way.remove(donation)
            if not is_whole:
                self._broken_off[donation.device] = self._clock()
