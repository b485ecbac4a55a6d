"""The control plane's servicer: challenge, join, login, renewal, names, files, anonymous calls.

Handlers verify proofs and respond. They call the synchronous business logic in threads
(`coordinator.members.membership`, `coordinator.ledger`, `coordinator.control.visitors`).
`answering` records expected errors as refusals. `coordinator.control.session` serves sessions.

A device proves possession of its key by signing a single-use nonce, which is valid on any replica:

    nonce = random (12 bytes) | expiry, Unix seconds (4) | HMAC-SHA256 of these (16)

Issued nonces are not stored: replicas recognize them by the HMAC, whose key is derived from the TLS
key that all replicas share. Only redeemed nonces are stored, until they expire.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import random
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import grpc
from sqlalchemy import delete
from sqlalchemy.orm import Session

from auth.errors import ManyhandsError, RequestError, StorageError, TokenError, UnreachableError, VersionError
from auth.keys import RECEIPT_KEY_BYTES, Purpose, challenge_bytes, verify_signature
from coordinator.checkpoints.manifest import verify
from coordinator.context.refusal_log import RefusalRecorder
from coordinator.context.services import RunFile, RunServices
from coordinator.control.door import Door
from coordinator.control.relays import relays, some_of
from coordinator.control.session import SessionServer
from coordinator.control.visitors import Visitors
from coordinator.ledger.keeper_status import read_swarm_status
from coordinator.ledger.recorded_checkpoints import checkpoints
from coordinator.members.membership import MAX_NAME_CHARS, Grant
from coordinator.members.names import choose_name
from coordinator.store.engine import Database
from coordinator.store.refusals import Kind
from coordinator.store.service_models import SpentNonce
from peer.protocol import (
    CHUNK_BYTES,
    MAX_VERSION_CHARS,
    NONCE_BYTES,
    NONCE_LIFETIME_S,
    PROTOCOL_VERSION,
    STATE_FILES,
    control_pb2,
    control_pb2_grpc,
)
from peer.protocol.errors import metadata_of, status_of
from peer.runtime.software import install_commands
from peer.runtime.version import software_version

MAX_INVITE_CHARS = 64
_EXPIRY_BYTES, _CODE_BYTES = 4, 16
_RANDOM_BYTES = NONCE_BYTES - _EXPIRY_BYTES - _CODE_BYTES
logger = logging.getLogger(__name__)


class ControlServicer(control_pb2_grpc.ControlServicer):
    """The handlers of all gRPC calls; `control.proto` documents each call."""

    def __init__(
        self, services: RunServices, nonces: NonceStore, sessions: SessionServer, visitors: Visitors, door: Door
    ) -> None:
        self._services, self._nonces, self._sessions, self._visitors = services, nonces, sessions, visitors
        self._door = door
        self._run = services.config.run.name
        self._rng = random.Random()

    async def Challenge(self, request: control_pb2.ChallengeRequest, context: Any) -> control_pb2.ChallengeReply:  # noqa: N802
        """Issue a nonce, with the information that a peer checks before it joins."""
        async with answering(context, self._services.refusals, "join"):
            if request.protocol_version != PROTOCOL_VERSION:
                raise VersionError(
                    f"The coordinator speaks protocol version {PROTOCOL_VERSION}, this program "
                    f"{request.protocol_version}; update to manyhands {software_version()}, which it runs: "
                    + " && ".join(install_commands(self._services.software_address))
                )
            return control_pb2.ChallengeReply(
                nonce=self._nonces.issue(),
                server_time=self._services.clock(),
                run_name=self._run,
                protocol_version=PROTOCOL_VERSION,
                software_version=software_version(),
                software_address=self._services.software_address,
                login_providers=[
                    control_pb2.LoginProvider(name=name, title=title)
                    for name, title in self._services.logins.titles.items()
                ],
            )

    async def Join(self, request: control_pb2.JoinRequest, context: Any) -> control_pb2.JoinReply:  # noqa: N802
        """Admit a new or known device; return its token and the run's configuration and files."""
        async with answering(context, self._services.refusals, "join"):
            _check_join_fields(request)
            await self._check_proof("join", request, request.receipt_key)
            grant = await asyncio.to_thread(
                self._services.membership.join,
                request.public_key,
                request.invite_code,
                request.role,
                receipt_key=request.receipt_key.hex(),
            )
            return await asyncio.to_thread(self._join_reply, grant)

    async def Login(  # noqa: N802
        self, request: control_pb2.LoginRequest, context: Any
    ) -> AsyncIterator[control_pb2.LoginUpdate]:
        """Admit a device after a login at an identity provider; cancelling the call cancels the login."""
        async with answering(context, self._services.refusals, "login"):
            _check_device_fields(request)
            await self._check_proof("login", request, request.receipt_key)
            async with self._services.logins.begun(self._door.caller(context), request.provider) as waiting:
                yield control_pb2.LoginUpdate(prompt=control_pb2.LoginPrompt(**asdict(waiting.prompt)))
                identity = await waiting.identity()
            grant = await asyncio.to_thread(
                self._services.membership.join_by_login,
                request.public_key,
                identity,
                request.role,
                receipt_key=request.receipt_key.hex(),
            )
            yield control_pb2.LoginUpdate(admitted=await asyncio.to_thread(self._join_reply, grant))

    async def Renew(self, request: control_pb2.RenewRequest, context: Any) -> control_pb2.RenewReply:  # noqa: N802
        """Issue a new token to a known device."""
        async with answering(context, self._services.refusals, "renew"):
            await self._check_proof("renew", request)
            grant = await asyncio.to_thread(self._services.membership.renew, request.public_key)
            return control_pb2.RenewReply(token=grant.token_jwt)

    async def ChooseName(  # noqa: N802
        self, request: control_pb2.ChooseNameRequest, context: Any
    ) -> control_pb2.ChooseNameReply:
        """Set a member's public name: a chosen name, a number, or the original name."""
        async with answering(context, self._services.refusals, "name"):
            if len(request.display_name) > MAX_NAME_CHARS:
                raise RequestError(f"`display_name` must not be longer than {MAX_NAME_CHARS} characters.")
            await self._check_proof("name", request)
            chosen = await asyncio.to_thread(
                choose_name, self._services.database, request.public_key, request.display_name, request.anonymous
            )
            return control_pb2.ChooseNameReply(shown=chosen.shown, hidden=chosen.hidden)

    async def FetchFile(  # noqa: N802
        self, request: control_pb2.FetchFileRequest, context: Any
    ) -> AsyncIterator[control_pb2.FileChunk]:
        """Stream one of the run's files to a member."""
        async with answering(context, self._services.refusals, "file"):
            await asyncio.to_thread(self._services.membership.check, request.token)
            file = self._services.files.get(request.name)
            if file is None:
                raise RequestError(f"The run has no file {request.name!r:.80}.")
            async for chunk in _read_chunks(file):
                yield control_pb2.FileChunk(data=chunk)

    async def Checkpoint(  # noqa: N802
        self, request: control_pb2.CheckpointRequest, context: Any
    ) -> control_pb2.CheckpointReply:
        """Return the download URL of the newest checkpoint to a member."""
        async with answering(context, self._services.refusals, "file"):
            await asyncio.to_thread(self._services.membership.check, request.token)
            return await asyncio.to_thread(_offered_checkpoint, self._services)

    async def Session(self, _request_iterator: Any, context: Any) -> None:  # noqa: N802
        """Serve a device's session, reading and writing through `context`."""
        async with answering(context, self._services.refusals, "session"):
            await self._sessions.serve(context)

    async def Describe(self, _: control_pb2.DescribeRequest, context: Any) -> control_pb2.DescribeReply:  # noqa: N802
        """Return the run's requirements and its swarm's addresses to any caller."""
        async with answering(context, self._services.refusals, "visit"):
            return await self._visitors.describe(self._door.caller(context))

    async def Probe(self, chunks: AsyncIterator[control_pb2.ProbeUp], context: Any) -> None:  # noqa: N802
        """Measure the bandwidth of any caller's connection."""
        async with answering(context, self._services.refusals, "visit"):
            await self._visitors.probe(self._door.caller(context), chunks, context.write)

    async def DialBack(  # noqa: N802
        self, request: control_pb2.DialBackRequest, context: Any
    ) -> control_pb2.DialBackReply:
        """Connect back to the caller, to test its reachability for other peers."""
        async with answering(context, self._services.refusals, "visit"):
            word = self._visitors.dial_back(self._door.caller(context), request.port, request.udp_port)
            return control_pb2.DialBackReply(word=word)

    async def _check_proof(
        self,
        purpose: Purpose,
        request: control_pb2.JoinRequest
        | control_pb2.LoginRequest
        | control_pb2.RenewRequest
        | control_pb2.ChooseNameRequest,
        *further: bytes,
    ) -> None:
        """Verify that the request's key signed a valid nonce, and then mark the nonce as used.

        The signature also covers the bytes in `further`. Raises `TokenError` or `RequestError`.
        """
        self._nonces.check(request.nonce)
        challenge = challenge_bytes(purpose, self._run, request.nonce, request.public_key, *further)
        if not await asyncio.to_thread(verify_signature, request.public_key, challenge, request.signature):
            raise TokenError("The signature was not made with the device's key.")
        await asyncio.to_thread(self._nonces.redeem, request.nonce)

    def _join_reply(self, grant: Grant) -> control_pb2.JoinReply:
        services = self._services
        status = read_swarm_status(services.database)
        files = services.files.items()
        return control_pb2.JoinReply(
            token=grant.token_jwt,
            authority_key=services.authority_public,
            run_config_json=services.config.to_json(),
            files=[control_pb2.RunFile(name=name, size_bytes=f.size_bytes, sha256=f.sha256) for name, f in files],
            initial_peers=status.addresses if status is not None else (),
            relays=some_of(relays(services.database, services.clock()), grant.peer_id, self._rng),
            revocations=services.membership.revocations_jwt(),
            member=grant.member,
            device_id=grant.device_id,
            device_number=grant.device_number,
        )


