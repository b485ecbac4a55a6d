"""Senders that call a peer before, in and after its rounds, over a network in memory; the rounds are played."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Collection
from typing import Any, cast

import pytest
from hivemind.proto import averaging_pb2

from peer.averaging.reducer import Messages, decoded
from peer.averaging.reduction_service import ReductionService
from peer.network.least_rate import PATIENCE_S
from peer.network.traffic import Traffic
from peer.transport.lines import Line
from peer.transport.memory import MemoryNetwork
from peer.transport.transport import TransportError
from tests.support.virtual_tests import virtually

PEER, SENDER, OTHER = "peer", "sender", "other"
GROUP, HALF = b"group", b"groupfirst"
REFUSED, UNKNOWN = averaging_pb2.PROTOCOL_VIOLATION, averaging_pb2.BAD_GROUP_ID
AVERAGED = averaging_pb2.AVERAGED_PART
LINE = Line(up=1e7, down=1e7, latency_s=0.02)
SOON_S = 1.0


class Members:
    """A directory without a DHT."""

    def __init__(self) -> None:
        self.roles = {SENDER: "trainer", OTHER: "auxiliary"}

    async def admits(self, peer: str, roles: Collection[str]) -> bool:
        """Whether the peer has one of these roles."""
        return self.roles.get(peer) in roles

    def name_of(self, peer: str) -> str:
        """The name of a member, for the log."""
        return f"alice (device device-1, {self.roles[peer]})" if self.roles.get(peer) else "no member"


class Scene:
    """A peer that serves its reductions, and two that send to it."""

    def __init__(self) -> None:
        network = MemoryNetwork(random.Random(1))
        self.members, self.traffic = Members(), Traffic()
        own, *senders = [network.join(peer, LINE) for peer in (PEER, SENDER, OTHER)]
        self.senders = {transport.peer_id: transport for transport in senders}
        self.service = ReductionService(own, "reduce", cast(Any, self.members), self.traffic)
        self.failed: list[tuple[str, str]] = []  # senders, and the errors of their streams in a round

    async def answer(self, caller: str, messages: Messages) -> Messages:
        """Return each part at once, as the reducer of a round."""
        try:
            await anext(messages)
            async for part in messages:
                yield averaging_pb2.AveragingData(code=AVERAGED, weight=part.weight)
        except Exception as error:
            self.failed.append((caller, type(error).__name__))
            raise

    async def send(self, sender: str = SENDER, group: bytes = GROUP, *, pause_s: float = 0.0, last: bytes = b"") -> Any:
        """Send two parts, and what is `last`; return the codes of all answers."""

        async def requests() -> AsyncIterator[bytes]:
            yield averaging_pb2.AveragingData(code=averaging_pb2.PART_FOR_AVERAGING, group_id=group).SerializeToString()
            for weight in (1.0, 2.0):
                yield averaging_pb2.AveragingData(weight=weight).SerializeToString()
                await asyncio.sleep(pause_s)
            if last:
                yield last

        stream = self.senders[sender].stream(PEER, "reduce", requests())
        return [message.code async for message in decoded(stream)]

    def sending(self, *send: Any, **options: Any) -> asyncio.Task[Any]:
        """Send in the background."""
        return asyncio.create_task(self.send(*send, **options))

    def begin(self, group: bytes = GROUP) -> None:
        """Begin a round."""
        self.service.begin(group, cast(Any, self))


async def served() -> Scene:
    """A scene whose peer is served."""
    scene = Scene()
    await scene.service.serve()
    return scene


@pytest.mark.parametrize(
    ("role", "averages", "contributes"),
    [
        ("trainer", True, True),
        ("auxiliary", True, False),
        ("keeper", True, False),
        ("observer", False, False),
        (None, False, False),
    ],
)
@virtually
async def test_each_role_has_its_rights(
    caplog: pytest.LogCaptureFixture, role: Any, averages: bool, contributes: bool
) -> None:
    """Others are refused; without a role: a stranger. Who only claims to contribute is named."""
    scene = await served()
    scene.members.roles[SENDER] = role
    with scene.service.expecting([GROUP]):
        scene.begin()
        assert await scene.send() == ([AVERAGED] * 2 if averages else [REFUSED])
    assert await scene.service.may_contribute(SENDER) is contributes
    who = f"alice (device device-1, {role})" if role else "no member"
    assert (f"suspicious: {who}, peer {SENDER}, sent gradients" in caplog.text) is not contributes


@virtually
async def test_who_is_shut_out_in_the_middle_of_a_round_receives_no_further_average() -> None:
    """Its next part ends the stream."""
    scene = await served()
    with scene.service.expecting([GROUP]):
        scene.begin()
        sending = scene.sending(pause_s=SOON_S)
        await asyncio.sleep(SOON_S / 2)
        del scene.members.roles[SENDER]
        assert await sending == [AVERAGED]


@virtually
async def test_averages_count_towards_the_upload_limit() -> None:
    """A sender counts its own parts; a refusal costs next to nothing."""
    scene = await served()
    with scene.service.expecting([GROUP]):
        scene.begin()
        await scene.send()
    sent = 2 * averaging_pb2.AveragingData(code=AVERAGED, weight=1.0).ByteSize()
    assert scene.traffic.passed() == (pytest.approx(sent, abs=2), 0)


@virtually
async def test_senders_wait_until_the_peer_knows_their_group_and_begins_its_round() -> None:
    """The leader's word may have reached them first; each half has its own senders."""
    scene = await served()
    sending = [scene.sending(), scene.sending(OTHER, HALF)]
    await asyncio.sleep(SOON_S)
    with scene.service.expecting([HALF, GROUP]):
        await asyncio.sleep(SOON_S)
        assert not any(each.done() for each in sending)
        scene.begin(HALF)
        assert await sending[1] == [AVERAGED] * 2
        assert not sending[0].done()
        scene.begin()
        assert await sending[0] == [AVERAGED] * 2


