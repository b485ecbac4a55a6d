"""The token bucket, and limits on callers by the address behind a connection."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from auth.errors import RequestError
from coordinator.throttling.rate_limits import CallerPace, Pace, host_address, network_of
from tests.support.clocks import Clock


def test_a_burst_is_free_and_then_each_event_waits_its_turn() -> None:
    """Two at once, then one each half second."""
    pace = Pace(per_second=2.0, burst=2.0, now=0.0)
    assert [pace.take(0.0) for _ in range(4)] == [0.0, 0.0, 0.5, 1.0]


def test_time_gives_the_burst_back_but_no_more() -> None:
    """A long silence does not save up more than the burst."""
    pace = Pace(per_second=2.0, burst=2.0, now=0.0)
    pace.take(0.0)
    assert [pace.take(1000.0) for _ in range(3)] == [0.0, 0.0, 0.5]


def test_allows_counts_only_what_it_allows() -> None:
    """Refused events do not push the next permission further away."""
    pace = Pace(per_second=1.0, burst=1.0, now=0.0)
    assert [pace.allows(0.0) for _ in range(10)] == [True] + [False] * 9
    assert pace.allows(1.0)


def test_a_clock_that_jumps_back_gives_nothing() -> None:
    """The level only grows with time that has passed."""
    pace = Pace(per_second=1.0, burst=1.0, now=100.0)
    pace.take(100.0)
    assert pace.take(50.0) == pytest.approx(1.0)


ADA, BOB, EVE = (ip_address(f"192.0.2.{number}") for number in (1, 2, 3))


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
    ],
)
def test_the_address_is_read_from_a_sockets_name(host: str, address: str) -> None:
    """IPv4, IPv6 with and without a zone, and IPv4 that came in over an IPv6 socket."""
    assert str(host_address(host)) == address


def test_an_ipv6_network_is_one_caller() -> None:
    """Another address of the same 64-bit network is the same caller; a neighbouring network is not."""
    first, second, other = (
        network_of(ip_address(text)) for text in ("2001:db8::1", "2001:db8::ffff:2", "2001:db8:0:1::1")
    )
    assert first == second != other


def test_each_caller_has_a_pace_of_its_own() -> None:
    """One too many within a minute is refused, others are not affected, and time makes it good."""
    clock = Clock(0.0)
    pace = CallerPace(2, clock)
    for caller in (ADA, ADA, BOB):
        pace.admit(caller)
    with pytest.raises(RequestError, match="2 such requests a minute"):
        pace.admit(ADA)
    pace.admit(BOB)
    clock.now = 30.0
    pace.admit(ADA)


def test_a_flood_of_addresses_does_not_fill_the_memory() -> None:
    """Beyond the capacity the caller who has asked least recently is forgotten."""
    pace = CallerPace(1, Clock(), capacity=2)
    for caller in (ADA, BOB, EVE):
        pace.admit(caller)
    assert len(pace) == 2
    with pytest.raises(RequestError):
        pace.admit(BOB)
    pace.admit(ADA)
