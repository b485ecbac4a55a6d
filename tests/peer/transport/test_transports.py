"""Both transports by one list of behaviours: over p2p daemons, and in memory on a virtual clock."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import aclosing, asynccontextmanager, closing, suppress
from functools import partial, wraps
from typing import Any, Concatenate

import pytest
import uvloop
from hivemind.p2p import P2P
from hivemind.proto.p2pd_pb2 import RPCError

from auth.swarm.hivemind_patches import patch_hivemind
from auth.swarm.streams import CONTROL, MAX_MESSAGE_BYTES, send
from peer.transport.lines import Line
from peer.transport.memory import MemoryNetwork
from peer.transport.p2p import P2PTransport
from peer.transport.transport import MOST_STREAMS, Handler, Transport, TransportError, call
from peer.transport.virtual_time import run_virtual
from tests.support.virtual_tests import P, show_fixtures
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = [
    # hivemind finds its daemon by a function of importlib that is going away
    pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning"),
    # and leaves the connection to its daemon to the garbage collector if a stream cannot be opened
    pytest.mark.filterwarnings("ignore:unclosed <StreamWriter:ResourceWarning"),
]
Scenario = Callable[[Transport, Transport], Coroutine[Any, Any, None]]
Play = Callable[[Scenario], None]
MESSAGES = [bytes([i]) * 10_000 for i in range(100)]
LINE = Line(up=1e7, down=1e7, latency_s=0.02)
FAILURE = RPCError(message="no\n" + "x" * 1_000_000).SerializeToString()
TCP, QUIC = "/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"


@asynccontextmanager
async def two_daemons(host: str = TCP) -> AsyncIterator[tuple[P2P, P2P]]:
    patch_hivemind()
    server = await P2P.create(host_maddrs=[host], startup_timeout=PATIENCE_S)
    known = await server.get_visible_maddrs()
    client = await P2P.create(host_maddrs=[host], initial_peers=known, startup_timeout=PATIENCE_S)
    try:
        yield server, client
    finally:
        await client.shutdown()
        await server.shutdown()


async def in_memory(scenario: Scenario) -> None:
    network = MemoryNetwork(random.Random(1))
    await scenario(network.join("server", LINE), network.join("client", LINE))


@pytest.fixture(scope="module")
def on_daemons() -> Iterator[Play]:
    """Two daemons that live as long as the module's tests."""
    loop = asyncio.new_event_loop()
    pair = two_daemons()
    server, client = map(P2PTransport, loop.run_until_complete(pair.__aenter__()))
    yield lambda scenario: loop.run_until_complete(asyncio.wait_for(scenario(server, client), PATIENCE_S))
    loop.run_until_complete(pair.__aexit__(None, None, None))
    loop.close()


@pytest.fixture(params=["p2p", "memory"])
def play(request: pytest.FixtureRequest) -> Play:
    """Plays a scenario of two peers, the server and the client."""
    if request.param == "memory":
        return lambda scenario: run_virtual(in_memory(scenario))
    played: Play = request.getfixturevalue("on_daemons")
    return played


def played(
    test: Callable[Concatenate[Transport, Transport, P], Coroutine[Any, Any, None]],
) -> Callable[Concatenate[Play, P], None]:
    """Let the fixture `play` give a test its server and its client."""

    @wraps(test)
    def run(play: Play, *args: P.args, **kwargs: P.kwargs) -> None:
        play(lambda server, client: test(server, client, *args, **kwargs))

    show_fixtures(run, "play", given=2)
    return run


async def each(messages: list[bytes]) -> AsyncIterator[bytes]:
    for message in messages:
        yield message


async def collect(stream: AsyncGenerator[bytes, None], into: list[bytes]) -> None:
    async with aclosing(stream) as messages:
        async for message in messages:
            into.append(message)


async def arrived(received: list[bytes], count: int) -> None:
    """Wait for this many messages."""
    while len(received) < count:  # noqa: ASYNC110 - a list has no event
        await asyncio.sleep(0.01)


async def asked(client: Transport, server: Transport, name: str, requests: list[bytes]) -> list[bytes]:
    """All responses to these requests."""
    responses: list[bytes] = []
    await collect(client.stream(server.peer_id, name, each(requests)), responses)
    return responses


