"""A peer's placement in the network: reachability, addresses and bandwidth."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from peer.network.endpoints import TRANSPORTS, Endpoint, IPAddress, Version, read_endpoint

# direct: other peers can connect to this peer. relayed: they can connect only through a relay
# (the keeper), if it accepts. client: this peer opens connections but accepts none.
Reach = Literal["direct", "relayed", "client"]
ANY_PORT = ("/ip4/0.0.0.0/tcp/0",)
UNMEASURED = 1.25e6  # bytes per second assumed without a measurement (10 Mbit/s)


@dataclass(frozen=True)
class Placement:
    """A peer's placement in the network, as needed to join the swarm."""

    reach: Reach = "direct"
    host_maddrs: tuple[str, ...] = ANY_PORT  # addresses to listen on
    announce_maddrs: tuple[str, ...] | None = None  # addresses to announce; None lets libp2p find them
    bandwidth: float | None = None  # bytes per second in the slower direction; None: unknown, assumed fast
    reduces: bool = True  # whether all peers of the run can reach this peer directly

    @property
    def may_reduce(self) -> bool:
        """Whether this peer may reduce parts for others; a relay would have to send each part twice."""
        return self.reach != "relayed" and self.reduces

    def within(self, *rates: float | None) -> Placement:
        """Return the placement with its bandwidth capped at these rates in bytes/s (None for no limit)."""
        limits = [rate for rate in (self.bandwidth, *rates) if rate is not None]
        return replace(self, bandwidth=min(limits, default=None))


@dataclass(frozen=True)
class Seen:
    """The coordinator's view of this machine over one IP version."""

    address: IPAddress
    dialled: frozenset[Endpoint] | None = None  # endpoints that the coordinator reached; None if it tried none


def place_of(
    *, seen: Sequence[Seen], own: Collection[IPAddress], listen: tuple[str, ...], common: Version, bandwidth: float
) -> Placement:
    """Derive a machine's placement from the coordinator's view of the machine.

    Only endpoints that the coordinator reached are announced, and QUIC only if TCP fails (see
    `endpoints`). If none was tried, an observed address that belongs to this machine is assumed to
    be reachable. `common` is the IP version of all peers; a peer without TCP over this version does
    not reduce, because rounds would fail.
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
        announced = ()  # a local coordinator does not see this machine's public address
    reduces = any((endpoint.version, endpoint.transport) == (common, "tcp") for _, endpoint in working)
    return Placement("direct", listen, announced or None, bandwidth, reduces)


def _in_order(endpoints: Collection[Endpoint]) -> list[Endpoint]:
    return sorted(endpoints, key=lambda endpoint: (endpoint.version, endpoint.transport))


def describe(place: Placement) -> str:
    """Describe a placement in one sentence for the volunteer."""
    rate = describe_rate(place.bandwidth or 0)
    if place.reach == "direct":
        return f"Others can reach this machine{_by(place)}; its line has {rate}."
    if place.reach == "relayed":
        return f"Others cannot reach this machine directly, so it joins through the keeper; its line has {rate}."
    return f"This machine opens connections and takes none, as asked; its line has {rate}."


def _by(place: Placement) -> str:
    """Describe the announced transports and IP versions; return "" if no address is announced."""
    ways = [read_endpoint(maddr) for maddr in place.announce_maddrs or ()]
    names = [f"{TRANSPORTS[way.transport]} over IPv{way.version}" for way in ways if way is not None]
    return f" by {' and '.join(names)}" if names else ""


def describe_rate(rate: float) -> str:
    """Format bytes per second as Mbit/s."""
    return f"{rate * 8 / 1e6:,.1f} Mbit/s"
