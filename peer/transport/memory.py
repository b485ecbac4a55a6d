"""Streams between peers of one process, over modelled connections, in the event loop's time.

Peers can be separated from each other, fall silent, and die. Streams behave as over the p2p daemon:
data in transit waits until the connection is restored, and a long silence breaks both ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing

from auth.swarm.streams import LENGTH_BYTES, MAX_MESSAGE_BYTES
from peer.transport.lines import Line, Lines, Transfer
from peer.transport.transport import MOST_STREAMS, Handler, TransportError

logger = logging.getLogger(__name__)
WINDOW_BYTES = 2**18  # maximum bytes in transit or unread before the sender waits; yamux's initial window
HEADER_BYTES = LENGTH_BYTES + 1
PACKET_BYTES = 1400
DIAL_S = 10.0  # time without an answer after which a peer counts as unreachable
SILENCE_S = 30.0  # time without any traffic after which a stream breaks, as in libp2p
JITTER = 0.2  # largest deviation of a message's latency, as a fraction


class MemoryNetwork:
    """All peers of a process, and the connections between them."""

    def __init__(self, rng: random.Random) -> None:
        """Start a network on the running event loop; `rng` draws the jitter of latencies."""
        loop = asyncio.get_running_loop()
        self.lines = Lines(loop.time, loop.call_later)
        self._rng = rng
        self._peers: dict[str, MemoryTransport | None] = {}  # None for a peer that has died
        self._streams: dict[_Stream, None] = {}  # open streams, in order of their start
        self._sides: tuple[frozenset[str], ...] = ()
        self._silent: set[str] = set()

    def join(self, peer_id: str, line: Line) -> MemoryTransport:
        """Add a peer, or restart a peer, which dies if it has not done so."""
        if self._peers.get(peer_id) is not None:
            self.kill(peer_id)
        self.lines.connect(peer_id, line)
        self._silent.discard(peer_id)
        self._peers[peer_id] = transport = MemoryTransport(self, peer_id)
        self._update()
        return transport

    def part(self, *sides: Iterable[str]) -> None:
        """Partition the peers into sides, or end the partition if none are given."""
        self._sides = tuple(map(frozenset, sides))
        self._update()

    def silence(self, peer_id: str) -> None:
        """Stop a peer's traffic without notice, as if its connection or power had failed."""
        self._silent.add(peer_id)
        self._update()

    def resume(self, peer_id: str) -> None:
        """End a peer's silence."""
        self._silent.discard(peer_id)
        self._update()

    def kill(self, peer_id: str) -> None:
        """End a peer's handlers and streams; the other ends are notified if they can be reached."""
        dead, self._peers[peer_id] = self._peers[peer_id], None
        for stream in list(self._streams):
            if dead is stream.client or dead is stream.server:
                stream.end(dead)

    def find(self, peer_id: str) -> MemoryTransport | None:
        """Return a peer's transport, or None if it has died. Raises `TransportError` if it is unknown."""
        if peer_id not in self._peers:
            raise TransportError(f"{peer_id} cannot be reached: its address is unknown.")
        return self._peers[peer_id]

    def count(self, client: MemoryTransport, server: MemoryTransport, name: str) -> int:
        """Return the number of open streams of this name between two peers."""
        return sum((each.client, each.server, each.name) == (client, server, name) for each in self._streams)

    def connects(self, one: str, another: str) -> bool:
        """Return whether data can currently pass between two peers."""
        mine, others = ([who in side for side in self._sides] for who in (one, another))
        return not (any(mine) and any(others) and mine != others) and self._silent.isdisjoint((one, another))

    def latency_s(self, one: str, another: str) -> float:
        """Draw a latency in seconds between two peers."""
        return self.lines.latency_s(one, another) * (1 + self._rng.uniform(-JITTER, JITTER))

    def add(self, stream: _Stream) -> None:
        """Register an open stream."""
        self._streams[stream] = None

    def remove(self, stream: _Stream) -> None:
        """Forget a stream that both peers have ended."""
        self._streams.pop(stream, None)

    def _update(self) -> None:
        for stream in list(self._streams):
            stream.update()