class NonceStore:
    """A thread-safe issuer and verifier of single-use nonces."""

    def __init__(self, key: bytes, database: Database, clock: Callable[[], float]) -> None:
        self._key, self._database, self._clock = key, database, clock

    def issue(self) -> bytes:
        """Return a new nonce, valid for `NONCE_LIFETIME_S` (rounded down to seconds)."""
        expires_at = int(self._clock() + NONCE_LIFETIME_S)
        body = secrets.token_bytes(_RANDOM_BYTES) + expires_at.to_bytes(_EXPIRY_BYTES, "big")
        return body + self._code(body)

    def check(self, nonce: bytes) -> None:
        """Raise `RequestError` for an expired or forged nonce, without reading the database."""
        body, code = nonce[:-_CODE_BYTES], nonce[-_CODE_BYTES:]
        ours = len(nonce) == NONCE_BYTES and hmac.compare_digest(code, self._code(body))
        if not ours or self._clock() >= _expiry(nonce):
            raise _stale()

    def redeem(self, nonce: bytes) -> None:
        """Mark a nonce as used. Raises `RequestError` if the nonce is forged, used or expired."""
        self.check(nonce)

        def spend(session: Session) -> None:
            if session.get(SpentNonce, nonce) is not None:
                raise _stale()
            session.execute(delete(SpentNonce).where(SpentNonce.expires_at <= self._clock()))
            session.add(SpentNonce(nonce=nonce, expires_at=float(_expiry(nonce))))

        self._database.transact(spend)  # of two concurrent calls with one nonce, the second is retried and then fails

    def _code(self, body: bytes) -> bytes:
        return hmac.new(self._key, body, hashlib.sha256).digest()[:_CODE_BYTES]


