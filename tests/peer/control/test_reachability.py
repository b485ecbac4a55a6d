"""Finding a machine's place, against a real coordinator and strange ones."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from coordinator.control.visitors import DIALS_PER_MINUTE, PROBES_PER_MINUTE
from peer.config.run import RunConfig
from peer.control.client import ControlClient
from peer.control.reachability import Patience, find_place
from peer.network.placement import ANY_PORT, UNMEASURED, Placement
from peer.protocol import control_pb2
from tests.support.control_plane import TestCoordinator, connected, serving, write_status
from tests.support.strange_coordinators import OldCoordinator, SilentCoordinator, strange_coordinator
from tests.support.waiting import PATIENCE_S

QUICK = Patience(probe_s=0.1, dial_back_s=0.2)  # for what never comes
LONG = Patience(PATIENCE_S, PATIENCE_S, PATIENCE_S)


async def test_a_machine_that_the_coordinator_reaches_is_direct(
    coordinator: TestCoordinator, client: ControlClient
) -> None:
    """With the port that was tried, and a measured line."""
    place = await find_place(client, ANY_PORT, client_mode=False, patience=LONG)
    assert place.reach == "direct"
    assert re.fullmatch(r"/ip4/0\.0\.0\.0/tcp/[1-9]\d+", place.host_maddrs[0])
    assert place.announce_maddrs is None  # the coordinator is on this machine
    assert place.bandwidth is not None
    assert place.bandwidth not in (0.0, UNMEASURED)


async def test_all_ways_are_tried_at_one_port(tmp_path: Path) -> None:
    """Over IPv6 too where the keeper is announced there; never by QUIC unless that was asked for."""
    keeper = "/ip6/::1/tcp/31337/p2p/12D3KooWKaFFZoDcaeoXcKKtGG79gpXfkDnuMKKy8wSkXiy3gTBu"
    async with serving(tmp_path, bind="0.0.0.0") as coordinator, connected(coordinator) as client:  # noqa: S104
        write_status(coordinator, keeper)
        place = await find_place(client, (), client_mode=False, patience=LONG)
    assert place.reach == "direct"
    assert len({maddr.split("/")[4] for maddr in place.host_maddrs}) == 1
    ways = {tuple(maddr.split("/")[1:4:2]) for maddr in place.host_maddrs}
    assert ways == {("ip4", "tcp"), ("ip6", "tcp")}
    assert place.reduces is True


async def test_a_port_of_udp_alone_is_enough(client: ControlClient) -> None:
    """Others reach such a machine by QUIC; it averages nothing for them, as some have TCP only."""
    place = await find_place(client, ("/ip4/127.0.0.1/udp/0/quic-v1",), client_mode=False, patience=LONG)
    assert (place.reach, place.reduces) == ("direct", False)
    assert re.fullmatch(r"/ip4/127\.0\.0\.1/udp/[1-9]\d+/quic-v1", place.host_maddrs[0])


async def test_who_wants_to_be_a_client_is_one(client: ControlClient) -> None:
    """Nothing is dialled for it, but its line is measured."""
    place = await find_place(client, ANY_PORT, client_mode=True, patience=LONG)
    assert (place.reach, place.host_maddrs) == ("client", ANY_PORT)
    assert place.bandwidth != UNMEASURED


DESCRIPTION = control_pb2.DescribeReply(run_config_json=RunConfig().to_json(), observed_address="127.0.0.1")


@pytest.mark.parametrize("coordinator", [SilentCoordinator(DESCRIPTION), OldCoordinator()], ids=["silent", "old"])
async def test_where_no_connection_arrives_the_machine_is_relayed(
    tmp_path: Path, coordinator: SilentCoordinator | OldCoordinator
) -> None:
    """As behind a firewall or with an older coordinator: one that others cannot reach, with a slow line."""
    async with strange_coordinator(tmp_path, coordinator) as link:
        client = await ControlClient.connect(link, time.time)
        place = await find_place(client, ANY_PORT, client_mode=False, patience=QUICK)
        await client.close()
    assert place == Placement("relayed", ANY_PORT, None, UNMEASURED)


@pytest.mark.usefixtures("no_patience")
async def test_when_too_many_ask_from_one_address_its_own_address_decides(client: ControlClient) -> None:
    """A class that joins at once is not turned away."""
    for _ in range(max(DIALS_PER_MINUTE, PROBES_PER_MINUTE) + 1):
        place = await find_place(client, ANY_PORT, client_mode=False, patience=LONG)
    assert place == Placement("direct", ANY_PORT, None, UNMEASURED)
