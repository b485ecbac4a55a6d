"""What follows from how the coordinator sees a machine."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from peer.place import ANY_PORT, IPAddress, Place, describe, place_of

OWN, ROUTER, OWN_V6 = ip_address("192.168.1.7"), ip_address("93.184.216.34"), ip_address("2001:db8::7")
LISTEN = ("/ip4/0.0.0.0/tcp/0", "/ip4/0.0.0.0/udp/0/quic-v1")


def found(dialled: bool | None, observed: IPAddress | None, listen: tuple[str, ...] = LISTEN) -> Place:
    """The place of a machine on a line of 1 MB/s."""
    own = {OWN, OWN_V6}
    return place_of(dialled=dialled, observed=observed, own=own, port=4001, listen=listen, bandwidth=1e6)


def test_a_machine_that_was_dialled_listens_where_it_was_tried() -> None:
    """A firewall may let just that port through."""
    place = found(True, OWN)
    assert (place.reach, place.announce_maddrs) == ("direct", None)
    assert place.host_maddrs == ("/ip4/0.0.0.0/tcp/4001", "/ip4/0.0.0.0/udp/0/quic-v1")
    assert place.declared_bandwidth == 1e6


@pytest.mark.parametrize(("observed", "announced"), [(ROUTER, "/ip4/93.184.216.34/tcp/4001")])
def test_a_forwarded_port_is_announced_at_the_routers_address(observed: IPAddress, announced: str) -> None:
    """Others cannot use the address that the machine has behind its router."""
    assert found(True, observed).announce_maddrs == (announced,)
    elsewhere = ip_address("2001:db8::9")
    assert found(True, elsewhere).announce_maddrs == ("/ip6/2001:db8::9/tcp/4001",)


def test_who_was_not_dialled_is_relayed_and_reduces_nothing() -> None:
    """Behind a router or a firewall; it listens all the same, for those that it connects to."""
    for observed in (ROUTER, OWN):
        place = found(False, observed)
        assert place == Place("relayed", LISTEN, None, 1e6)
        assert place.declared_bandwidth == 0.0


@pytest.mark.parametrize(("observed", "reach"), [(OWN, "direct"), (ROUTER, "relayed"), (None, "relayed")])
def test_what_was_not_tried_is_told_by_the_address(observed: IPAddress | None, reach: str) -> None:
    """An address of its own counts as reachable; the port stays as it was."""
    place = found(None, observed)
    assert place.reach == reach
    assert place.host_maddrs == LISTEN


def test_the_volunteer_hears_it_in_a_sentence() -> None:
    """With the line's rate."""
    assert "Others can reach this machine; its line has 8.0 Mbit/s" in describe(found(True, OWN))
    assert "through the keeper" in describe(found(False, OWN))
    assert "as asked" in describe(Place("client", ANY_PORT, None, 1e6))


def test_a_volunteers_own_limits_count_as_the_lines_rate() -> None:
    """The least of them; without any the line's own."""
    assert Place(bandwidth=2e6).within(1e6, None).bandwidth == 1e6
    assert Place(bandwidth=2e6).within(None, None).bandwidth == 2e6
    assert Place().within(None, 3e6).bandwidth == 3e6
    assert Place().within(None, None).bandwidth is None