def _expiry(nonce: bytes) -> int:
    return int.from_bytes(nonce[_RANDOM_BYTES : _RANDOM_BYTES + _EXPIRY_BYTES], "big")


def _stale() -> RequestError:
    return RequestError("The challenge was answered already or is too old; ask for a new one.")


def nonce_key(tls_key: Path) -> bytes:
    """Derive the nonce key from the TLS key, so that all replicas share it. Raises `StorageError`."""
    try:
        return hmac.digest(tls_key.read_bytes(), b"manyhands-nonces-v1", "sha256")
    except OSError as error:
        raise StorageError(f"Cannot read the TLS key {tls_key} ({error.strerror}).") from error


@asynccontextmanager
async def answering(context: Any, refusals: RefusalRecorder, kind: Kind) -> AsyncIterator[None]:
    """Handle a request's errors: record `ManyhandsError`s as refusals, hide others from callers."""
    try:
        yield
    except UnreachableError as error:  # an internal failure, for example during shutdown, is not recorded
        await context.abort(status_of(error), str(error), metadata_of(error))
    except ManyhandsError as error:
        logger.info("Refused a %s request: %s", kind, error)  # no address, because logs must not contain addresses
        await refusals.record(kind, error)
        await context.abort(status_of(error), str(error), metadata_of(error))
    except Exception:  # last resort: log the details, but do not send them to the caller
        logger.exception("A %s request failed", kind)
        await context.abort(grpc.StatusCode.INTERNAL, "The coordinator failed at this request; its log says why.")


