"""The network in memory: its time, lost connections, dead peers, and the same course for the same seed."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing

import pytest

from peer.network.traffic import ON_THE_LINE
from peer.transport.lines import Line
from peer.transport.memory import DIAL_S, HEADER_BYTES, JITTER, SILENCE_S, WINDOW_BYTES, MemoryNetwork
from peer.transport.transport import TransportError, call
from peer.transport.virtual_time import StuckError, run_virtual
from tests.support.virtual_tests import played_by, virtually

HOME = Line(up=1e6, down=4e6, latency_s=0.05)
MEGABYTE = int(1e6 / ON_THE_LINE) - HEADER_BYTES
Received = list[tuple[float, bytes]]


class Swarm:
    """Homes a, b and c, whose handler `count` sends numbers at one-second intervals until `closed_at`."""

    def __init__(self, seed: int = 1) -> None:
        self.now = asyncio.get_running_loop().time
        self.network = MemoryNetwork(random.Random(seed))
        self.peers = {name: self.network.join(name, HOME) for name in ("a", "b", "c")}
        self.closed_at: float | None = None

    async def serve(self) -> None:
        for peer in self.peers.values():
            await peer.serve("count", self._count)
            await peer.serve("echo", _echo)

    async def _count(self, _caller: str, _requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        try:
            for number in range(100):
                yield str(number).encode()
                await asyncio.sleep(1.0)
        finally:
            self.closed_at = self.now()

    def listen(self, who: str, to: str) -> tuple[Received, asyncio.Task[None]]:
        """A stream of `count`: what has arrived, with its times, and the task that listens."""
        received: Received = []

        async def listening() -> None:
            async with aclosing(self.peers[who].stream(to, "count", _nothing())) as numbers:
                async for number in numbers:
                    received.append((self.now(), number))

        return received, asyncio.create_task(listening())


async def _nothing() -> AsyncIterator[bytes]:
    for _ in ():
        yield b""


async def _echo(_caller: str, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    async for request in requests:
        yield request


@played_by
async def played(scenario: Callable[[Swarm], Awaitable[None]]) -> None:
    swarm = Swarm()
    await swarm.serve()
    await scenario(swarm)


@played
async def test_a_message_takes_the_time_of_the_slower_line_and_of_the_packets(swarm: Swarm) -> None:
    """Opening takes two latencies, each direction one more; a second copy over the same uplink doubles its second."""
    await call(swarm.peers["a"], "b", "echo", bytes(MEGABYTE))
    assert swarm.now() == pytest.approx(1.0 + 1.0 + 4 * 0.05, abs=4 * 0.05 * JITTER + 1e-3)
    begun = swarm.now()
    await asyncio.gather(*(call(swarm.peers["a"], to, "echo", bytes(MEGABYTE)) for to in ("b", "c")))
    assert swarm.now() - begun == pytest.approx(2.0 + 1.0 + 4 * 0.05, abs=4 * 0.05 * JITTER + 1e-3)


@played
async def test_a_sender_waits_for_a_receiver_that_does_not_read(swarm: Swarm) -> None:
    sent = 0

    async def flood(_caller: str, _requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        nonlocal sent
        for _ in range(100):
            sent += 10_000
            yield bytes(10_000)

    await swarm.peers["b"].serve("flood", flood)
    async with aclosing(swarm.peers["a"].stream("b", "flood", _nothing())) as messages:
        await anext(messages)
        await asyncio.sleep(60.0)
        assert WINDOW_BYTES < sent < WINDOW_BYTES + 40_000
        assert len([message async for message in messages]) == 99


@played
async def test_messages_wait_for_a_connection_that_comes_back(swarm: Swarm) -> None:
    """All of them arrive then, in order; streams between peers of one side go on meanwhile."""
    parted, _ = swarm.listen("a", "b")
    together, _ = swarm.listen("c", "b")
    await asyncio.sleep(2.5)
    swarm.network.part(["a"], ["b", "c"])
    await asyncio.sleep(20.0)
    assert [int(number) for _, number in parted] == [0, 1, 2]
    assert [int(number) for _, number in together] == [*range(23)]
    swarm.network.part()
    await asyncio.sleep(5.0)
    assert [int(number) for _, number in parted] == [*range(28)]
    assert [at for at, number in parted if 3 <= int(number) <= 22] == pytest.approx([22.55] * 20, abs=0.05)


@pytest.mark.parametrize("is_killed", [False, True])
@played
async def test_both_ends_break_after_a_silence(swarm: Swarm, is_killed: bool) -> None:
    """Whether the silent peer still runs or has died; new streams fail after a shorter time."""
    _, listening = swarm.listen("a", "b")
    await asyncio.sleep(2.5)
    swarm.network.silence("b")
    if is_killed:
        swarm.network.kill("b")
        assert swarm.closed_at is None
    with pytest.raises(TransportError, match="cannot be reached"):
        await call(swarm.peers["a"], "b", "echo", b"")
    assert swarm.now() == pytest.approx(2.5 + DIAL_S)
    with pytest.raises(TransportError, match="broke off"):
        await listening
    assert swarm.now() == pytest.approx(2.5 + SILENCE_S)
    await asyncio.sleep(0.0)
    assert swarm.closed_at == pytest.approx(2.5 if is_killed else 2.5 + SILENCE_S)


@pytest.mark.parametrize("dead", ["a", "b"])
@played
async def test_a_death_is_noticed_within_a_packets_time(swarm: Swarm, dead: str) -> None:
    _, listening = swarm.listen("a", "b")
    await asyncio.sleep(2.5)
    swarm.network.kill(dead)
    with pytest.raises(TransportError, match="broke off"):
        await listening
    await asyncio.sleep(0.1)
    assert swarm.closed_at is not None
    assert 2.5 <= swarm.closed_at <= 2.5 + 0.05 * (1 + JITTER)


@played
async def test_a_death_behind_a_lost_connection_is_noticed_when_it_is_back(swarm: Swarm) -> None:
    _, listening = swarm.listen("a", "b")
    await asyncio.sleep(2.5)
    swarm.network.part(["a"], ["b"])
    swarm.network.kill("b")
    await asyncio.sleep(10.0)
    assert not listening.done()
    swarm.network.part()
    with pytest.raises(TransportError, match="broke off"):
        await listening
    assert swarm.now() < 13.0


@played
async def test_the_next_process_of_a_peer_is_reached_under_the_same_name(swarm: Swarm) -> None:
    """Its handlers are its own."""
    swarm.network.kill("b")
    again = swarm.network.join("b", HOME)
    with pytest.raises(TransportError, match="cannot be reached"):
        await call(swarm.peers["a"], "b", "echo", b"x")
    await again.serve("echo", _echo)
    assert await call(swarm.peers["a"], "b", "echo", b"x") == b"x"


@played
async def test_a_peers_handlers_run_as_that_peer(swarm: Swarm) -> None:
    """In the context in which it has joined, whoever opens the stream."""
    who = contextvars.ContextVar("who", default="nobody")
    named = contextvars.copy_context()
    named.run(who.set, "bob")
    bob = named.run(swarm.network.join, "bob", HOME)

    async def name(_caller: str, _requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        yield who.get().encode()

    await bob.serve("name", name)
    assert await call(swarm.peers["a"], "bob", "name", b"") == b"bob"


@played
async def test_a_dead_peers_tasks_reach_nobody(swarm: Swarm) -> None:
    """Neither after its death, nor with a stream that was being opened then."""
    opening = asyncio.create_task(call(swarm.peers["a"], "b", "echo", b""))
    await asyncio.sleep(0.01)
    swarm.network.kill("a")
    for late in (opening, call(swarm.peers["a"], "b", "echo", b"")):
        with pytest.raises(TransportError, match="a has died"):
            await late


@played
async def test_the_next_process_of_a_silent_peer_ends_the_streams_of_the_one_before(swarm: Swarm) -> None:
    _, listening = swarm.listen("a", "b")
    await asyncio.sleep(2.5)
    swarm.network.silence("b")
    swarm.network.kill("b")
    await asyncio.sleep(1.0)
    swarm.network.join("b", HOME)
    with pytest.raises(TransportError, match="broke off"):
        await listening
    assert swarm.now() < 3.6


@played
async def test_the_end_of_a_stream_does_not_pass_a_lost_connection(swarm: Swarm) -> None:
    _, listening = swarm.listen("a", "b")
    await asyncio.sleep(2.5)
    listening.cancel()
    await asyncio.sleep(0.01)
    swarm.network.part(["a"], ["b"])
    await asyncio.sleep(10.0)
    assert swarm.closed_at is None
    swarm.network.part()
    await asyncio.sleep(0.1)
    assert swarm.closed_at is not None


@played
async def test_a_peer_dies_in_the_moment_in_which_its_message_is_sent(swarm: Swarm) -> None:
    """The line ends the transfer, because the time has passed, while the pipe stops it."""
    fast = Line(up=1e10, down=1e10, latency_s=0.0)
    one, _ = swarm.network.join("one", fast), swarm.network.join("two", fast)
    await swarm.network.find("two").serve("echo", _echo)  # type: ignore[union-attr]
    asking = asyncio.create_task(call(one, "two", "echo", bytes(2000)))
    await asyncio.sleep(5e-7)  # they take 2e-7 s; the timer of their transfer is set to 1e-6 s
    swarm.network.kill("one")
    with pytest.raises(TransportError, match="broke off"):
        await asking


def test_a_seed_gives_the_same_times_again_and_another_one_others() -> None:
    async def times(seed: int) -> Received:
        swarm = Swarm(seed)
        await swarm.serve()
        received, _ = swarm.listen("a", "b")
        await asyncio.sleep(10.0)
        return received

    first, again, other = (run_virtual(times(seed)) for seed in (1, 1, 2))
    assert first == again != other


def test_a_course_that_can_never_end_is_an_error() -> None:
    """No timer is set, and nobody is left to set the event."""
    with pytest.raises(StuckError, match="no timer is set"):
        run_virtual(asyncio.Event().wait())


@virtually
async def test_work_in_a_thread_takes_no_virtual_time() -> None:
    """It is done at once, whatever it costs in real time; its errors reach the caller."""

    def work(divisor: float) -> float:
        return sum(range(1_000_000)) / divisor

    assert await asyncio.to_thread(work, 1.0) == sum(range(1_000_000))
    with pytest.raises(ZeroDivisionError):
        await asyncio.to_thread(work, 0.0)
    assert asyncio.get_running_loop().time() == 0.0
