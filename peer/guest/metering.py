"""Whether the network costs by the byte, as NetworkManager knows or guesses it."""

from __future__ import annotations

from peer.guest.system_bus import Property, read_property

SERVICE = "org.freedesktop.NetworkManager"
YES, NO, GUESS_YES, GUESS_NO = "1", "2", "3", "4"  # NMMetered; 0 is "unknown"


def is_metered(read: Property = read_property) -> bool | None:
    """Of the connection that leads to the internet; a guess (a phone's hotspot, say) counts as knowledge."""
    answer = read(SERVICE, "/org/freedesktop/NetworkManager", SERVICE, "Metered")
    return {YES: True, GUESS_YES: True, NO: False, GUESS_NO: False}.get(answer or "")
