"""Limits for callers without an account: token bucket, requests per minute, concurrent calls.

Such callers are identified by address. The owner of an IPv6 network has 2^64 addresses, so an IPv6
/64 network is treated as one caller.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable

from auth.errors import RequestError

CAPACITY = 4096  # maximum number of callers; the least recently seen caller is evicted
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Pace:
    """A token bucket, which allows `burst` events at once and `per_second` events on average."""

    def __init__(self, per_second: float, burst: float, now: float) -> None:
        self._per_second, self._burst = per_second, burst
        self._level, self._at = burst, now

    def take(self, now: float) -> float:
        """Count an event; return the delay in seconds that the limit requires, or 0.0."""
        self._refill(now)
        self._level -= 1.0
        return max(0.0, -self._level / self._per_second)

    def allows(self, now: float) -> bool:
        """Return whether an event is within the limit, and count it if it is."""
        self._refill(now)
        if self._level < 1.0:
            return False
        self._level -= 1.0
        return True

    def _refill(self, now: float) -> None:
        self._level = min(self._burst, self._level + max(0.0, now - self._at) * self._per_second)
        self._at = now


def host_address(host: str) -> Address:
    """Parse a peer's address; IPv4-mapped IPv6 becomes IPv4. Raises `ValueError` if invalid."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def network_of(address: Address) -> str:
    """Return the rate-limit key of an address: the IPv4 address or the IPv6 /64 network."""
    return str(address if address.version == 4 else ipaddress.ip_network((address, 64), strict=False))


def http_caller(client: object) -> str:
    """Return the rate-limit key of an HTTP client, given as (address, port) as in an ASGI scope."""
    host = str(client[0]) if isinstance(client, tuple | list) and client else ""
    try:
        return network_of(host_address(host))
    except ValueError:  # not an IP address: a proxy's name for the client, or a Unix socket
        return host[:64]


class CallerPlaces:
    """A limit on concurrent calls or connections, in total and per caller, for one event loop."""

    def __init__(self, total: int, per_caller: int) -> None:
        self._total, self._per_caller = total, per_caller
        self._taken: Counter[str] = Counter()

    def enter(self, caller: str, *, counted: bool = True) -> bool:
        """Reserve a slot; return False if none is free. `counted` enables the limit per caller."""
        if self._taken.total() >= self._total or (counted and self._taken[caller] >= self._per_caller):
            return False
        self._taken[caller] += 1
        return True

    def leave(self, caller: str) -> None:
        """Release one of the caller's slots."""
        self._taken[caller] -= 1
        if not self._taken[caller]:
            del self._taken[caller]  # keep no entry for a caller without a slot

    def __len__(self) -> int:
        return self._taken.total()


class CallerPace:
    """A limit on each caller's requests per minute, for one event loop."""

    def __init__(self, per_minute: int, clock: Callable[[], float], capacity: int = CAPACITY) -> None:
        self._per_minute, self._clock, self._capacity = per_minute, clock, capacity
        self._paces: dict[str, Pace] = {}  # callers, least recently seen first

    def admit(self, address: Address) -> None:
        """Count a request from this address; raises `RequestError` if it exceeds the limit."""
        if not self.allows(network_of(address)):
            raise RequestError(f"The coordinator allows {self._per_minute} such requests a minute: wait a little.")

    def allows(self, caller: str) -> bool:
        """Count a caller's request; return whether it is within the limit."""
        now = self._clock()
        pace = self._paces.pop(caller, None) or Pace(self._per_minute / 60, self._per_minute, now)
        self._paces[caller] = pace
        if len(self._paces) > self._capacity:
            del self._paces[next(iter(self._paces))]
        return pace.allows(now)

    def __len__(self) -> int:
        return len(self._paces)
