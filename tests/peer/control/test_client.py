"""The peer's calls over real gRPC and TLS: whom it trusts, what it notices by itself, and what it keeps of a file."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import re
import time
from pathlib import Path

import grpc
import pytest

from auth.errors import (
    ClockError,
    ExpiredTokenError,
    FingerprintError,
    LinkError,
    ManyhandsError,
    RequestError,
    StorageError,
    UnreachableError,
    UsedInviteError,
    VersionError,
)
from auth.join_link import Address, JoinLink
from auth.keys import DeviceKey
from peer.control import client as control_client
from peer.control.client import ControlClient, check_version
from peer.protocol import PROTOCOL_VERSION
from peer.protocol.control_pb2 import ChallengeReply
from peer.protocol.errors import error_from_rpc, metadata_of, status_of
from peer.runtime.software import install_commands
from peer.runtime.version import software_version
from tests.support.control_plane import OTHER_S, TOKENIZER, TestCoordinator, serving
from tests.support.ports import free_ports
from tests.support.waiting import PATIENCE_S

HOST = "127.0.0.1"


async def test_files_arrive_whole_and_are_not_fetched_twice(
    coordinator: TestCoordinator, client: ControlClient, tmp_path: Path, key: DeviceKey
) -> None:
    """Every file that the join names lies in the directory afterwards; one that is there already stays as it is."""
    reply = await client.join(key, coordinator.invite("Ada"))
    await client.fetch_files(reply, tmp_path / "tokenizer")
    fetched = tmp_path / "tokenizer" / "tokenizer.json"
    assert fetched.read_bytes() == TOKENIZER
    written_at = fetched.stat().st_mtime_ns
    await client.fetch_files(reply, tmp_path / "tokenizer")
    assert fetched.stat().st_mtime_ns == written_at
    assert [path.name for path in fetched.parent.iterdir()] == ["tokenizer.json"]


@pytest.mark.parametrize("change", ["digest", "size"])
async def test_a_file_that_is_not_as_announced_never_takes_its_name(
    coordinator: TestCoordinator, client: ControlClient, tmp_path: Path, key: DeviceKey, change: str
) -> None:
    """A damaged or longer file is an error, and nothing of it stays."""
    reply = await client.join(key, coordinator.invite("Ada"))
    if change == "digest":
        reply.files[0].sha256 = hashlib.sha256(b"other").digest()
    else:
        reply.files[0].size_bytes = 1000
    with pytest.raises(StorageError, match="damaged"):
        await client.fetch_files(reply, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


async def test_a_name_is_looked_at_before_any_file(
    coordinator: TestCoordinator, client: ControlClient, tmp_path: Path, key: DeviceKey
) -> None:
    """A file elsewhere on this machine is not even compared with the announced digest."""
    secret = tmp_path / "secret.json"
    secret.write_text("mine")
    digest = hashlib.sha256(b"mine").digest()
    reply = await client.join(key, coordinator.invite("Ada"))
    for name in (str(secret), "../secret.json"):
        with pytest.raises(RequestError, match="not taken"):
            await client.fetch_file(name, digest, tmp_path / "out", token=reply.token, size_bytes=4)
    reply.files.extend([reply.files[0]] * 32)
    with pytest.raises(RequestError, match="33 files"):
        await client.fetch_files(reply, tmp_path / "out")


async def test_a_wrong_fingerprint_is_noticed_before_anything_is_sent(coordinator: TestCoordinator) -> None:
    """A server whose certificate is not the link's gets no request at all."""
    wrong = dataclasses.replace(coordinator.link, fingerprint="0" * 64)
    with pytest.raises(FingerprintError):
        await ControlClient.connect(wrong, time.time)


async def test_the_first_address_where_the_right_one_answers_is_taken(tmp_path: Path) -> None:
    """Nobody listens at the link's first address, and another coordinator has the second one."""
    async with serving(tmp_path / "right") as right, serving(tmp_path / "other", OTHER_S) as other:
        (nobody,) = free_ports(HOST, 1)
        others = (other.link.address, right.link.address)
        link = dataclasses.replace(right.link, port=nobody, others=others)
        client = await ControlClient.connect(link, time.time)
        assert client.link == right.link
        await client.close()
        with pytest.raises(FingerprintError, match=str(other.link.port)):
            await ControlClient.connect(dataclasses.replace(link, others=others[:1]), time.time)


async def test_a_name_that_cannot_be_one_is_passed_over(coordinator: TestCoordinator) -> None:
    """As one that nobody knows."""
    link = dataclasses.replace(coordinator.link, host="run..example.org", others=(coordinator.link.address,))
    client = await ControlClient.connect(link, time.time)
    assert client.link == coordinator.link
    await client.close()


