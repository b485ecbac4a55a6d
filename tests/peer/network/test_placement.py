"""What follows from how the coordinator sees a machine."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from peer.network.endpoints import Endpoint, IPAddress, Version
from peer.network.placement import ANY_PORT, Placement, Seen, describe, place_of

OWN, ROUTER, OWN_V6 = ip_address("192.168.1.7"), ip_address("93.184.216.34"), ip_address("2001:db8::7")
LISTEN = ("/ip4/0.0.0.0/tcp/4001", "/ip4/0.0.0.0/udp/4001/quic-v1")
TCP, QUIC = Endpoint(4, "tcp", "0.0.0.0", 4001), Endpoint(4, "udp", "0.0.0.0", 4001)  # noqa: S104
TCP_V6, QUIC_V6 = Endpoint(6, "tcp", "::", 4001), Endpoint(6, "udp", "::", 4001)


def found(*seen: Seen, common: Version = 4) -> Placement:
    """The place of a machine on a line of 1 MB/s."""
    return place_of(seen=seen, own={OWN, OWN_V6}, listen=LISTEN, common=common, bandwidth=1e6)


def seen_at(address: IPAddress, *dialled: Endpoint) -> Seen:
    """Seen there, and dialled by these ways."""
    return Seen(address, frozenset(dialled))


def test_what_was_dialled_is_announced_and_nothing_else() -> None:
    """At the address that the coordinator sees, which behind a router is not the machine's own."""
    assert found(seen_at(ROUTER, TCP)).announce_maddrs == ("/ip4/93.184.216.34/tcp/4001",)
    both = found(seen_at(OWN, TCP), seen_at(OWN_V6, TCP_V6, QUIC_V6))
    assert both.announce_maddrs == ("/ip4/192.168.1.7/tcp/4001", "/ip6/2001:db8::7/tcp/4001")
    assert (both.reach, both.may_reduce) == ("direct", True)


def test_quic_is_for_those_whom_tcp_does_not_reach() -> None:
    """Who is reached by TCP does not announce QUIC; who listens by it and is reached by it alone does."""
    by_both, by_quic = found(seen_at(ROUTER, TCP, QUIC)), found(seen_at(ROUTER, QUIC))
    assert by_both.announce_maddrs == ("/ip4/93.184.216.34/tcp/4001",)
    assert by_quic.announce_maddrs == ("/ip4/93.184.216.34/udp/4001/quic-v1",)


def test_a_coordinator_on_this_machine_cannot_tell_how_others_see_it() -> None:
    """Then libp2p announces what it finds."""
    place = found(seen_at(ip_address("127.0.0.1"), TCP))
    assert (place.reach, place.announce_maddrs) == ("direct", None)


@pytest.mark.parametrize(
    ("seen", "common", "reduces"),
    [
        ([seen_at(ROUTER, TCP)], 4, True),
        ([seen_at(ROUTER, QUIC)], 4, False),
        ([seen_at(OWN_V6, TCP_V6)], 4, False),
        ([seen_at(OWN_V6, TCP_V6)], 6, True),
        ([seen_at(OWN, QUIC), seen_at(OWN_V6, TCP_V6)], 4, False),
    ],
)
def test_any_way_makes_direct_but_only_everybodys_way_a_reducer(
    seen: list[Seen], common: Version, reduces: bool
) -> None:
    """A reducer that one of the group cannot reach would fail the round for all."""
    place = found(*seen, common=common)
    assert place.reach == "direct"
    assert place.may_reduce == reduces


def test_who_was_not_dialled_is_relayed_and_reduces_nothing() -> None:
    """Behind a router or a firewall; it listens all the same, for those that it connects to."""
    for address in (ROUTER, OWN):
        place = found(seen_at(address))
        assert place == Placement("relayed", LISTEN, None, 1e6)
        assert not place.may_reduce


@pytest.mark.parametrize(("seen", "reach"), [([Seen(OWN)], "direct"), ([Seen(ROUTER)], "relayed"), ([], "relayed")])
def test_what_was_not_tried_is_told_by_the_address(seen: list[Seen], reach: str) -> None:
    """An address of its own counts as reachable."""
    place = found(*seen)
    assert place.reach == reach
    assert place.host_maddrs == LISTEN


def test_the_volunteer_hears_it_in_a_sentence() -> None:
    """With the ways that work, and the line's rate."""
    told = describe(found(seen_at(OWN, TCP), seen_at(OWN_V6, QUIC_V6)))
    assert "Others can reach this machine by TCP over IPv4 and QUIC over IPv6; its line has 8.0 Mbit/s" in told
    assert "through the keeper" in describe(found(seen_at(OWN)))
    assert "as asked" in describe(Placement("client", ANY_PORT, None, 1e6))


def test_a_volunteers_own_limits_count_as_the_lines_rate() -> None:
    """The least of them; without any the line's own."""
    assert Placement(bandwidth=2e6).within(1e6, None).bandwidth == 1e6
    assert Placement(bandwidth=2e6).within(None, None).bandwidth == 2e6
    assert Placement().within(None, 3e6).bandwidth == 3e6
    assert Placement().within(None, None).bandwidth is None