def _check_join_fields(request: control_pb2.JoinRequest) -> None:
    if len(request.invite_code) > MAX_INVITE_CHARS:
        raise RequestError("The invite code is too long.")
    _check_device_fields(request)


def _check_device_fields(request: control_pb2.JoinRequest | control_pb2.LoginRequest) -> None:
    if len(request.software_version) > MAX_VERSION_CHARS:
        raise RequestError("The software version is too long.")
    if len(request.receipt_key) != RECEIPT_KEY_BYTES:
        raise RequestError(f"The receipt key must have {RECEIPT_KEY_BYTES} bytes, not {len(request.receipt_key)}.")


async def _read_chunks(file: RunFile) -> AsyncIterator[bytes]:
    with await asyncio.to_thread(file.path.open, "rb") as source:
        while chunk := await asyncio.to_thread(source.read, CHUNK_BYTES):
            yield chunk


def _offered_checkpoint(services: RunServices) -> control_pb2.CheckpointReply:
    """Return the download URL of the newest published checkpoint, or an empty reply."""
    status = read_swarm_status(services.database)
    newest = next((row for row in checkpoints(services.database) if not row.withheld), None)
    if status is None or newest is None:
        return control_pb2.CheckpointReply()
    try:
        files = _state_files(services.checkpoint_dir(newest.step), newest.manifest_sha256)
    except (StorageError, KeyError):  # the checkpoint was just removed, or its optimizer has no such files
        return control_pb2.CheckpointReply()
    address = f"{services.web_address}/api/v1/checkpoints/{newest.step}"
    return control_pb2.CheckpointReply(address=address, step=newest.step, swarm_step=status.step, files=files)


def _state_files(folder: Path, manifest_sha256: str) -> list[control_pb2.RunFile]:
    stored = verify(folder, files=())
    if stored.manifest_sha256 != manifest_sha256:
        raise StorageError(f"{folder.name}: another checkpoint of that step has taken its place.")
    entries = ((name, stored.manifest.files[name]) for name in STATE_FILES)
    return [
        control_pb2.RunFile(name=name, size_bytes=entry.size_bytes, sha256=bytes.fromhex(entry.sha256))
        for name, entry in entries
    ]
