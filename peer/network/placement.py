"""A peer's place in the swarm's network: who can open connections to it, where it listens, how fast its line is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from peer.network.endpoints import TRANSPORTS, Endpoint, IPAddress, Version, read_endpoint

# direct: others can open connections to it; relayed: only through a relay (the keeper), and where that grants nothing a
# client; client: it opens connections, and takes none
Reach = Literal["direct", "relayed", "client"]
ANY_PORT = ("/ip4/0.0.0.0/tcp/0",)
UNMEASURED = 1.25e6  # bytes per second (10 Mbit/s): of a line that could not be measured


@dataclass(frozen=True)
class Placement:
    """A peer's place in the network, as the worker needs it to join the swarm."""

    reach: Reach = "direct"
    host_maddrs: tuple[str, ...] = ANY_PORT  # where it listens
    announce_maddrs: tuple[str, ...] | None = None  # where others reach it; None: as libp2p finds out
    bandwidth: float | None = None  # bytes per second of the line's slower direction; None: faster than is known
    reduces: bool = True  # everybody in the run can reach it directly

    @property
    def may_reduce(self) -> bool:
        """True if others may send this peer their parts, which would cross a relay's line twice."""
        return self.reach != "relayed" and self.reduces

    def within(self, *rates: float | None) -> Placement:
        """Return the place of a peer that may use so many bytes per second of its line; None: all."""
        limits = [rate for rate in (self.bandwidth, *rates) if rate is not None]
        return replace(self, bandwidth=min(limits, default=None))


@dataclass(frozen=True)
class Seen:
    """This machine over one IP version, as the coordinator sees it."""

    address: IPAddress
    dialled: frozenset[Endpoint] | None = None  # where its connections arrived; None: that was not tried


def place_of(
    *, seen: Sequence[Seen], own: Collection[IPAddress], listen: tuple[str, ...], common: Version, bandwidth: float
) -> Placement:
    """Decide on the place from how the coordinator sees this machine; only endpoints that it could dial are announced.

    QUIC is announced only where TCP does not arrive (`peer.network.endpoints`). Where nothing was tried, an address of
    this machine's own counts as reachable. `common`: the IP version that everybody in the run has; a peer that cannot
    be reached over it by TCP reduces nothing, lest rounds fail for others.
    """
    tried = [look for look in seen if look.dialled is not None]
    if not tried and any(look.address in own for look in seen):
        return Placement("direct", listen, None, bandwidth)
    working = [(look.address, endpoint) for look in tried for endpoint in _in_order(look.dialled or frozenset())]
    if not working:
        return Placement("relayed", listen, None, bandwidth)
    by_tcp = {endpoint.version for _, endpoint in working if endpoint.transport == "tcp"}
    working = [way for way in working if way[1].transport == "tcp" or way[1].version not in by_tcp]
    announced = tuple(replace(endpoint, host=str(address)).maddr for address, endpoint in working)
    if all(address.is_loopback for address, _ in working):
        announced = ()  # a coordinator on this machine cannot tell how others see it
    reduces = any((endpoint.version, endpoint.transport) == (common, "tcp") for _, endpoint in working)
    return Placement("direct", listen, announced or None, bandwidth, reduces)


def _in_order(endpoints: Collection[Endpoint]) -> list[Endpoint]:
    return sorted(endpoints, key=lambda endpoint: (endpoint.version, endpoint.transport))


def describe(place: Placement) -> str:
    """Describe a place in one sentence for the volunteer."""
    rate = describe_rate(place.bandwidth or 0)
    if place.reach == "direct":
        return f"Others can reach this machine{_by(place)}; its line has {rate}."
    if place.reach == "relayed":
        return f"Others cannot reach this machine directly, so it joins through the keeper; its line has {rate}."
    return f"This machine opens connections and takes none, as asked; its line has {rate}."


def _by(place: Placement) -> str:
    """Name the transports and IP versions, where these are known."""
    ways = [read_endpoint(maddr) for maddr in place.announce_maddrs or ()]
    names = [f"{TRANSPORTS[way.transport]} over IPv{way.version}" for way in ways if way is not None]
    return f" by {' and '.join(names)}" if names else ""


def describe_rate(rate: float) -> str:
    """Write bytes per second as people name the rate of a line."""
    return f"{rate * 8 / 1e6:,.1f} Mbit/s"
