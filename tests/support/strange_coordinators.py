"""Coordinators that are not as they should be: real gRPC servers with TLS and a link, and answers of a test's own."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from auth.join_link import JoinLink
from auth.keys import certificate_fingerprint, create_tls_certificate
from peer.protocol import PROTOCOL_VERSION, control_pb2, control_pb2_grpc


class OldCoordinator(control_pb2_grpc.ControlServicer):
    """Knows nothing but a greeting; its version is a test's to choose."""

    def __init__(self, version: int = PROTOCOL_VERSION) -> None:
        self._version = version

    async def Challenge(self, _request: Any, _context: Any) -> control_pb2.ChallengeReply:  # noqa: N802
        """Greet."""
        return control_pb2.ChallengeReply(
            nonce=bytes(32), server_time=time.time(), run_name="test", protocol_version=self._version
        )


class SilentCoordinator(OldCoordinator):
    """Answers everything, and does nothing: it neither dials nor counts, and describes a run wrongly."""

    def __init__(self, description: control_pb2.DescribeReply | None = None) -> None:
        super().__init__()
        self._description = description or control_pb2.DescribeReply()

    async def Describe(self, _request: Any, _context: Any) -> control_pb2.DescribeReply:  # noqa: N802
        """As the test says."""
        return self._description

    async def DialBack(self, _request: Any, _context: Any) -> control_pb2.DialBackReply:  # noqa: N802
        """Promise, and stay away."""
        return control_pb2.DialBackReply(word=bytes(16))

    async def Probe(self, chunks: Any, _context: Any) -> AsyncIterator[control_pb2.ProbeDown]:  # noqa: N802
        """Claim to have received more than was sent."""
        yield control_pb2.ProbeDown()
        received = sum([len(chunk.data) async for chunk in chunks])
        yield control_pb2.ProbeDown(received_bytes=received + 1)


@asynccontextmanager
async def strange_coordinator(folder: Path, servicer: control_pb2_grpc.ControlServicer) -> AsyncIterator[JoinLink]:
    """Serve it; yields its link."""
    key, certificate = folder / "tls.key", folder / "tls.crt"
    create_tls_certificate(key, certificate)
    server = grpc.aio.server()
    control_pb2_grpc.add_ControlServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    pair = (key.read_bytes(), certificate.read_bytes())
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials((pair,)))
    await server.start()
    try:
        yield JoinLink("127.0.0.1", port, "test", certificate_fingerprint(pair[1]))
    finally:
        await server.stop(None)