@virtually
async def test_nobody_waits_for_a_half_that_does_not_come() -> None:
    """Its senders learn at once that the first half has failed here, also those that come after that."""
    scene = await served()
    with scene.service.expecting([HALF, GROUP]):
        scene.begin(HALF)
        sending = scene.sending()
        await asyncio.sleep(SOON_S)
    assert await sending == [UNKNOWN]
    assert await scene.send() == [UNKNOWN]
    assert asyncio.get_running_loop().time() < 2 * SOON_S


@virtually
async def test_a_sender_that_leaves_before_the_round_begins_disturbs_no_other() -> None:
    """Nor the round itself."""
    scene = await served()
    with scene.service.expecting([GROUP]):
        leaving, staying = scene.sending(), scene.sending(OTHER)
        await asyncio.sleep(SOON_S)
        leaving.cancel()
        await asyncio.sleep(SOON_S)
        scene.begin()
        assert await staying == [AVERAGED] * 2


@virtually
async def test_senders_of_an_unknown_group_are_refused() -> None:
    """At once if this peer is in another group, else when it is in its next one."""
    scene = await served()
    with scene.service.expecting([GROUP]):
        assert await scene.send(group=b"another") == [UNKNOWN]
    assert asyncio.get_running_loop().time() < SOON_S
    sending = asyncio.create_task(scene.send(group=b"another"))
    await asyncio.sleep(PATIENCE_S)
    assert not sending.done()
    with scene.service.expecting([GROUP]):
        assert await sending == [UNKNOWN]


@virtually
async def test_what_is_no_message_ends_the_stream() -> None:
    """As its first message it concerns no round; later, the round bans its sender."""
    scene = await served()

    async def garbage() -> AsyncIterator[bytes]:
        yield b"\xff"

    with scene.service.expecting([GROUP]):
        scene.begin()
        with pytest.raises(TransportError, match="DecodeError"):
            await anext(scene.senders[SENDER].stream(PEER, "reduce", garbage()))
        assert scene.failed == []
        with pytest.raises(TransportError, match="DecodeError"):
            await scene.send(last=b"\xff")
        assert scene.failed == [(SENDER, "DecodeError")]


@virtually
async def test_who_says_nothing_is_not_waited_for() -> None:
    """Whether it ends its requests, or leaves them open."""
    scene = await served()

    async def nothing(pause_s: float) -> AsyncIterator[bytes]:
        await asyncio.sleep(pause_s)
        for message in ():
            yield message

    stream = scene.senders[SENDER].stream(PEER, "reduce", nothing(0.0))
    assert [message.code async for message in decoded(stream)] == [UNKNOWN]
    with pytest.raises(TransportError, match="TimeoutError"):
        await anext(scene.senders[SENDER].stream(PEER, "reduce", nothing(3600.0)))
