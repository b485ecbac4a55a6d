"""The control plane's calls, over real gRPC and TLS: who gets in, and how each who does not is told; and nonces."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from auth.errors import (
    ExpiredInviteError,
    ExpiredTokenError,
    NotInvitedError,
    RequestError,
    RevokedError,
    StorageError,
    TokenError,
    UnknownInviteError,
    UnreachableError,
    UsedInviteError,
)
from auth.keys import DeviceKey, challenge_bytes
from auth.tokens import read_token
from coordinator.checkpoints.manifest import StoredCheckpoint
from coordinator.checkpoints.writing import take_snapshot, write_checkpoint
from coordinator.control.servicer import NonceStore, nonce_key
from coordinator.ledger.recorded_checkpoints import record_checkpoint
from coordinator.store.engine import Database
from coordinator.store.service_models import SpentNonce
from peer.config.run import RunConfig
from peer.control.client import ControlClient
from peer.protocol import NONCE_BYTES, NONCE_LIFETIME_S, PROTOCOL_VERSION, STATE_FILES, control_pb2
from peer.protocol.errors import error_from_rpc
from peer.reporting.messages import CheckpointFetched, Ready
from tests.support import worker_mains
from tests.support.agents import make_agent
from tests.support.clocks import Clock
from tests.support.control_plane import TOKENIZER, TestCoordinator, connected, join_as, serving, write_status
from tests.support.waiting import PATIENCE_S, eventually

KEEPER = "/ip4/127.0.0.1/tcp/31337/p2p/Qm"
KEY = b"k" * 32  # of nonces


async def call(client: ControlClient, method: str, request: Any) -> Any:
    """A raw call, for requests that our own client would not make; raises our errors."""
    try:
        return await getattr(client._stub, method)(request, timeout=PATIENCE_S)
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from error


async def nonce_of(client: ControlClient) -> bytes:
    return (await call(client, "Challenge", control_pb2.ChallengeRequest(protocol_version=PROTOCOL_VERSION))).nonce


def a_join(
    key: DeviceKey, nonce: bytes, invite: str = "", run: str = "test", **changes: Any
) -> control_pb2.JoinRequest:
    receipt_key = key.receipt_key(run).public_bytes
    request = control_pb2.JoinRequest(
        nonce=nonce,
        public_key=key.public_key,
        receipt_key=receipt_key,
        signature=key.sign(challenge_bytes("join", run, nonce, key.public_key, receipt_key)),
        invite_code=invite,
    )
    for name, value in changes.items():
        setattr(request, name, value)
    return request


@pytest.fixture(scope="module")
def other_key(tmp_path_factory: pytest.TempPathFactory) -> DeviceKey:
    return DeviceKey.load_or_create(tmp_path_factory.mktemp("other") / "device.key")


async def test_a_join_hands_out_everything_a_peer_needs(tmp_path: Path, key: DeviceKey) -> None:
    """An invited device receives a token in its member's name, the run, the keeper's addresses and the files."""
    async with serving(tmp_path) as coordinator, connected(coordinator) as client:
        write_status(coordinator, "/ip4/127.0.0.1/tcp/31337/p2p/QmKeeper")
        reply = await client.join(key, coordinator.invite("Ada"))
        token = read_token(reply.token, reply.authority_key, "test")
        assert (token.member, token.peer_id, token.role) == ("Ada", key.peer_id, "trainer")
        assert token.receipt_key == key.receipt_key("test").pseudonym
        assert (reply.member, reply.device_id) == ("Ada", token.device_id)
        assert reply.device_number == 0
        assert RunConfig.from_json(reply.run_config_json) == coordinator.services.config
        assert list(reply.initial_peers) == ["/ip4/127.0.0.1/tcp/31337/p2p/QmKeeper"]
        assert [(file.name, file.size_bytes) for file in reply.files] == [("tokenizer.json", len(TOKENIZER))]
        assert reply.revocations


async def test_a_known_device_comes_back_and_renews_without_an_invite(tmp_path: Path, key: DeviceKey) -> None:
    """Only the first join takes an invite; from then on the device's signature is enough."""
    async with serving(tmp_path) as coordinator, connected(coordinator) as client:
        first = await client.join(key, coordinator.invite("Ada"))
        again = await client.join(key)
        renewed = await client.renew(key)
        assert first.device_id == again.device_id
        assert read_token(renewed, first.authority_key, "test").device_id == first.device_id
        assert coordinator.refusals() == []


