"""The control plane over real gRPC and TLS: spoilt bytes, fields of any value, sessions in any order.

Every answer is one of the protocol's own refusals; none is an internal failure, and a good request is answered after.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given, strategies as st

from auth.keys import TLS_NAME, DeviceKey, challenge_bytes
from coordinator.control.door import DoorLimits
from coordinator.control.server import ControlServer, TlsFiles
from peer.protocol import LOWEST_DIALLED_PORT, PROTOCOL_VERSION, control_pb2
from tests.support.control_plane import TestCoordinator, serving
from tests.support.inputs import inputs, spoilt
from tests.support.waiting import PATIENCE_S

SERVICE = "/manyhands.v1.Control/"
REFUSALS = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
SINGLE = {
    "Challenge": control_pb2.ChallengeRequest(protocol_version=PROTOCOL_VERSION),
    "Join": control_pb2.JoinRequest(nonce=b"n" * 32, public_key=b"k" * 400, signature=b"s" * 256, invite_code="C"),
    "Renew": control_pb2.RenewRequest(nonce=b"n" * 32, public_key=b"k" * 400, signature=b"s" * 256),
    "FetchFile": control_pb2.FetchFileRequest(token="a.b.c", name="tokenizer.json"),
    "Checkpoint": control_pb2.CheckpointRequest(token="a.b.c"),
    "Describe": control_pb2.DescribeRequest(),
    "DialBack": control_pb2.DialBackRequest(port=1),
}
Bytes = st.SearchStrategy[bytes]


class Server:
    """A coordinator in a thread of its own, a raw channel to it, and one member's device."""

    def __init__(self, path: Path) -> None:
        self._loop, self._ready, self._stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(path),))
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        credentials = grpc.ssl_channel_credentials(self.coordinator.directory.tls_cert_path.read_bytes())
        options = (("grpc.ssl_target_name_override", TLS_NAME), ("grpc.enable_http_proxy", 0))
        self.channel = grpc.secure_channel(str(self.coordinator.link.address), credentials, options=options)
        self.key = DeviceKey.load_or_create(path / "device.key")
        self.token = self.join(self.coordinator.invite("Ada")).token

    async def _serve(self, path: Path) -> None:
        async with serving(path) as self.coordinator:
            await self._open_wide()
            self._ready.set()
            await self._stop.wait()

    async def _open_wide(self) -> None:
        """Serve again without a limit of calls, which would refuse almost everything that is tried here."""
        served = self.coordinator
        await served.server.stop()
        tls = TlsFiles(served.directory.tls_key_path, served.directory.tls_cert_path)
        limits = DoorLimits(calls_per_minute=10**9)
        served.server = await ControlServer.start(served.services, "127.0.0.1", 0, tls, limits)

    coordinator: TestCoordinator

    def ask(self, method: str, request: bytes) -> tuple[grpc.StatusCode, str, bytes]:
        """Status, details and the (first) answer."""
        call = self.channel.unary_stream if method == "FetchFile" else self.channel.unary_unary
        try:
            answer = call(SERVICE + method)(request, timeout=PATIENCE_S)
            return grpc.StatusCode.OK, "", next(iter(answer)) if method == "FetchFile" else answer
        except grpc.RpcError as error:
            return error.code(), error.details(), b""

    def signed(self, purpose: Any, nonce: bytes) -> bytes:
        receipt_key = (self.receipt_key,) if purpose in ("join", "login") else ()
        return self.key.sign(challenge_bytes(purpose, "test", nonce, self.key.public_key, *receipt_key))

    @property
    def receipt_key(self) -> bytes:
        """Of this device, in this run."""
        return self.key.receipt_key("test").public_bytes

    def join(self, invite: str = "") -> control_pb2.JoinReply:
        """As a good device does."""
        answer = self.ask("Challenge", SINGLE["Challenge"].SerializeToString())[2]
        nonce = control_pb2.ChallengeReply.FromString(answer).nonce
        request = control_pb2.JoinRequest(
            nonce=nonce,
            public_key=self.key.public_key,
            receipt_key=self.receipt_key,
            signature=self.signed("join", nonce),
            invite_code=invite,
        )
        code, details, answer = self.ask("Join", request.SerializeToString())
        assert code is grpc.StatusCode.OK, details
        return control_pb2.JoinReply.FromString(answer)

    def close(self) -> None:
        self.channel.close()
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """It must answer a good request after everything, and no session may be left open."""
    running = Server(tmp_path_factory.mktemp("run"))
    yield running
    assert running.join().token
    running.close()


def fields(message: type[Any]) -> st.SearchStrategy[Any]:
    """Messages of a kind with any values that can be written."""
    return st.fixed_dictionaries({}, optional={field.name: values(field) for field in message.DESCRIPTOR.fields}).map(
        lambda chosen: message(**chosen)
    )