@played
async def test_messages_arrive_whole_and_in_order_in_both_directions_at_once(
    server: Transport, client: Transport
) -> None:
    """Each request is answered before the next one is sent, by a handler that knows its caller."""

    async def echo(caller: str, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        yield caller.encode()
        async for request in requests:
            yield request

    await server.serve("echo", echo)
    answered = asyncio.Queue[bytes]()

    async def one_by_one() -> AsyncIterator[bytes]:
        assert await answered.get() == client.peer_id.encode()
        for message in MESSAGES:
            yield message
            assert await answered.get() == message

    async with aclosing(client.stream(server.peer_id, "echo", one_by_one())) as responses:
        received = []
        async for response in responses:
            received.append(response)
            answered.put_nowait(response)
    assert received[1:] == MESSAGES


@played
async def test_many_streams_of_two_peers_do_not_disturb_each_other(server: Transport, client: Transport) -> None:
    """Also if each peer serves the other one."""

    async def own(caller: str, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        async for request in requests:
            yield caller.encode() + request

    await server.serve("own", own)
    await client.serve("own", own)
    streams = [asked(one, other, "own", MESSAGES) for one, other in [(client, server), (server, client)] * 5]
    for i, responses in enumerate(await asyncio.gather(*streams)):
        caller = (client, server)[i % 2].peer_id.encode()
        assert responses == [caller + message for message in MESSAGES]


@played
async def test_a_caller_has_a_few_streams_of_a_name_at_once(server: Transport, client: Transport) -> None:
    """One more fails at its caller; when one of them has ended, there is room for another."""

    async def wait(_caller: str, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        async for request in requests:
            yield request

    async def open_stream() -> AsyncGenerator[bytes, None]:
        async def one_request() -> AsyncIterator[bytes]:
            yield b"here"
            await asyncio.Event().wait()

        stream = client.stream(server.peer_id, "few", one_request())
        assert await anext(stream) == b"here"
        return stream

    await server.serve("few", wait)
    streams = [await open_stream() for _ in range(MOST_STREAMS)]
    with pytest.raises(TransportError):
        await open_stream()
    await streams.pop().aclose()
    while len(streams) < MOST_STREAMS:  # the server may learn of the end a moment later
        with suppress(TransportError):
            streams.append(await open_stream())
    for stream in streams:
        await stream.aclose()


@played
async def test_responses_before_the_last_request_end_the_stream(server: Transport, client: Transport) -> None:
    """The rest of the requests is dropped, and costs later streams nothing."""

    async def curt(_caller: str, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        yield await anext(aiter(requests))

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield MESSAGES[0]
            await asyncio.sleep(0)

    await server.serve("curt", curt)
    for _ in range(10):
        responses: list[bytes] = []
        await collect(client.stream(server.peer_id, "curt", endless()), responses)
        assert responses == MESSAGES[:1]


@pytest.mark.parametrize("sent", [0, 1])
@played
async def test_a_caller_that_leaves_early_closes_the_handler(server: Transport, client: Transport, sent: int) -> None:
    """Before the first response, and after it."""
    begun, closed = asyncio.Event(), asyncio.Event()

    async def endless(_caller: str, _requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        try:
            begun.set()
            for message in MESSAGES[:sent]:
                yield message
            await asyncio.sleep(3600)
        finally:
            closed.set()

    await server.serve(f"endless {sent}", endless)
    received: list[bytes] = []
    asking = asyncio.create_task(collect(client.stream(server.peer_id, f"endless {sent}", each([])), received))
    await begun.wait()
    await arrived(received, sent)
    asking.cancel()
    await closed.wait()
    assert received == MESSAGES[:sent]


@played
async def test_a_handler_that_fails_tells_the_kind_of_error_only(server: Transport, client: Transport) -> None:
    """After the responses before it; the text of the error may be private."""

    async def failing(_caller: str, _requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        for message in MESSAGES:
            yield message
        raise ValueError("/home/ada")

    await server.serve("failing", failing)
    received: list[bytes] = []
    with pytest.raises(TransportError, match=r"`failing` of .* failed: 'ValueError'") as raised:
        await collect(client.stream(server.peer_id, "failing", each([])), received)
    assert received == MESSAGES
    assert "ada" not in str(raised.value)


@played
async def test_requests_that_fail_end_the_stream_at_both_ends(server: Transport, client: Transport) -> None:
    """The caller gets its own error; a handler that waits for more requests is closed."""
    closed = asyncio.Event()

    async def patient(_caller: str, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        try:
            async for request in requests:
                yield request
        finally:
            closed.set()

    async def one_and_a_fault() -> AsyncIterator[bytes]:
        yield MESSAGES[0]
        raise LookupError("no more")

    await server.serve("patient", patient)
    with pytest.raises(LookupError, match="no more"):
        await collect(client.stream(server.peer_id, "patient", one_and_a_fault()), [])
    await closed.wait()


@pytest.mark.parametrize("fault", [ConnectionResetError("of another stream"), TransportError("of another stream")])
@played
async def test_requests_fail_with_an_error_like_the_streams_own(
    server: Transport, client: Transport, fault: Exception
) -> None:
    """Requests that come from another stream, for example."""

    async def own(_caller: str, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        async for request in requests:
            yield request

    async def failing() -> AsyncIterator[bytes]:
        yield MESSAGES[0]
        raise fault

    name = f"own {type(fault).__name__}"
    await server.serve(name, own)
    with pytest.raises(type(fault), match="of another stream"):
        await collect(client.stream(server.peer_id, name, failing()), [])


@played
async def test_a_caller_that_leaves_closes_a_handler_that_reads_no_requests(
    server: Transport, client: Transport
) -> None:
    """However many small requests wait for it."""
    closed = asyncio.Event()
    await server.serve("deaf", endless_until(closed))

    async def many() -> AsyncIterator[bytes]:
        for number in range(100):
            yield str(number).encode()
        await asyncio.sleep(3600)

    async with aclosing(client.stream(server.peer_id, "deaf", many())) as stream:
        await anext(stream)
        await asyncio.sleep(0.2)
    await asyncio.wait_for(closed.wait(), PATIENCE_S)


@played
async def test_a_caller_that_is_cancelled_while_it_opens_leaves_no_handler(
    server: Transport, client: Transport
) -> None:
    """Whether the handler has begun or not."""
    open_handlers = 0

    async def counted(_caller: str, _requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        nonlocal open_handlers
        open_handlers += 1
        try:
            yield MESSAGES[0]
            await asyncio.sleep(3600)
        finally:
            open_handlers -= 1

    await server.serve("counted", counted)
    for i in range(20):
        opening = asyncio.create_task(collect(client.stream(server.peer_id, "counted", each([])), []))
        await asyncio.sleep(0.002 * i)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
    await asyncio.sleep(1.0)
    assert open_handlers == 0


@played
async def test_a_peer_opens_no_stream_to_itself_and_serves_a_name_once(server: Transport, client: Transport) -> None:
    await server.serve("once", endless_until(asyncio.Event()))
    with pytest.raises(ValueError, match="`once` is served already"):
        await server.serve("once", endless_until(asyncio.Event()))
    with pytest.raises(TransportError, match="cannot be reached"):
        await call(server, server.peer_id, "once", b"")


@played
async def test_a_message_that_is_too_long_is_not_sent(server: Transport, client: Transport) -> None:
    """Neither as a request nor as a response; the longest one arrives."""
    longest = bytes(MAX_MESSAGE_BYTES)

    async def longer(_caller: str, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        async for request in requests:
            yield request + bytes(1)

    async def same(_caller: str, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        async for request in requests:
            yield request

    await server.serve("longer", longer)
    await server.serve("same", same)
    assert await asked(client, server, "same", [longest]) == [longest]
    with pytest.raises(ValueError, match="is longer than"):
        await asked(client, server, "same", [longest + bytes(1)])
    with pytest.raises(TransportError, match="failed: 'ValueError'"):
        await asked(client, server, "longer", [longest])


@played
async def test_a_peer_or_handler_that_does_not_exist_is_unreachable(server: Transport, client: Transport) -> None:
    with pytest.raises(TransportError, match=r"`absent` of .* cannot be reached"):
        await call(client, server.peer_id, "absent", b"")
    with pytest.raises(TransportError, match="cannot be reached"):
        await call(client, "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N", "absent", b"")


@pytest.mark.parametrize(("responses", "fault"), [(0, "no response"), (1, None), (2, "more than one response")])
@played
async def test_a_call_has_one_response(server: Transport, client: Transport, responses: int, fault: str | None) -> None:
    async def some(_caller: str, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        async for request in requests:
            for _ in range(responses):
                yield request

    await server.serve(f"some {responses}", some)
    if fault is None:
        assert await call(client, server.peer_id, f"some {responses}", b"x") == b"x"
    else:
        with pytest.raises(TransportError, match=fault):
            await call(client, server.peer_id, f"some {responses}", b"x")


def endless_until(closed: asyncio.Event) -> Handler:
    """A handler that sends one message, and says when it was closed."""

    async def endless(_caller: str, _requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        try:
            yield MESSAGES[0]
            await asyncio.sleep(3600)
        finally:
            closed.set()

    return endless


async def lose_server(server: Transport, client: Transport, kill: Callable[[], object]) -> None:
    """The client is told, after what it had received."""
    await server.serve("endless", endless_until(asyncio.Event()))
    async with aclosing(client.stream(server.peer_id, "endless", each([]))) as stream:
        assert await anext(stream) == MESSAGES[0]
        kill()
        with pytest.raises(TransportError, match="broke off"):
            await anext(stream)
    with pytest.raises(TransportError, match="cannot be reached"):
        await call(client, server.peer_id, "endless", b"")


async def lose_client(server: Transport, client: Transport, kill: Callable[[], object]) -> None:
    """The server's handler is closed."""
    closed = asyncio.Event()
    await server.serve("endless", endless_until(closed))
    received: list[bytes] = []
    asking = asyncio.create_task(collect(client.stream(server.peer_id, "endless", each([])), received))
    await arrived(received, 1)
    kill()
    await closed.wait()
    await asyncio.gather(asking, return_exceptions=True)


@pytest.mark.parametrize(("lose", "dead"), [(lose_server, 0), (lose_client, 1)])
def test_a_peer_that_is_killed_ends_its_streams(lose: Any, dead: int) -> None:
    async def with_daemons() -> None:
        async with two_daemons() as daemons:
            await lose(*map(P2PTransport, daemons), daemons[dead]._child.kill)

    async def memory() -> None:
        network = MemoryNetwork(random.Random(1))
        peers = network.join("server", LINE), network.join("client", LINE)
        await lose(*peers, partial(network.kill, peers[dead].peer_id))

    asyncio.run(asyncio.wait_for(with_daemons(), PATIENCE_S))
    run_virtual(memory())


async def test_streams_over_quic_lose_nothing_and_leave_nothing() -> None:
    """There the daemon drops the data in flight when a stream is closed; requests that end late close none.

    Nor do 25 streams with 3 MB more of requests, which nobody reads, cost a later one, or leave a task behind.
    """

    async def several(_caller: str, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        for _ in range((await anext(requests))[0]):
            yield bytes(1300)

    async def one_and_a_pause(pause_s: float) -> AsyncIterator[bytes]:
        yield b"\xff"
        await asyncio.sleep(pause_s)

    async with two_daemons(QUIC) as daemons:
        server, client = map(P2PTransport, daemons)
        await server.serve("several", several)
        for pause_s in (0.0, 0.001, 0.003, 0.01) * 20:
            received: list[bytes] = []
            await collect(client.stream(server.peer_id, "several", one_and_a_pause(pause_s)), received)
            assert len(received) == 255
        for _ in range(25):
            assert len(await asked(client, server, "several", [b"\x01" * 50_000] * 60)) == 1
        await eventually("no task of a stream is left", lambda: tasks_of_streams() == [])


def tasks_of_streams() -> list[str]:
    """Whatever of either end still runs."""
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return [name for name in names if name in {"_answer", "_receive", "_Asking._send_all", "ControlClient._handler"}]


@pytest.mark.parametrize(
    ("said", "shown"),
    [(b"\x07hello", "broke off"), (CONTROL + len(FAILURE).to_bytes(8, "big") + FAILURE, "failed: 'no")],
)
async def test_what_a_hostile_server_says_is_cut_short(said: bytes, shown: str) -> None:
    """And can begin no line of its own in anybody's log."""

    async def hostile(_info: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            writer.write(said)
            await reader.read()

    async with two_daemons() as daemons:
        server, client = map(P2PTransport, daemons)
        await daemons[0].add_binary_stream_handler("hostile", hostile)
        with pytest.raises(TransportError, match=shown) as raised:
            await call(client, server.peer_id, "hostile", b"")
        assert len(str(raised.value)) < 500
        assert "\n" not in str(raised.value)


def test_nothing_is_sent_on_a_closed_stream() -> None:
    """As on a broken one: the last word of a handler at shutdown fails as any other. The loop is the product's."""

    async def send_late() -> None:
        server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.close()
        await writer.wait_closed()
        server.close()
        with pytest.raises(ConnectionError):
            await send(writer, b"late")

    loop = uvloop.new_event_loop()
    loop.run_until_complete(send_late())
    loop.close()