async def test_each_refused_join_raises_its_own_error_and_is_recorded(
    tmp_path: Path, key: DeviceKey, other_key: DeviceKey
) -> None:
    """No invite, an unknown, a used and an expired one, a revoked member: five different errors at the peer."""
    async with serving(tmp_path) as coordinator, connected(coordinator) as client:
        used, expired = coordinator.invite("Ada"), coordinator.invite("Bo")
        await client.join(key, used)
        with pytest.raises(NotInvitedError, match="invite code"):
            await client.join(other_key)
        with pytest.raises(NotInvitedError):
            await client.renew(other_key)
        with pytest.raises(UnknownInviteError):
            await client.join(other_key, "00000-00000-00000-00000")
        with pytest.raises(UsedInviteError):
            await client.join(other_key, used)
        coordinator.clock.ahead_s = 30 * 86_400.0
        with pytest.raises(ExpiredInviteError):
            await client.join(other_key, expired)
        coordinator.services.membership.revoke("Ada", "test")
        with pytest.raises(RevokedError):
            await client.join(key)
        with pytest.raises(RevokedError):
            await client.renew(key)
        codes = ["unknown-invite", "used-invite", "expired-invite", "revoked"]
        strangers = [("join", "not-invited"), ("renew", "not-invited")]
        assert coordinator.refusals() == [*strangers, *(("join", code) for code in codes), ("renew", "revoked")]


async def test_a_signature_by_another_key_is_refused(tmp_path: Path, key: DeviceKey, other_key: DeviceKey) -> None:
    """Nobody joins or renews with a public key whose private half he does not hold; the invite stays unused."""
    async with serving(tmp_path) as coordinator, connected(coordinator) as client:
        invite = coordinator.invite("Ada")
        with pytest.raises(TokenError, match="signature"):
            await call(client, "Join", a_join(other_key, await nonce_of(client), invite, public_key=key.public_key))
        await client.join(key, invite)
        nonce = await nonce_of(client)
        forged = control_pb2.RenewRequest(
            nonce=nonce,
            public_key=key.public_key,
            signature=other_key.sign(challenge_bytes("renew", "test", nonce, key.public_key)),
        )
        with pytest.raises(TokenError, match="signature"):
            await call(client, "Renew", forged)


async def test_nobody_takes_anothers_receipt_key(tmp_path: Path, key: DeviceKey, other_key: DeviceKey) -> None:
    """The device signs the one that it tells: another in its place is refused, and so is one that is taken, or none."""
    async with serving(tmp_path) as coordinator, connected(coordinator) as client:
        taken, invite = key.receipt_key("test").public_bytes, coordinator.invite("Eve")
        with pytest.raises(TokenError, match="signature"):
            await call(
                client, "Join", a_join(other_key, await nonce_of(client), coordinator.invite("Eve"), receipt_key=taken)
            )
        with pytest.raises(RequestError, match="must have 32 bytes"):
            await call(
                client, "Join", a_join(other_key, await nonce_of(client), coordinator.invite("Eve"), receipt_key=b"")
            )
        await client.join(key, coordinator.invite("Ada"))
        nonce = await nonce_of(client)
        signature = other_key.sign(challenge_bytes("join", "test", nonce, other_key.public_key, taken))
        copied = a_join(other_key, nonce, invite, receipt_key=taken, signature=signature)
        with pytest.raises(RequestError, match="another device's"):
            await call(client, "Join", copied)


async def test_a_signature_for_another_purpose_is_refused(tmp_path: Path, key: DeviceKey) -> None:
    """What was signed to renew cannot be used to join."""
    async with serving(tmp_path) as coordinator, connected(coordinator) as client:
        nonce = await nonce_of(client)
        signature = key.sign(challenge_bytes("renew", "test", nonce, key.public_key))
        with pytest.raises(TokenError):
            await call(client, "Join", a_join(key, nonce, coordinator.invite("Ada"), signature=signature))