class MemoryTransport:
    """One peer's access to the network."""

    def __init__(self, network: MemoryNetwork, peer_id: str) -> None:
        self._network, self.peer_id = network, peer_id
        self.handlers: dict[str, Handler] = {}
        self.context = contextvars.copy_context()  # in which the handlers run, as others call them

    async def serve(self, name: str, handler: Handler) -> None:
        """Register a handler for streams of this name. Raises `ValueError` for a duplicate name."""
        if name in self.handlers:
            raise ValueError(f"`{name}` is served already")
        self.handlers[name] = handler

    async def stream(self, peer: str, name: str, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Send requests to a peer's handler; yield its responses."""
        stream = await self._open(peer, name)
        asking = asyncio.create_task(stream.ask(requests))
        try:
            async with aclosing(stream.responses.received()) as responses:
                async for response in responses:
                    yield response
            _raise_failure(asking)
        except TransportError:
            _raise_failure(asking)
            raise
        finally:
            asking.cancel()
            stream.end(self)

    async def _open(self, peer: str, name: str) -> _Stream:
        self._require_life()
        if peer == self.peer_id:
            raise TransportError(f"{peer} cannot be reached: a peer opens no streams to itself.")
        server = self._network.find(peer)
        if not self._network.connects(self.peer_id, peer):
            await asyncio.sleep(DIAL_S)
            raise TransportError(f"{peer} cannot be reached: no answer within {DIAL_S:g} seconds.")
        latency_s = self._network.latency_s(self.peer_id, peer)
        await asyncio.sleep(latency_s)
        self._require_life()
        if server is None or self._network.find(peer) is not server or name not in server.handlers:
            await asyncio.sleep(latency_s)
            raise TransportError(f"`{name}` of {peer} cannot be reached: it is not served there.")
        if self._network.count(self, server, name) >= MOST_STREAMS:
            raise TransportError(f"`{name}` of {peer} cannot be reached: too many streams.")
        stream = _Stream(self._network, self, server, name)
        try:
            await asyncio.sleep(latency_s)  # the handler has begun, and is closed if the caller leaves now
        except BaseException:
            stream.end(self)
            raise
        return stream

    def _require_life(self) -> None:
        """Raise `TransportError` if this peer has died; its tasks may still be running."""
        if self._network.find(self.peer_id) is not self:
            raise TransportError(f"{self.peer_id} has died.")


class _BrokenOffError(TransportError):
    """A message cannot be sent, because the stream has broken off."""


def _raise_failure(asking: asyncio.Task[None]) -> None:
    """Raise the error of failed requests, unless it only says that the stream has broken off."""
    failure = asking.exception() if asking.done() and not asking.cancelled() else None
    if failure is not None and not isinstance(failure, _BrokenOffError):
        raise failure


class _Stream:
    """A stream's two directions, and the server's task."""

    def __init__(self, network: MemoryNetwork, client: MemoryTransport, server: MemoryTransport, name: str) -> None:
        self._network, self.client, self.server = network, client, server
        self.name, self._call = name, f"`{name}` of {server.peer_id}"
        self._requests = _Pipe(network, client.peer_id, server.peer_id)
        self.responses = _Pipe(network, server.peer_id, client.peer_id)
        self._is_ended = {client: False, server: False}
        self._silence: asyncio.TimerHandle | None = None
        self._serving = server.context.run(asyncio.create_task, self._serve(server.handlers[name]))
        network.add(self)
        self.update()

    async def ask(self, requests: AsyncIterator[bytes]) -> None:
        """Send all requests; on failure, close the stream, or the server would wait for the rest."""
        try:
            await self._requests.send_all(requests)
        except Exception:
            self.end(self.client)
            raise

    async def _serve(self, handler: Handler) -> None:
        async with aclosing(self._requests.received()) as requests:
            try:
                async with aclosing(handler(self.client.peer_id, requests)) as responses:
                    await self.responses.send_all(responses)
            except asyncio.CancelledError:
                if not self._is_ended[self.server]:  # the handler has stopped itself
                    self.responses.put(TransportError(f"{self._call} has ended the stream."))
                raise
            except Exception as error:  # noqa: BLE001 - fault boundary: the client is told the error's type
                if not self._is_ended[self.server]:
                    logger.warning("%s for %s failed: %.300r", self._call, self.client.peer_id, error)
                    self.responses.put(TransportError(f"{self._call} failed: {type(error).__name__!r}."))

    def update(self) -> None:
        """Pass or hold back data, depending on whether the two peers can reach each other."""
        is_open = self._network.connects(self.client.peer_id, self.server.peer_id)
        for pipe in (self._requests, self.responses):
            pipe.set_open(is_open)
        if is_open and self._silence is not None:
            self._silence.cancel()
            self._silence = None
        elif not is_open and self._silence is None:
            self._silence = asyncio.get_running_loop().call_later(SILENCE_S, self._break_off)
        self._notify()

    def end(self, one: MemoryTransport) -> None:
        """End the stream at one peer; the other is notified as soon as it can be reached."""
        self._end(one)
        self._notify()

    def _notify(self) -> None:
        if any(self._is_ended.values()) and self._network.connects(self.client.peer_id, self.server.peer_id):
            latency_s = self._network.latency_s(self.client.peer_id, self.server.peer_id)
            asyncio.get_running_loop().call_later(latency_s, self._be_notified)

    def _be_notified(self) -> None:
        if self._network.connects(self.client.peer_id, self.server.peer_id):  # otherwise `update` calls this again
            self._break_off()

    def _break_off(self) -> None:
        for one in (self.client, self.server):
            self._end(one)

    def _end(self, one: MemoryTransport) -> None:
        if self._is_ended[one]:
            return
        self._is_ended[one] = True
        if one is self.server:
            self._serving.cancel()
            self.responses.stop_sending()
        else:
            self._requests.stop_sending()
            self.responses.stop_receiving()
        if all(self._is_ended.values()):
            self._network.remove(self)
            if self._silence is not None:
                self._silence.cancel()


class _Pipe:
    """One direction of a stream: messages arrive in order, and a sender waits for a slow receiver.

    The last message is followed by None, or by the error that ended the messages.
    """

    def __init__(self, network: MemoryNetwork, sender: str, receiver: str) -> None:
        self._network, self._sender, self._receiver = network, sender, receiver
        self._loop = asyncio.get_running_loop()
        self._unsent = deque[bytes | TransportError | None]()
        self._under_way = deque[bytes | TransportError | None]()
        self._arrived = deque[bytes | TransportError | None]()
        self._transfer: Transfer | None = None  # transfer of the first unsent item
        self._arrives_at = 0.0  # arrival time of the newest item in transit
        self._late = 0  # number of items in transit that were due while the connection was down
        self._bytes = 0  # size of the messages in all three queues
        self._is_open = True
        self._is_sending = self._is_receiving = True
        self._changed = asyncio.Event()

    async def send_all(self, messages: AsyncIterator[bytes]) -> None:
        """Send all messages and their end. Raises `TransportError` if the pipe is broken."""
        async for message in messages:
            if len(message) > MAX_MESSAGE_BYTES:
                raise ValueError(f"a message of {len(message)} bytes is longer than {MAX_MESSAGE_BYTES} bytes")
            while self._bytes > WINDOW_BYTES and self._is_sending:
                await self._change()
            if not self._is_sending:
                raise _BrokenOffError(f"The stream to {self._receiver} broke off.")
            self.put(message)
        self.put(None)

    def put(self, item: bytes | TransportError | None) -> None:
        """Queue one item to send, without waiting for the receiver."""
        self._bytes += len(item or b"") if not isinstance(item, TransportError) else 0
        self._unsent.append(item)
        self._transmit()

    async def received(self) -> AsyncGenerator[bytes, None]:
        """Yield the messages. Raises `TransportError` if the pipe breaks or an error ends them."""
        while True:
            while not self._arrived:
                if not self._is_receiving:
                    raise TransportError(f"The stream from {self._sender} broke off.")
                await self._change()
            item = self._arrived.popleft()
            if isinstance(item, TransportError):
                raise item
            if item is None:
                return
            self._bytes -= len(item)
            self._wake()
            yield item

    def set_open(self, is_open: bool) -> None:
        """Resume the pipe, or hold back the items that have not arrived."""
        if is_open == self._is_open:
            return
        self._is_open = is_open
        if is_open:
            late, self._late = self._late, 0
            for _ in range(late):
                self._loop.call_later(self._network.lines.latency_s(self._sender, self._receiver), self._arrive)
            self._transmit()
        else:
            self._interrupt()

    def stop_sending(self) -> None:
        """Stop sending, and drop all items not yet in transit."""
        self._is_sending = False
        self._interrupt()  # first, because the first unsent item may have been transferred at this moment
        self._unsent.clear()
        self._wake()

    def stop_receiving(self) -> None:
        """Make the receiver fail once it has read the messages that have arrived."""
        self._is_receiving = False
        self._wake()

    def _interrupt(self) -> None:
        transfer, self._transfer = self._transfer, None
        if transfer is not None:
            self._network.lines.stop(transfer)

    def _transmit(self) -> None:
        """Send queued items; an item that fits in one packet needs no transfer."""
        lines, sender, receiver = self._network.lines, self._sender, self._receiver
        while self._unsent and self._transfer is None and self._is_open and self._is_sending:
            item = self._unsent[0]
            size = HEADER_BYTES + (len(item) if isinstance(item, bytes) else 0)
            rate = min(lines.rate(sender), lines.rate(receiver))
            if size <= PACKET_BYTES and rate > 0:
                lines.passed(sender, sent=size, received=0)
                lines.passed(receiver, sent=0, received=size)
                self._depart(size / rate)
            else:
                self._transfer = lines.send({(sender, "up"): size, (receiver, "down"): size}, self._transmitted)

    def _transmitted(self) -> None:
        self._transfer = None
        self._depart()
        self._transmit()

    def _depart(self, delay_s: float = 0.0) -> None:
        self._under_way.append(self._unsent.popleft())
        earliest = self._loop.time() + delay_s + self._network.latency_s(self._sender, self._receiver)
        self._arrives_at = max(self._arrives_at, earliest)
        self._loop.call_at(self._arrives_at, self._arrive)

    def _arrive(self) -> None:
        if not self._is_open:
            self._late += 1
        else:
            self._arrived.append(self._under_way.popleft())
            self._wake()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