def values(field: Any) -> st.SearchStrategy[Any]:
    """What can stand in a field."""
    if field.message_type is not None:  # a map: the only messages within these
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return st.dictionaries(values(key), values(value), max_size=6)
    integers = {
        FieldDescriptor.TYPE_UINT32: st.sampled_from((0, 1, 2**31, 2**32 - 1)) | st.integers(0, 2**32 - 1),
        FieldDescriptor.TYPE_UINT64: st.sampled_from((0, 2**31, 2**53, 2**63 - 1, 2**63, 2**64 - 1))
        | st.integers(0, 9),
        FieldDescriptor.TYPE_DOUBLE: st.floats() | st.sampled_from((1e308, -1.0, 5e-324)),
        FieldDescriptor.TYPE_BOOL: st.booleans(),
        FieldDescriptor.TYPE_BYTES: st.binary(max_size=64) | st.just(b"\0" * 70_000),
        FieldDescriptor.TYPE_STRING: st.text(max_size=40) | st.sampled_from(("\0", "x" * 70_000, "../x", "trainer")),
    }
    return integers[field.type]


def spoilt_message(message: Any) -> Bytes:
    return spoilt(message.SerializeToString()) | st.just(b"\x12\x02\xff\xfe")  # no UTF-8 in a field of text


def dials(request: bytes) -> bool:
    """Whether the coordinator would really connect to a port of this machine."""
    try:
        port = control_pb2.DialBackRequest.FromString(request).port
    except Exception:  # noqa: BLE001 - no message at all
        return False
    return LOWEST_DIALLED_PORT <= port <= 65535


def check(code: grpc.StatusCode, details: str) -> None:
    assert code in REFUSALS, (code, details)
    assert len(details) < 2000
    assert not any(word in details for word in ("Traceback", 'File "', "Exception", "Unexpected <class"))


@inputs(120)
@given(data=st.data())
def test_single_requests(server: Server, data: st.DataObject) -> None:
    """Any bytes and any fields, for every method that takes one request."""
    method = data.draw(st.sampled_from(sorted(SINGLE)))
    kind = type(SINGLE[method])
    request = data.draw(spoilt_message(SINGLE[method]) | fields(kind).map(lambda message: message.SerializeToString()))
    if method == "DialBack" and dials(request):
        return
    check(*server.ask(method, request)[:2])


@inputs(30)
@given(data=st.data())
def test_joins_with_a_true_proof(server: Server, data: st.DataObject) -> None:
    """The proof is right, everything else is not: a known device comes back, or is refused."""
    nonce = control_pb2.ChallengeReply.FromString(
        server.ask("Challenge", SINGLE["Challenge"].SerializeToString())[2]
    ).nonce
    request = data.draw(fields(control_pb2.JoinRequest))
    request.nonce, request.public_key, request.signature = nonce, server.key.public_key, server.signed("join", nonce)
    request.receipt_key = server.receipt_key
    check(*server.ask("Join", request.SerializeToString())[:2])


MESSAGES = {
    "report": control_pb2.StepReport,
    "presence": control_pb2.Presence,
    "hello": control_pb2.Hello,
    "goodbye": control_pb2.Goodbye,
    "lost": control_pb2.Lost,
    "suspicion": control_pb2.Suspicion,
}


@st.composite
def something_said(draw: st.DrawFn) -> bytes:
    """One message of a session, valid in form or not."""
    name = draw(st.sampled_from(sorted(MESSAGES)))
    message = control_pb2.PeerMessage(**{name: draw(fields(MESSAGES[name]))}).SerializeToString()
    return draw(st.just(message) | spoilt(message) | st.just(b"") | st.binary(max_size=40))


def converse(server: Server, hello: bool, said: list[bytes], method: str = "Session") -> tuple[grpc.StatusCode, str]:
    """A stream in which all this is said, after a good hello or at once; how it ended."""
    up: queue.Queue[bytes | None] = queue.Queue()
    call = server.channel.stream_stream(SERVICE + method)(iter(up.get, None), timeout=PATIENCE_S)
    try:
        first = next(call)
        if hello:
            nonce = control_pb2.CoordinatorMessage.FromString(first).challenge.nonce
            greeting = control_pb2.Hello(token=server.token, signature=server.signed("session", nonce))
            up.put(control_pb2.PeerMessage(hello=greeting).SerializeToString())
            next(call)
        for message in said:
            up.put(message)
        up.put(None)
        for _ in call:
            pass
    except grpc.RpcError:
        pass  # the code says what it was
    finally:
        up.put(None)
    return call.code(), call.details()


@inputs(40, each=4)
@given(st.booleans(), st.lists(something_said(), max_size=8))
def test_sessions_in_any_order(server: Server, hello: bool, said: list[bytes]) -> None:
    """Reports, presences, greetings and rubbish, before and after the hello, end as a refusal or in order."""
    check(*converse(server, hello, said))


@inputs(10, each=1000)
@given(st.lists(fields(control_pb2.ProbeUp).map(lambda message: message.SerializeToString()) | st.binary(), max_size=4))
def test_probes(server: Server, said: list[bytes]) -> None:
    """A line is measured, or the measurement is refused."""
    check(*converse(server, False, said, "Probe"))