async def test_an_endless_code_is_refused(tmp_path: Path, key: DeviceKey) -> None:
    """Though the message is not too large to be read."""
    async with serving(tmp_path) as coordinator, connected(coordinator) as client:
        with pytest.raises(RequestError, match="too long"):
            await call(client, "Join", a_join(key, await nonce_of(client), "x" * 100))


@pytest.mark.parametrize("name", ["../secret", "secret", "/etc/passwd", "", "tokenizer"])
async def test_only_the_listed_files_are_served(tmp_path: Path, key: DeviceKey, name: str) -> None:
    """A name is looked up, never opened as a path."""
    async with serving(tmp_path) as coordinator, connected(coordinator) as client:
        reply = await client.join(key, coordinator.invite("Ada"))
        stream = client._stub.FetchFile(control_pb2.FetchFileRequest(token=reply.token, name=name), timeout=PATIENCE_S)
        with pytest.raises(grpc.aio.AioRpcError, match="no file"):
            await stream.read()
        assert coordinator.refusals() == [("file", "bad-request")]


async def test_files_are_for_members_only(tmp_path: Path, key: DeviceKey) -> None:
    """Without a valid token there is no file: neither with rubbish nor with a token whose time is over."""
    async with serving(tmp_path) as coordinator, connected(coordinator) as client:
        reply = await client.join(key, coordinator.invite("Ada"))
        file = reply.files[0]
        rubbish = control_pb2.JoinReply(token="rubbish", files=[file])
        with pytest.raises(TokenError):
            await client.fetch_files(rubbish, tmp_path / "out")
        coordinator.clock.ahead_s = 3601.0
        with pytest.raises(ExpiredTokenError):
            await client.fetch_files(reply, tmp_path / "out")
        assert list((tmp_path / "out").iterdir()) == []


