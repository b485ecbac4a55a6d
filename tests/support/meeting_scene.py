"""Peers that meet, in virtual time and over a network in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from hivemind.p2p import PeerID

from peer.averaging.declarations import Declaration, DeclaredGroup
from peer.averaging.meetings import BEGIN, MOST_GRACE_S, RETRY_S, Meetings, UnconfirmedAverageError
from peer.averaging.requirements import Heard, Requirements
from peer.node.quorum import GROUP_ID_BYTES
from peer.reduction.attestation import DIGEST_BYTES
from peer.transport.lines import Line
from peer.transport.memory import DIAL_S, SILENCE_S, MemoryNetwork
from peer.transport.transport import Transport
from tests.support.receipts import key_of
from tests.support.virtual_tests import played_by

NAME = "meet"
LINE = Line(up=1e7, down=1e7, latency_s=0.02)
SOON_S = 0.5  # a few messages
GRACE_S = MOST_GRACE_S
STEP = 7
POSITION = (0, STEP)
ROUND_S = 20.0  # time limit of a round
DIGEST = b"d" * DIGEST_BYTES


def id_of(name: str) -> str:
    """The ID of the device with this name."""
    return str(PeerID(name.encode()).to_base58())


ALICE, BOB, CAROL, DAVE, MALLORY = map(id_of, ("alice", "bob", "carol", "dave", "mallory"))
ALL = (ALICE, BOB, CAROL, DAVE)


def begin(peers: Iterable[str], declared: Iterable[bytes] | None = None, group_id: bytes = b"g" * 20) -> bytes:
    """A leader's word."""
    order = tuple(peers)
    return (
        BEGIN
        + DeclaredGroup(group_id, order, tuple(map(declared_by, order) if declared is None else declared)).message()
    )


class Members:
    """Knows the members without a DHT."""

    def __init__(self, peers: Iterable[str]) -> None:
        self.peers = set(peers)

    def token_of(self, peer_id: str) -> Any:
        """The token of a member."""
        if peer_id not in self.peers:
            return None
        key = key_of(peer_id).public_key.decode()
        return SimpleNamespace(
            member=f"member {peer_id}", device_id="1", role="trainer", peer_id=peer_id, public_key=key
        )

    async def admitted(self, peers: Collection[str], roles: Collection[str]) -> set[str]:
        """Those that are members, after a look-up."""
        assert "observer" not in roles
        await asyncio.sleep(0.01)
        return self.peers.intersection(peers)


def declared_by(owner: str, position: tuple[int, int] = POSITION, compression: str = "none", said: str = "") -> bytes:
    """An unsigned declaration; tests/peer/averaging/test_declarations.py tries the signed ones."""
    return " ".join((owner, *map(str, position), compression, said)).encode()


def opened(declared: bytes, token: Any) -> Declaration:
    """The declaration in these bytes. Raises `ValueError` if it is another's."""
    owner, era, step, compression, _ = declared.decode().split(" ")
    if owner != token.peer_id:
        raise ValueError("The declaration was changed.")
    code: Any = compression
    return Declaration(run="run", era=int(era), step=int(step), compression=code, powersgd_rank=0, patience_s=1.0)


class Peer:
    """A peer's averager, as far as it meets others."""

    def __init__(self, transport: Transport, members: Members) -> None:
        self.peer_id = transport.peer_id
        self.heard: list[Heard] = []  # delivered to the trainer's process
        self.is_busy = False
        sign = key_of(self.peer_id).sign
        self.meetings = Meetings(transport, NAME, members, opened, sign, self._deliver)
        self.wanted = Requirements()
        self.due = asyncio.Event()  # set once its batch is full

    def _deliver(self, heard: Heard) -> bool:
        if not self.is_busy:
            self.heard.append(heard)
        return not self.is_busy

    @property
    def reports(self) -> list[Mapping[str, bytes]]:
        """The reports of followers, as delivered."""
        return [heard.reports for heard in self.heard if heard.reports]

    def want(self, **changes: Any) -> None:
        """Change the trainer's requirements."""
        self.wanted = replace(self.wanted, **changes)
        self.meetings.want(self.wanted)

    def seek(self, position: tuple[int, int] = POSITION, **declared: str) -> asyncio.Task[DeclaredGroup]:
        """Search for a group at this position."""
        self.want(era=position[0], step=position[1])
        self.meetings.declare(position, declared_by(self.peer_id, position, **declared))
        return asyncio.create_task(self.meetings.look_for_group(self.due))

    async def confirm(self, digest: bytes = DIGEST) -> bool:
        """Hold the newest group's average; returns whether it was confirmed."""
        try:
            await self.meetings.confirm(digest)
        except UnconfirmedAverageError:
            return False
        return True

    @property
    def followers(self) -> set[str]:
        """The peers that follow this one."""
        return set(self.meetings._followers)