@pytest.mark.thorough
async def test_an_address_that_was_left_is_not_knocked_at_for_ever(coordinator: TestCoordinator) -> None:
    """Somebody else may have it by now."""
    knocks = 0

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal knocks
        knocks += 1
        writer.close()

    server = await asyncio.start_server(hang_up, HOST, 0)
    left = Address(HOST, server.sockets[0].getsockname()[1])
    link = dataclasses.replace(coordinator.link, host=left.host, port=left.port, others=(coordinator.link.address,))
    client = ControlClient(link, coordinator.directory.tls_cert_path.read_text())
    with pytest.raises(UnreachableError):
        await client.greet()
    client.turn_to_next_address()
    await client.greet()
    assert knocks > 0
    so_far = 0
    deadline = time.monotonic() + PATIENCE_S
    while knocks > so_far:
        assert time.monotonic() < deadline
        so_far = knocks
        await asyncio.sleep(7.0)  # longer than between two knocks; gRPC's clock cannot be set forward
    await client.close()
    server.close()


async def test_all_addresses_that_failed_are_named() -> None:
    """With the reason of each."""
    first, second = free_ports(HOST, 2)
    link = JoinLink(HOST, first, "test", "ab" * 32, (Address(HOST, second),))
    with pytest.raises(UnreachableError, match=f"{first}.*{second}"):
        await ControlClient.connect(link, time.time)


async def test_another_run_behind_the_link_is_a_link_error(coordinator: TestCoordinator) -> None:
    """The right coordinator with the wrong run in the link is told apart."""
    with pytest.raises(LinkError, match="`test`"):
        await ControlClient.connect(dataclasses.replace(coordinator.link, run="another"), time.time)


async def test_nobody_at_the_address_is_unreachable(tmp_path: Path) -> None:
    """A closed port is named in the error."""
    async with serving(tmp_path) as coordinator:
        link = coordinator.link
    with pytest.raises(UnreachableError, match=str(link.port)):
        await ControlClient.connect(link, time.time)


async def test_another_protocol_version_is_refused_by_the_coordinator(
    coordinator: TestCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer of another version learns both versions."""
    monkeypatch.setattr(control_client, "PROTOCOL_VERSION", 99)
    monkeypatch.setattr(control_client, "software_version", lambda: "0.1.0+g370b6063")
    with pytest.raises(VersionError, match=rf"version {PROTOCOL_VERSION}.*99.*") as refused:
        await ControlClient.connect(coordinator.link, time.time)
    assert str(refused.value).startswith("This program is manyhands 0.1.0+g370b6063. ")
    assert f"update to manyhands {software_version()}," in str(refused.value)
    assert str(refused.value).endswith(" && ".join(install_commands(coordinator.services.software_address)))


async def test_a_container_of_another_protocol_version_is_to_be_built_anew(
    coordinator: TestCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The installer that the coordinator names would be gone with the container."""
    monkeypatch.setattr(control_client, "PROTOCOL_VERSION", 99)
    monkeypatch.setenv("MANYHANDS_IMAGE", "manyhands-peer")
    with pytest.raises(VersionError, match=r"image.*docker build --pull -f docker/peer\.Dockerfile") as refused:
        await ControlClient.connect(coordinator.link, time.time)
    assert "curl" not in str(refused.value)


async def test_a_peer_learns_what_the_coordinator_runs_and_where_it_is(
    coordinator: TestCoordinator, client: ControlClient
) -> None:
    """With the first greeting: the version, and the address of the software with its digest."""
    software = coordinator.services.software
    assert (client.software_version, client.software_address) == (
        software_version(),
        software.address(coordinator.directory.settings.web_address),
    )


@pytest.mark.parametrize(
    ("theirs", "named"), [("0.2.0+g95390707", "manyhands 0.2.0+g95390707"), ("1.0\x1b[2J", "the version that")]
)
def test_a_coordinator_of_another_protocol_version_is_named_by_its_commit(theirs: str, named: str) -> None:
    """If it does not refuse by itself; what is no version is not shown."""
    with pytest.raises(VersionError, match=f"install {re.escape(named)}"):
        check_version(ChallengeReply(protocol_version=99, software_version=theirs))


@pytest.mark.parametrize(("skew_s", "word"), [(61.5, "behind"), (-61.5, "ahead")])
async def test_a_clock_that_is_wrong_by_more_than_a_minute_is_named(
    coordinator: TestCoordinator, skew_s: float, word: str
) -> None:
    """The peer learns which way its clock is off before tokens fail for reasons nobody understands."""
    coordinator.clock.ahead_s = skew_s
    with pytest.raises(ClockError, match=word):
        await ControlClient.connect(coordinator.link, time.time)
    coordinator.clock.ahead_s = 50.0
    client = await ControlClient.connect(coordinator.link, time.time)
    await client.close()


def test_every_error_of_ours_survives_the_wire() -> None:
    """What the coordinator raises is what the peer raises, class and sentence, also for leaves without a status."""
    for error in (UsedInviteError("a"), ExpiredTokenError("b"), ClockError("c"), ManyhandsError("d")):
        sent = grpc.aio.AioRpcError(
            status_of(error), grpc.aio.Metadata(), grpc.aio.Metadata(*metadata_of(error)), str(error)
        )
        received = error_from_rpc(sent)
        assert (type(received), str(received)) == (type(error), str(error))