async def test_an_internal_failure_tells_the_network_nothing(
    tmp_path: Path, key: DeviceKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug or a broken store is an anonymous, temporary error to the peer."""

    def broken(*_: object) -> None:
        raise RuntimeError("database password is hunter2")

    async with serving(tmp_path) as coordinator, connected(coordinator) as client:
        monkeypatch.setattr(coordinator.services.membership, "join", broken)
        with pytest.raises(UnreachableError) as caught:
            await client.join(key)
        assert "hunter2" not in str(caught.value)


def add_checkpoint(coordinator: TestCoordinator, step: int, withheld: str = "") -> StoredCheckpoint:
    """Write and record one."""
    model = torch.nn.Linear(3, 3)
    stored = write_checkpoint(
        coordinator.directory.checkpoints_dir,
        take_snapshot(step, model, torch.optim.SGD(model.parameters())),
        run="test",
        era=0,
        texts={},
        tokenizer_dir=coordinator.directory.tokenizer_dir,
        probe={},
        probe_loss=None,
        created_at=0.0,
    )
    record_checkpoint(
        coordinator.services.database,
        step=step,
        size_bytes=stored.size_bytes,
        manifest_sha256=stored.manifest_sha256,
        now=0.0,
        withheld=withheld,
    )
    return stored


async def test_members_are_offered_the_newest_that_is_published(tmp_path: Path) -> None:
    """With the digests of its state and the swarm's step; strangers are not, nor is what was withheld or is gone."""
    async with serving(tmp_path) as coordinator, connected(coordinator) as client:
        with pytest.raises(TokenError):
            await client.newest_checkpoint("a.b.c")
        token = (await join_as(coordinator, client, tmp_path / "ada", "ada")).token_jwt
        assert not (await client.newest_checkpoint(token)).address  # neither a keeper nor a checkpoint yet
        write_status(coordinator, KEEPER)
        stored = add_checkpoint(coordinator, 2)
        add_checkpoint(coordinator, 3, withheld="its loss is not finite")
        offer = await client.newest_checkpoint(token)
        assert (offer.step, offer.swarm_step) == (2, 3)
        assert offer.address == f"{coordinator.directory.settings.web_address}/api/v1/checkpoints/2"
        entries = stored.manifest.files
        assert [(file.name, file.size_bytes, file.sha256.hex()) for file in offer.files] == [
            (name, entries[name].size_bytes, entries[name].sha256) for name in STATE_FILES
        ]
        shutil.rmtree(stored.path)
        assert not (await client.newest_checkpoint(token)).address


async def test_a_worker_hears_that_there_is_none(tmp_path: Path) -> None:
    """It asks its agent, which asks the coordinator, and goes to the swarm then."""
    async with serving(tmp_path) as coordinator:
        agent, shown = make_agent(coordinator, tmp_path / "ada", worker_mains.asks_for_a_checkpoint)
        running = asyncio.create_task(agent.run())
        await eventually("the agent is ready", lambda: any(isinstance(event, Ready) for event in shown.events))
        answer = next(event.device for event in shown.events if isinstance(event, Ready))
        assert answer == repr(CheckpointFetched(0, ""))
        agent.stop("test")
        await asyncio.wait_for(running, PATIENCE_S)


@pytest.fixture
def store(database: Database, clock: Clock) -> NonceStore:
    return NonceStore(KEY, database, clock)


def test_a_nonce_is_taken_back_once(store: NonceStore, database: Database, clock: Clock) -> None:
    """The second answer to a challenge is refused, by the replica that took the first and by any other."""
    nonce = store.issue()
    assert len(nonce) == NONCE_BYTES
    another = NonceStore(KEY, database, clock)
    another.redeem(nonce)
    for replica in (store, another):
        with pytest.raises(RequestError):
            replica.redeem(nonce)


def test_checking_does_not_spend(store: NonceStore) -> None:
    """Only who proves a key uses a nonce up."""
    nonce = store.issue()
    for _ in range(2):
        store.check(nonce)
    store.redeem(nonce)


@pytest.mark.parametrize("nonce", [b"", b"\0" * 32, b"\xff" * 32, b"\0" * 31, b"\xff" * 1000])
def test_a_nonce_that_was_never_issued_is_refused(store: NonceStore, nonce: bytes) -> None:
    """Nobody brings his own."""
    with pytest.raises(RequestError):
        store.redeem(nonce)


def test_a_changed_nonce_is_refused(store: NonceStore) -> None:
    """No byte of it can be another, such as those of its expiry."""
    nonce = store.issue()
    for place in range(NONCE_BYTES):
        changed = bytearray(nonce)
        changed[place] ^= 1
        with pytest.raises(RequestError):
            store.check(bytes(changed))


def test_another_runs_nonce_is_refused(store: NonceStore, database: Database, clock: Clock) -> None:
    """It has another key."""
    with pytest.raises(RequestError):
        store.redeem(NonceStore(b"other", database, clock).issue())


def test_a_nonce_is_good_for_its_lifetime(store: NonceStore, clock: Clock) -> None:
    """It is good until its lifetime is over, in whole seconds."""
    in_time, too_late = store.issue(), store.issue()
    clock.now += NONCE_LIFETIME_S - 1
    store.redeem(in_time)
    clock.now += 1
    with pytest.raises(RequestError, match="too old"):
        store.redeem(too_late)


def test_only_redeemed_nonces_are_kept_and_not_for_ever(store: NonceStore, database: Database, clock: Clock) -> None:
    """A flood of challenges fills neither memory nor table; what is expired goes when the next is redeemed."""
    nonces = [store.issue() for _ in range(100)]
    for nonce in nonces[:2]:
        store.redeem(nonce)
    with database() as session:
        assert session.query(SpentNonce).count() == 2
    clock.now += NONCE_LIFETIME_S
    store.redeem(store.issue())
    with database() as session:
        assert session.query(SpentNonce).count() == 1


def test_replicas_with_the_same_tls_key_have_the_same(tmp_path: Path) -> None:
    """And others have another; a key that is missing is named."""
    for name, content in (("a", b"one"), ("b", b"one"), ("c", b"two")):
        (tmp_path / name).write_bytes(content)
    assert nonce_key(tmp_path / "a") == nonce_key(tmp_path / "b") != nonce_key(tmp_path / "c")
    with pytest.raises(StorageError, match="none"):
        nonce_key(tmp_path / "none")