class Scene:
    """Alice, Bob, Carol and Dave, who prefer leaders in this order; Mallory has a transport only."""

    def __init__(self, names: Iterable[str] = ALL, seed: int = 1) -> None:
        self.now = asyncio.get_running_loop().time
        self.network = MemoryNetwork(random.Random(seed))
        self.members = Members((*names, MALLORY))
        self.mallory = self.network.join(MALLORY, LINE)
        self.peers = {name: Peer(self.network.join(name, LINE), self.members) for name in names}
        self.searches: dict[str, asyncio.Task[DeclaredGroup]] = {}
        self.held: dict[str, asyncio.Task[bool]] = {}

    async def serve(self) -> None:
        """Let all peers be followed."""
        for peer in self.peers.values():
            await peer.meetings.serve()

    def seek(self, *names: str, leaders: Collection[str] = ALL, required: int = 2, expected: int | None = None) -> None:
        """Let these search; only the first of the leaders must be triggered by the test."""
        size = len(names) if expected is None else expected
        for name in names:
            self.peers[name].want(leaders=tuple(leaders), required=required, expected=size)
            self.searches[name] = self.peers[name].seek()

    def want(self, **changes: Any) -> None:
        """Change the requirements of all peers."""
        for peer in self.peers.values():
            peer.want(**changes)

    def trigger(self, *names: str) -> None:
        """The batches of these (default: of all) are full."""
        for name in names or self.peers:
            self.peers[name].due.set()

    async def meet(self, *names: str, leaders: Collection[str] = ALL) -> None:
        """Let these become a group, whose round begins."""
        self.trigger()
        for name in names:
            if (search := self.searches.get(name)) is None or search.done():
                self.seek(name, leaders=leaders)
            self.peers[name].want(expected=len(names), required=len(names))
        groups = await self.after(RETRY_S + SOON_S)
        assert len({groups[name].group_id for name in names}) == 1
        for name in names:
            self.peers[name].meetings.round_began(self.now() + ROUND_S)

    def hold(self, *names: str, digest: bytes = DIGEST) -> None:
        """Let these hold an average of the newest group."""
        for name in names:
            self.held[name] = asyncio.create_task(self.peers[name].confirm(digest))

    async def ruled(self, seconds: float = SOON_S) -> dict[str, bool]:
        """Whether the averages of these peers are confirmed after some time; those in doubt are left out."""
        await asyncio.sleep(seconds)
        return {name: held.result() for name, held in self.held.items() if held.done()}

    def leave(self) -> None:
        """Let all peers leave their leaders, as their next searches do."""
        for peer in self.peers.values():
            peer.meetings._leader.leave()

    async def after(self, seconds: float) -> dict[str, DeclaredGroup]:
        """The groups that have been found by then."""
        await asyncio.sleep(seconds)
        return {name: search.result() for name, search in self.searches.items() if search.done()}

    def told(self, *answers: bytes | None) -> list[str]:
        """Let Mallory lead with these words (None: silence); returns the list of those who will have followed her."""
        callers: list[str] = []
        words = iter(answers)

        async def lead(caller: str, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
            await anext(requests)
            callers.append(caller)
            if (word := next(words, None)) is None:
                await asyncio.Event().wait()
            else:
                yield word

        self.mallory.handlers[NAME] = lead
        return callers

    async def follow(self, leader: str, *messages: bytes, lasts_s: float = 100.0) -> list[bytes]:
        """Let Mallory follow with these messages, a moment apart; returns what the leader says."""

        async def requests() -> AsyncIterator[bytes]:
            for message in messages:
                yield message
                await asyncio.sleep(SOON_S)
            await asyncio.sleep(lasts_s)

        async with aclosing(self.mallory.stream(leader, NAME, requests())) as words:
            return [word async for word in words]


async def play(scenario: Callable[[Scene], Awaitable[None]], names: Iterable[str] = ALL, seed: int = 1) -> None:
    """Play a scenario; nothing may be left of it once all searches are cancelled."""
    scene = Scene(names, seed)
    await scene.serve()
    before = asyncio.all_tasks()
    await scenario(scene)
    scene.network.part()
    for name in scene.peers:
        scene.network.resume(name)
    for task in (*scene.searches.values(), *scene.held.values()):
        task.cancel()
    scene.leave()
    await asyncio.sleep(SILENCE_S + DIAL_S + 1.0)
    for name, peer in scene.peers.items():
        assert not peer.followers, name
        assert not peer.meetings._tasks, name
    assert asyncio.all_tasks() == before
    for task in (*scene.searches.values(), *scene.held.values()):
        with suppress(asyncio.CancelledError):
            task.result()


played = played_by(play)


def is_one_group(groups: Iterable[DeclaredGroup], *names: str) -> bool:
    """Whether each of these peers, and nobody else, has been told of the same group of them."""
    first, *others = groups
    assert others == [first] * len(others)
    assert list(first.peers) == sorted(names)
    assert len(first.group_id) == GROUP_ID_BYTES
    assert [declared.decode().split(" ")[0] for declared in first.declared] == sorted(names)
    return 1 + len(others) == len(names)
