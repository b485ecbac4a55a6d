"""A peer's place in the swarm's network: who can open connections to it, where it listens, how fast its line is."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
# direct: others can open connections to it; relayed: only through a relay (the keeper), and where that grants nothing a
# client; client: it opens connections, and takes none
Reach = Literal["direct", "relayed", "client"]
ANY_PORT = ("/ip4/0.0.0.0/tcp/0",)
UNMEASURED = 1.25e6  # bytes per second (10 Mbit/s): of a line that could not be measured


@dataclass(frozen=True)
class Place:
    """What the worker needs to know to join the swarm."""

    reach: Reach = "direct"
    host_maddrs: tuple[str, ...] = ANY_PORT  # where it listens
    announce_maddrs: tuple[str, ...] | None = None  # where others reach it; None: as libp2p finds out
    bandwidth: float | None = None  # bytes per second of the line's slower direction; None: faster than is known

    @property
    def declared_bandwidth(self) -> float | None:
        """What groups are told: a relayed peer reduces nothing, as each byte would cross the relay's line twice."""
        return 0.0 if self.reach == "relayed" else self.bandwidth

    def within(self, *rates: float | None) -> Place:
        """The place of a peer that may use so many bytes per second of its line; None: all."""
        limits = [rate for rate in (self.bandwidth, *rates) if rate is not None]
        return replace(self, bandwidth=min(limits, default=None))


def place_of(
    *,
    dialled: bool | None,
    observed: IPAddress | None,
    own: Collection[IPAddress],
    port: int,
    listen: tuple[str, ...],
    bandwidth: float,
) -> Place:
    """What follows from how the coordinator sees this machine: at `observed`, and whether it could dial its `port`.

    Where that was not tried (`dialled` is None), an address of this machine's own counts as reachable.
    """
    reachable = observed in own if dialled is None else dialled
    if not reachable:
        return Place("relayed", listen, None, bandwidth)
    if dialled:  # listen where it was tried
        listen = tuple(address.replace("/tcp/0", f"/tcp/{port}") for address in listen)
    forwarded = observed is not None and observed not in own
    announced = (f"/ip{observed.version}/{observed}/tcp/{port}",) if forwarded and observed is not None else None
    return Place("direct", listen, announced, bandwidth)


def describe(place: Place) -> str:
    """One sentence for the volunteer."""
    rate = describe_rate(place.bandwidth or 0)
    if place.reach == "direct":
        return f"Others can reach this machine; its line has {rate}."
    if place.reach == "relayed":
        return f"Others cannot reach this machine directly, so it joins through the keeper; its line has {rate}."
    return f"This machine opens connections and takes none, as asked; its line has {rate}."


def describe_rate(rate: float) -> str:
    """Bytes per second as people name the rate of a line."""
    return f"{rate * 8 / 1e6:,.1f} Mbit/s"
