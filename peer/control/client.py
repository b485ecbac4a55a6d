"""The peer's authenticated connection to the coordinator, for joining, tokens and downloads.

The join link's fingerprint is the only trust anchor: a server certificate that matches it becomes
the channel's only root. Certificate, version, run and clock are checked first, each with its own
error. `peer.control.session` opens the long-lived session over this connection; `peer.doctor` uses
the client before the device has joined.
"""

from __future__ import annotations

import asyncio
import hmac
import math
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc
from packaging.version import InvalidVersion, Version

from auth.clock import steady_time
from auth.errors import (
    ClockError,
    FingerprintError,
    LinkError,
    NotInvitedError,
    RequestError,
    UnreachableError,
    VersionError,
)
from auth.join_link import JoinLink
from auth.keys import TLS_NAME, DeviceKey, certificate_fingerprint, challenge_bytes
from peer.control.login import LoginPrompt, LoginProvider, choose_provider, login_providers, read_prompt
from peer.network.downloads import check_announced, has_digest, incoming_file
from peer.network.traffic import Throttle
from peer.protocol import (
    MAX_CLOCK_SKEW_S,
    MAX_COORDINATOR_MESSAGE_BYTES,
    MAX_RUN_FILES,
    MAX_VERSION_CHARS,
    PROTOCOL_VERSION,
    control_pb2,
    control_pb2_grpc,
)
from peer.protocol.errors import error_from_rpc, told
from peer.runtime.software import image_command, update_command
from peer.runtime.version import software_version

CONNECT_TIMEOUT_S = 10.0
CALL_TIMEOUT_S = 20.0
FETCH_TIMEOUT_S = 600.0
LOGIN_TIMEOUT_S = 1000.0  # longer than the coordinator waits for a login

_CHANNEL_OPTIONS = (
    ("grpc.ssl_target_name_override", TLS_NAME),
    ("grpc.max_receive_message_length", MAX_COORDINATOR_MESSAGE_BYTES),
    # Detect a dead connection (suspended laptop, expired NAT entry) within half a minute.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Limit gRPC's back-off (by default up to two minutes), because the session has its own.
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    # Stop reconnecting to an unused address after the coordinator has moved.
    ("grpc.client_idle_timeout_ms", 5_000),
    ("grpc.enable_http_proxy", 0),
)
SET_CLOCK = "`sudo timedatectl set-ntp true`, in WSL 2 `sudo hwclock -s`, on macOS `sudo sntp -sS time.apple.com`"
_Reply = TypeVar("_Reply")


