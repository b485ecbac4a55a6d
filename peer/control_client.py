"""The peer's calls to the coordinator: connect, join, renew, fetch files, and open the session's stream.

The join link's fingerprint is the only trust anchor: the server's certificate is read once, compared with it, and then
is the only root that the channel accepts. `peer.session` builds the long-lived session on top.
"""

from __future__ import annotations

import asyncio
import hmac
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc

from auth.errors import ClockError, FingerprintError, LinkError, UnreachableError, VersionError
from auth.identity import TLS_NAME, DeviceKey, certificate_fingerprint, challenge_bytes
from auth.join_link import JoinLink
from peer.file_fetch import has_digest, incoming_file
from peer.protocol import (
    MAX_CLOCK_SKEW_S,
    MAX_COORDINATOR_MESSAGE_BYTES,
    PROTOCOL_VERSION,
    control_pb2,
    control_pb2_grpc,
)
from peer.protocol.errors import error_from_rpc

CONNECT_TIMEOUT_S = 10.0
CALL_TIMEOUT_S = 20.0
FETCH_TIMEOUT_S = 600.0

_CHANNEL_OPTIONS = (
    ("grpc.ssl_target_name_override", TLS_NAME),
    ("grpc.max_receive_message_length", MAX_COORDINATOR_MESSAGE_BYTES),
    # A connection that died without a word (a laptop that slept, a router that forgot) is noticed within half a minute.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # The session has its own back-off; gRPC's, which grows to two minutes, must not stand behind it.
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.enable_http_proxy", 0),
)
_Reply = TypeVar("_Reply")


class ControlClient:
    """A verified connection to the coordinator that a join link names; made by `connect`, ended by `close`."""

    def __init__(self, link: JoinLink, channel: grpc.aio.Channel) -> None:
        self.link = link
        self._channel = channel
        self._stub: Any = control_pb2_grpc.ControlStub(channel)  # type: ignore[no-untyped-call]

    @classmethod
    async def connect(cls, link: JoinLink, clock: Callable[[], float]) -> ControlClient:
        """Verify the coordinator's certificate, version, run and clock, each with its own error."""
        certificate = await _read_certificate(link)
        if not hmac.compare_digest(certificate_fingerprint(certificate), link.fingerprint):
            raise FingerprintError(
                f"The coordinator at {link.address} is not the one that the link names: its certificate is another. "
                "Ask the operator for the current link; do not join this one."
            )
        credentials = grpc.ssl_channel_credentials(certificate.encode())
        client = cls(link, grpc.aio.secure_channel(link.address, credentials, options=_CHANNEL_OPTIONS))
        try:
            _check_greeting(link, await client._challenge(), now=clock())
        except BaseException:
            await client.close()
            raise
        return client

    async def join(
        self, key: DeviceKey, invite: str = "", *, role: str = "", software: str = ""
    ) -> control_pb2.JoinReply:
        """Become a member's device with an invite code, or come back as a known device without one."""
        nonce = (await self._challenge()).nonce
        return await self._call(
            self._stub.Join,
            control_pb2.JoinRequest(
                nonce=nonce,
                public_key=key.public_key,
                signature=key.sign(challenge_bytes("join", self.link.run, nonce, key.public_key)),
                invite_code=invite,
                role=role,
                software_version=software,
            ),
        )

    async def renew(self, key: DeviceKey) -> str:
        """A new access token (JWT) for a device that joined before."""
        nonce = (await self._challenge()).nonce
        signature = key.sign(challenge_bytes("renew", self.link.run, nonce, key.public_key))
        request = control_pb2.RenewRequest(nonce=nonce, public_key=key.public_key, signature=signature)
        reply: control_pb2.RenewReply = await self._call(self._stub.Renew, request)
        return reply.token

    async def fetch_file(self, name: str, digest: bytes, into: Path, *, token: str, size_bytes: int) -> Path:
        """Fetch one of the run's files into the directory `into`, unless it is there already, and verify it."""
        target = into / name
        if await asyncio.to_thread(has_digest, target, digest):
            return target
        request = control_pb2.FetchFileRequest(token=token, name=name)
        chunks = self._stub.FetchFile(request, timeout=FETCH_TIMEOUT_S)
        try:
            with incoming_file(into, name, digest, size_bytes) as file:
                async for chunk in chunks:
                    file.write(chunk.data)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        finally:
            chunks.cancel()
        return target

    async def fetch_files(self, reply: control_pb2.JoinReply, into: Path) -> None:
        """Fetch every file that a join named (the tokenizer's) into the directory `into`."""
        for file in reply.files:
            await self.fetch_file(file.name, file.sha256, into, token=reply.token, size_bytes=file.size_bytes)

    def open_session(self) -> Any:
        """The raw stream of a session (grpc.aio's StreamStreamCall); without a deadline: keepalive watches it."""
        return self._stub.Session()

    async def close(self) -> None:
        """Close the connection and whatever runs on it."""
        await self._channel.close()

    async def _challenge(self) -> control_pb2.ChallengeReply:
        request = control_pb2.ChallengeRequest(protocol_version=PROTOCOL_VERSION)
        return await self._call(self._stub.Challenge, request)

    async def _call(self, method: Callable[..., Awaitable[_Reply]], request: object) -> _Reply:
        try:
            return await method(request, timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error


async def _read_certificate(link: JoinLink) -> str:
    """The server's certificate (PEM), not trusted yet: the caller compares it with the link's fingerprint."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    opening = asyncio.open_connection(link.host, link.port, ssl=context, server_hostname=TLS_NAME)
    try:
        _, writer = await asyncio.wait_for(opening, CONNECT_TIMEOUT_S)
    except asyncio.TimeoutError as error:
        raise UnreachableError(
            f"No answer from {link.address} within {CONNECT_TIMEOUT_S:.0f} s; is the coordinator running?"
        ) from error
    except ssl.SSLError as error:
        raise UnreachableError(f"What answers at {link.address} does not speak TLS; check the link's port.") from error
    except OSError as error:
        raise UnreachableError(
            f"Cannot reach the coordinator at {link.address}: {error.strerror or error}; is it running?"
        ) from error
    try:
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.transport.abort()
    return ssl.DER_cert_to_PEM_cert(certificate)


def _check_greeting(link: JoinLink, greeting: control_pb2.ChallengeReply, now: float) -> None:
    if greeting.protocol_version != PROTOCOL_VERSION:
        raise VersionError(
            f"The coordinator speaks protocol version {greeting.protocol_version}, this program {PROTOCOL_VERSION}; "
            "install the version of manyhands that the operator names."
        )
    if greeting.run_name != link.run:
        raise LinkError(f"The coordinator's run is `{greeting.run_name}`, but the link says `{link.run}`.")
    skew_s = now - greeting.server_time
    if not abs(skew_s) <= MAX_CLOCK_SKEW_S:
        raise ClockError(
            f"This machine's clock is {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} the coordinator's; "
            f"set it right (at most {MAX_CLOCK_SKEW_S:.0f} s are allowed)."
        )
