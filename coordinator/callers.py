"""Who calls without an account: the address behind a gRPC connection, and how often one address may ask.

An address is all that is known of a stranger. Whoever has an IPv6 network has 2^64 addresses of it, so there the
network counts.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from urllib.parse import unquote

from auth.errors import RequestError
from coordinator.pace import Pace

CAPACITY = 4096  # addresses remembered; the one that has asked least recently is forgotten first
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def caller_address(peer: str) -> Address:
    """The IP address in gRPC's name of a connection (`ipv4:192.0.2.1:50000`, `ipv6:%5B2001:db8::1%5D:50000`)."""
    host = unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError as error:
        raise RequestError("The request came over no internet connection.") from error
    return getattr(address, "ipv4_mapped", None) or address


def network_of(address: Address) -> str:
    """What counts as one caller: an IPv4 address, or an IPv6 network of 64 bits."""
    return str(address if address.version == 4 else ipaddress.ip_network((address, 64), strict=False))


class CallerPace:
    """Lets each caller ask so many times a minute; used from one event loop."""

    def __init__(self, per_minute: int, clock: Callable[[], float], capacity: int = CAPACITY) -> None:
        self._per_minute, self._clock, self._capacity = per_minute, clock, capacity
        self._paces: dict[str, Pace] = {}  # the one who asked least recently first

    def admit(self, address: Address) -> None:
        """Count a request; raises `RequestError` for one too many."""
        caller, now = network_of(address), self._clock()
        pace = self._paces.pop(caller, None) or Pace(self._per_minute / 60, self._per_minute, now)
        self._paces[caller] = pace
        if len(self._paces) > self._capacity:
            del self._paces[next(iter(self._paces))]
        if not pace.allows(now):
            raise RequestError(f"The coordinator answers this {self._per_minute} times a minute: wait a little.")

    def __len__(self) -> int:
        return len(self._paces)