class ControlClient:
    """An authenticated connection to a join link's coordinator, opened by `connect`."""

    def __init__(self, link: JoinLink, certificate: str) -> None:
        """Create a client for the link's first address that trusts only this certificate (PEM)."""
        # Set by `connect` from the coordinator's reply.
        self.software_version = ""
        self.software_address = ""
        self.clock_offset_s = math.nan  # the coordinator's time minus `steady_time()`
        self.login_providers: tuple[LoginProvider, ...] = ()
        self._credentials = grpc.ssl_channel_credentials(certificate.encode())
        self._links = deque(link.each())  # the address in use comes first
        self._channels: list[grpc.aio.Channel] = []
        self._stubs: dict[JoinLink, Any] = {}

    @classmethod
    async def connect(cls, link: JoinLink, clock: Callable[[], float]) -> ControlClient:
        """Connect, and verify the certificate, version, run and clock, each with its own error."""
        links = link.each()
        reached, certificate = await find_coordinator(links)
        client = cls(link, certificate)
        client._links.rotate(-links.index(reached))
        try:
            greeting = await client._first_greeting()
            client.software_version = greeting.software_version
            client.software_address = greeting.software_address
            client.login_providers = login_providers(greeting)
            check_version(greeting)
            check_run(link, greeting)
            check_clock(greeting, now=clock())
            client.clock_offset_s = greeting.server_time - steady_time()
        except BaseException:  # close the client on cancellation, too, because the caller cannot
            await client.close()
            raise
        return client

    @property
    def link(self) -> JoinLink:
        """The join link, reduced to the address in use."""
        return self._links[0]

    @property
    def addresses(self) -> int:
        """The number of addresses in the join link."""
        return len(self._links)

    def turn_to_next_address(self) -> None:
        """Use the link's next address, if any, for later calls; calls in progress are unaffected."""
        self._links.rotate(-1)

    @property
    def _stub(self) -> Any:
        """The gRPC stub for the address in use; it connects on first use."""
        if self.link not in self._stubs:
            address = str(self.link.address)
            channel = grpc.aio.secure_channel(address, self._credentials, options=_CHANNEL_OPTIONS)
            self._channels.append(channel)
            self._stubs[self.link] = control_pb2_grpc.ControlStub(channel)  # type: ignore[no-untyped-call]
        return self._stubs[self.link]

    async def _first_greeting(self) -> control_pb2.ChallengeReply:
        """Fetch the first greeting; on a version mismatch, raise an error that explains how to update."""
        try:
            return await self.greet()
        except VersionError as error:
            why = str(error)
            if command := image_command():
                why = (
                    f"The coordinator does not speak this program's protocol version, {PROTOCOL_VERSION}; "
                    f"this container's image is too old or too new: {command}"
                )
            raise VersionError(f"This program is manyhands {software_version()}. {why}") from error

    async def greet(self) -> control_pb2.ChallengeReply:
        """Fetch a new nonce, and the coordinator's version, run and time."""
        request = control_pb2.ChallengeRequest(protocol_version=PROTOCOL_VERSION)
        return await self._call(self._stub.Challenge, request)

    async def describe(self) -> control_pb2.DescribeReply:
        """Fetch the run's description and this machine's observed address; needs no account."""
        return await self._call(self._stub.Describe, control_pb2.DescribeRequest())

    async def swarm_addresses(self) -> tuple[str, ...]:
        """Fetch the keeper's multiaddresses from the coordinator; needs no account."""
        return tuple((await self.describe()).swarm_addresses)

    async def dial_back(self, port: int, udp_port: int = 0) -> bytes:
        """Ask the coordinator to connect to a TCP port and send a datagram to a UDP port of this machine.

        Returns the secret that the coordinator will send. Port 0 is skipped. Needs no account.
        """
        reply = await self._call(self._stub.DialBack, control_pb2.DialBackRequest(port=port, udp_port=udp_port))
        return bytes(reply.word)

    def open_probe(self, timeout_s: float) -> Any:
        """Open a stream to measure the bandwidth (a StreamStreamCall); needs no account."""
        return self._stub.Probe(timeout=timeout_s)

    async def admit(
        self,
        key: DeviceKey,
        tell: Callable[[LoginPrompt], None],
        *,
        known: bool,
        invite: str = "",
        provider: str = "",
        role: str = "",
        software: str = "",
    ) -> control_pb2.JoinReply:
        """Join with an invite code, as a `known` device or with a login, in this order of preference.

        `provider` is the identity provider for the login, or "" if the run has only one.
        """
        if invite or known or not (provider or self.login_providers):
            try:
                return await self.join(key, invite, role=role, software=software)
            except NotInvitedError:
                if invite or not self.login_providers:
                    raise
        chosen = choose_provider(self.login_providers, provider)
        return await self.login(key, chosen, tell, role=role, software=software)

    async def join(
        self, key: DeviceKey, invite: str = "", *, role: str = "", software: str = ""
    ) -> control_pb2.JoinReply:
        """Join with an invite code, or without one if the device has joined before."""
        nonce, receipt_key = (await self.greet()).nonce, key.receipt_key(self.link.run).public_bytes
        return await self._call(
            self._stub.Join,
            control_pb2.JoinRequest(
                nonce=nonce,
                public_key=key.public_key,
                receipt_key=receipt_key,
                signature=key.sign(challenge_bytes("join", self.link.run, nonce, key.public_key, receipt_key)),
                invite_code=invite,
                role=role,
                software_version=software,
            ),
        )

    async def login(
        self,
        key: DeviceKey,
        provider: str,
        tell: Callable[[LoginPrompt], None],
        *,
        role: str = "",
        software: str = "",
    ) -> control_pb2.JoinReply:
        """Join with a login at an identity provider, which may take minutes; `tell` shows the prompt."""
        nonce, receipt_key = (await self.greet()).nonce, key.receipt_key(self.link.run).public_bytes
        request = control_pb2.LoginRequest(
            nonce=nonce,
            public_key=key.public_key,
            receipt_key=receipt_key,
            signature=key.sign(challenge_bytes("login", self.link.run, nonce, key.public_key, receipt_key)),
            provider=provider,
            role=role,
            software_version=software,
        )
        updates = self._stub.Login(request, timeout=LOGIN_TIMEOUT_S)
        try:
            async for update in updates:
                if update.WhichOneof("body") == "admitted":
                    admitted: control_pb2.JoinReply = update.admitted
                    return admitted
                tell(read_prompt(update.prompt))
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        finally:
            updates.cancel()
        raise UnreachableError("The coordinator ended the login without giving a reason; try again.")

    async def renew(self, key: DeviceKey) -> str:
        """Fetch a new access token (JWT) for a device that has joined."""
        nonce = (await self.greet()).nonce
        signature = key.sign(challenge_bytes("renew", self.link.run, nonce, key.public_key))
        request = control_pb2.RenewRequest(nonce=nonce, public_key=key.public_key, signature=signature)
        reply: control_pb2.RenewReply = await self._call(self._stub.Renew, request)
        return reply.token

    async def choose_name(self, key: DeviceKey, display_name: str, anonymous: bool) -> control_pb2.ChooseNameReply:
        """Set this member's public name ("" restores the original), or hide it behind a number."""
        nonce = (await self.greet()).nonce
        signature = key.sign(challenge_bytes("name", self.link.run, nonce, key.public_key))
        request = control_pb2.ChooseNameRequest(
            nonce=nonce,
            public_key=key.public_key,
            signature=signature,
            display_name=display_name,
            anonymous=anonymous,
        )
        return await self._call(self._stub.ChooseName, request)

    async def newest_checkpoint(self, token: str) -> control_pb2.CheckpointReply:
        """Look up the newest checkpoint. Raises `VersionError` if the coordinator is too old."""
        return await self._call(self._stub.Checkpoint, control_pb2.CheckpointRequest(token=token))

    async def fetch_file(
        self, name: str, digest: bytes, into: Path, *, token: str, size_bytes: int, throttle: Throttle | None = None
    ) -> Path:
        """Download and verify one of the run's files, unless the directory `into` already has it."""
        check_announced(name, size_bytes)
        throttle = throttle or Throttle()
        target = into / name
        if await asyncio.to_thread(has_digest, target, digest):
            return target
        request = control_pb2.FetchFileRequest(token=token, name=name)
        chunks = self._stub.FetchFile(request, timeout=FETCH_TIMEOUT_S + throttle.seconds_for(size_bytes))
        try:
            with incoming_file(into, name, digest, size_bytes) as file:
                async for chunk in chunks:
                    file.write(chunk.data)
                    await asyncio.sleep(throttle.reserve(len(chunk.data)))
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        finally:
            chunks.cancel()
        return target

    async def fetch_files(self, reply: control_pb2.JoinReply, into: Path, throttle: Throttle | None = None) -> None:
        """Download all files in the join reply (the tokenizer) to the directory `into`."""
        if len(reply.files) > MAX_RUN_FILES:
            raise RequestError(f"The coordinator names {len(reply.files)} files; a run may have {MAX_RUN_FILES}.")
        for file in reply.files:
            await self.fetch_file(
                file.name, file.sha256, into, token=reply.token, size_bytes=file.size_bytes, throttle=throttle
            )

    def open_session(self) -> Any:
        """Open a session's stream (a StreamStreamCall), which uses keepalive instead of a deadline."""
        return self._stub.Session()

    async def close(self) -> None:
        """Close all connections and cancel their calls."""
        for channel in self._channels:
            await channel.close()

    async def _call(self, method: Callable[..., Awaitable[_Reply]], request: object) -> _Reply:
        try:
            return await method(request, timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error


async def find_coordinator(links: Sequence[JoinLink]) -> tuple[JoinLink, str]:
    """Return (link, certificate in PEM) for the first link whose server has the right certificate.

    Each link has one address. If none succeeds, raises `FingerprintError` if any server presented
    another certificate, else `UnreachableError`.
    """
    failures: list[UnreachableError | FingerprintError] = []
    for link in links:
        try:
            certificate = await read_certificate(link)
            check_fingerprint(link, certificate)
        except (UnreachableError, FingerprintError) as error:
            failures.append(error)
        else:
            return link, certificate
    strangers = [error for error in failures if isinstance(error, FingerprintError)]
    if strangers or len(failures) == 1:
        raise (strangers or failures)[0]
    raise UnreachableError(" ".join(map(str, failures)))


async def read_certificate(link: JoinLink) -> str:
    """Read the certificate (PEM) at the link's first address, without verifying it."""
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
        raise UnreachableError(f"The server at {link.address} does not speak TLS; check the link's port.") from error
    except (OSError, UnicodeError) as error:  # UnicodeError: invalid host name
        reason = getattr(error, "strerror", None) or error
        raise UnreachableError(f"Cannot reach the coordinator at {link.address}: {reason}; is it running?") from error
    try:
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.transport.abort()
    return ssl.DER_cert_to_PEM_cert(certificate)


def check_fingerprint(link: JoinLink, certificate: str) -> None:
    """Raise `FingerprintError` unless the certificate (PEM) matches the link's fingerprint."""
    if not hmac.compare_digest(certificate_fingerprint(certificate), link.fingerprint):
        raise FingerprintError(
            f"The coordinator at {link.address} is not the one that the link names: its certificate differs. "
            "Ask the operator for the current link; do not join this one."
        )


def check_version(greeting: control_pb2.ChallengeReply) -> None:
    """Raise `VersionError` unless the coordinator uses this protocol version."""
    if greeting.protocol_version != PROTOCOL_VERSION:
        raise VersionError(
            f"The coordinator speaks protocol version {greeting.protocol_version}, this program (manyhands "
            f"{software_version()}) {PROTOCOL_VERSION}; install {_named(greeting.software_version)}"
            + (f": {command}" if (command := update_command(greeting.software_address)) else ".")
        )


def check_run(link: JoinLink, greeting: control_pb2.ChallengeReply) -> None:
    """Raise `LinkError` unless the coordinator serves the link's run."""
    if greeting.run_name != link.run:
        raise LinkError(f"The coordinator's run is `{told(greeting.run_name)}`, but the link says `{link.run}`.")


def check_clock(greeting: control_pb2.ChallengeReply, now: float) -> None:
    """Raise `ClockError` if this machine's clock is too far from the coordinator's for tokens to work."""
    skew_s = now - greeting.server_time
    if not abs(skew_s) <= MAX_CLOCK_SKEW_S:
        raise ClockError(
            f"This machine's clock is {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} the coordinator's; "
            f"set it right (at most {MAX_CLOCK_SKEW_S:.0f} s are allowed): {SET_CLOCK}."
        )


def _named(version: str) -> str:
    """Format the coordinator's version for a message, even if it is malformed."""
    try:
        return f"manyhands {Version(version[:MAX_VERSION_CHARS])}"
    except InvalidVersion:
        return "the version that the operator names"
