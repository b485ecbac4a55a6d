"""Transfers of states and averages between donors and receivers, in virtual time over a network in memory.

Real swarms are in tests/system.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import math
import pickle
import random
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hivemind.compression import CompressionInfo, TensorRole, serialize_torch_tensor
from hivemind.p2p import PeerID
from hivemind.proto import runtime_pb2
from hivemind.proto.averaging_pb2 import DownloadData
from hivemind.utils import MSGPackSerializer
from hivemind.utils.streaming import STREAMING_CHUNK_SIZE_BYTES, split_for_streaming

from peer.network.least_rate import LEAST_BYTES_PER_S, PATIENCE_S
from peer.network.traffic import BURST_S, HEADERS, LEAST_STATE_RATE, STATES_SHARE, Traffic
from peer.node.average_history import Average, Lack
from peer.node.donations import AT_ONCE, BROKEN_OFF_S, FOLLOWERS_AT_ONCE, OF_ONE_MEMBER, STALLED_S
from peer.node.quorum import MOST_PEERS
from peer.node.states import (
    COPY_S,
    FACTORS,
    OVERHEAD_BYTES,
    QUICK_S,
    STATE_CODE,
    AverageKept,
    AverageWanted,
    DonatedState,
    HistoryBegun,
    JoinedTensors,
    StateCopy,
    StateOrder,
    StateService,
    StateWanted,
)
from peer.protocol import HELD_AVERAGES, MAX_ERA, MAX_STEP
from peer.protocol.history_pb2 import AverageAfter
from peer.reduction.compression import ROOTS, decode
from peer.reduction.findings import MAX_ID_CHARS
from peer.transport.lines import Line
from peer.transport.memory import DIAL_S, SILENCE_S, MemoryNetwork
from peer.transport.transport import TransportError
from tests.support.virtual_tests import played_by

NAME, STEP, ERA = "run", 7, 2
VOTERS = tuple(f"voter {number}" for number in range(40))
LINE = Line(up=1e7, down=1e7, latency_s=0.02)
FAST = Line(up=1e12, down=1e12, latency_s=0.0)
HOME = 50_000.0  # bytes a second of a donor's line
MATRIX = torch.arange(240_000.0).view(300, 800)  # larger than the window of a stream
TENSORS = [MATRIX, torch.ones(7), torch.linspace(-1, 1, 240_000), torch.tensor(7.0)]
ROLES = [TensorRole.PARAMETER, TensorRole.PARAMETER, TensorRole.OPTIMIZER, TensorRole.UNSPECIFIED]
AVERAGE = TENSORS[:2]
TENSOR = serialize_torch_tensor(torch.ones(3))
STATE = StateWanted([tensor.shape for tensor in TENSORS])
MISSED = AverageWanted(ERA, STEP - 1, [tensor.shape for tensor in AVERAGE])
SOUND = {"step": STEP, "era": ERA}
SOON_S = 1.0


def id_of(name: str) -> str:
    """The ID of the device with this name."""
    return str(PeerID(name.encode()).to_base58())


def encoded(tensors: Sequence[torch.Tensor], roles: Sequence[TensorRole]) -> list[runtime_pb2.Tensor]:
    """The tensors as they travel."""
    pairs = zip(tensors, roles, strict=True)
    return [STATE_CODE.compress(each, CompressionInfo.from_tensor(each, role=role)) for each, role in pairs]


ARRIVES = [decode(each, ROOTS) for each in encoded(TENSORS, ROLES)]


def average_after(step: int) -> Average:
    """The average that leads from this step to the next one, in exact values and in the trainer's shared memory."""
    contents = [serialize_torch_tensor(tensor + step).SerializeToString() for tensor in AVERAGE]
    joined = torch.frombuffer(bytearray(b"".join(contents)), dtype=torch.uint8).clone()
    return Average(joined.share_memory_(), list(map(len, contents)), VOTERS[step:])  # type: ignore[no-untyped-call]


def are_equal(found: Any, expected: Sequence[torch.Tensor], voters: tuple[str, ...] = VOTERS) -> bool:
    """Whether these are the expected tensors, bit by bit, and voters."""
    joined, names = (found.tensors, found.voters) if isinstance(found, DonatedState) else found
    assert isinstance(joined, JoinedTensors)
    tensors = joined.separate()
    return len(tensors) == len(expected) and all(map(torch.equal, tensors, expected)) and names == voters


def is_average(found: object, step: int) -> bool:
    """Whether a peer has got the average that leads from this step to the next one."""
    return are_equal(found, [tensor + step for tensor in AVERAGE], VOTERS[step:])


def is_whole(found: object) -> bool:
    """Whether a peer has got what a sound donor has."""
    return are_equal(found, ARRIVES) if isinstance(found, DonatedState) else is_average(found, STEP - 1)


def wanted_of(tensors: Sequence[torch.Tensor]) -> StateWanted:
    """The order of a trainer whose state has tensors of these shapes."""
    return StateWanted([tensor.shape for tensor in tensors])


def data(facts: object = None, *tensors: runtime_pb2.Tensor) -> list[bytes]:
    """A donor's messages: the facts, if any, and then the tensors."""
    messages = [] if facts is None else [DownloadData(metadata=MSGPackSerializer.dumps(facts))]
    messages += [DownloadData(tensor_part=part) for tensor in tensors for part in split_for_streaming(tensor)]
    return [message.SerializeToString() for message in messages]


class Directory:
    """Knows the peers' roles without a DHT; the word before a device's dash is its member's name."""

    def __init__(self) -> None:
        self.roles: dict[str, str] = {}

    def token_of(self, peer: str) -> Any:
        """The token of a member."""
        name = PeerID.from_base58(peer).to_bytes().decode()
        is_known = peer in self.roles
        return SimpleNamespace(member=name.split("-")[0], device_id=name) if is_known else None

    async def admits(self, peer: str, roles: Collection[str]) -> bool:
        """Whether a peer has one of the roles."""
        return self.roles.get(peer) in roles

    async def with_role(self, roles: Collection[str]) -> list[str]:
        """All peers with one of the roles."""
        return [peer for peer, role in self.roles.items() if role in roles]


class Peer:
    """A peer's transfers, with what its trainer would give and count."""

    def __init__(self, scene: Scene, name: str, role: str, line: Line, traffic: Traffic | None) -> None:
        self.peer_id, self.tensors, self.roles = id_of(name), TENSORS, ROLES
        self.copies = self.moves = self.turned_away = 0
        self.copy_s = 0.0  # how long its trainer takes
        self._copied: list[weakref.ref[StateCopy]] = []
        self.transport = scene.network.join(self.peer_id, line)
        directory: Any = scene.directory
        self.states = StateService(
            self.transport,
            NAME,
            directory,
            values=0,
            donor_roles=frozenset({"trainer" if role == "keeper" else "keeper"}),
            traffic=traffic or Traffic(),
            copy=self._copy,
            moved=functools.partial(self._count, "moves"),
            turned_away=functools.partial(self._count, "turned_away"),
        )

    def _count(self, what: str) -> None:
        setattr(self, what, getattr(self, what) + 1)

    async def _copy(self) -> StateCopy:
        self.copies += 1
        await asyncio.sleep(self.copy_s)
        copy = StateCopy(STEP, ERA, VOTERS, JoinedTensors.join(list(self.tensors)), self.roles)
        self._copied.append(weakref.ref(copy))
        return copy

    @property
    def held_copies(self) -> int:
        """How many copies of the state are still in memory."""
        return sum(copy() is not None for copy in self._copied)

    async def keep(self, steps: int) -> None:
        """Take so many steps, the last of which leads to the state's."""
        for step in range(STEP - steps, STEP):
            assert await self.states.obey(AverageKept(ERA, step + 1, average_after(step))) is None

    async def raw(self, donor: Peer, what: str, *requests: bytes) -> list[DownloadData]:
        """A donor's messages in answer to these requests."""

        async def asked() -> AsyncIterator[bytes]:
            for request in requests:
                yield request

        async with aclosing(self.transport.stream(donor.peer_id, f"{NAME}.{what}", asked())) as responses:
            return [DownloadData.FromString(response) async for response in responses]


class Scene:
    """A network with the peers that a test adds."""

    def __init__(self) -> None:
        self.now = asyncio.get_running_loop().time
        self.network = MemoryNetwork(random.Random(1))
        self.directory = Directory()
        self.peers: list[Peer] = []

    async def add(self, name: str, role: str = "trainer", line: Line = LINE, traffic: Traffic | None = None) -> Peer:
        """Add a member that gives its state, and the average that leads to it."""
        peer = Peer(self, name, role, line, traffic)
        self.directory.roles[peer.peer_id] = role
        await peer.states.serve()
        await peer.keep(1)
        self.peers.append(peer)
        return peer

    async def add_liar(
        self, *messages: bytes, role: str = "keeper", pause_s: float = 0.0, fails: bool = False, forever: bool = False
    ) -> list[float]:
        """Add a member before all others that answers with these messages; return the times at which it was asked."""
        transport = self.network.join(liar := id_of("A liar"), LINE)
        self.directory.roles = {liar: role, **self.directory.roles}
        asked: list[float] = []

        async def answer(_caller: str, _requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
            asked.append(self.now())
            for message in messages:
                yield message
                await asyncio.sleep(pause_s)
            if fails:
                raise RuntimeError("the donor has failed")
            while forever and pause_s:
                await asyncio.sleep(pause_s)
                yield data({})[0]
            if forever:
                await asyncio.Event().wait()

        for what in ("state", "average"):
            await transport.serve(f"{NAME}.{what}", answer)
        return asked

    async def seconds_of(self, wanted: Awaitable[object]) -> float:
        """How long it takes."""
        began_at = self.now()
        await wanted
        return self.now() - began_at


@played_by
async def played(scenario: Callable[[Scene], Awaitable[None]]) -> None:
    """Play a scenario; nothing may be left of it once all streams have broken."""
    before, scene = asyncio.all_tasks(), Scene()
    await scenario(scene)
    for peer in scene.peers:
        scene.network.kill(peer.peer_id)
    await asyncio.sleep(SILENCE_S + DIAL_S + SOON_S)
    for peer in scene.peers:
        assert not peer.states._donations._under_way
        assert not peer.states._following._under_way
    assert asyncio.all_tasks() == before


@pytest.fixture(autouse=True)
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let donors of states be asked in the order of their names."""
    monkeypatch.setattr("random.shuffle", lambda names: None)


@played
async def test_a_state_arrives_as_its_donor_holds_it(scene: Scene) -> None:
    """But for the moments, which are rounded; and the progress is counted."""
    keeper, bob = await scene.add("keeper", "keeper"), await scene.add("bob")
    found = await bob.states.obey(STATE)
    assert isinstance(found, DonatedState)
    assert (found.donor, found.step, found.era) == (keeper.peer_id, STEP, ERA)
    assert are_equal(found, ARRIVES)
    shared: Any = found.tensors.values  # one file descriptor on its way to the trainer's process
    assert shared.is_shared()
    assert are_equal(pickle.loads(pickle.dumps(found)), ARRIVES)  # noqa: S301 - as it passes to the trainer's process
    same = [torch.equal(*pair) for pair in zip(found.tensors.separate(), TENSORS, strict=True)]
    assert same == [True, True, False, True]
    assert bob.moves >= sum(tensor.nbytes for tensor in TENSORS) // (2 * STREAMING_CHUNK_SIZE_BYTES)
    assert keeper.turned_away == 0


@pytest.mark.parametrize("members", [1, 99])
@pytest.mark.parametrize(("wanted", "places"), [(STATE, AT_ONCE), (MISSED, FOLLOWERS_AT_ONCE)])
@played
async def test_a_donor_serves_a_few_at_once_and_the_others_later(
    scene: Scene, members: int, wanted: StateOrder, places: int
) -> None:
    """Of one member even fewer; a device that finds no place for an average does not take the state instead."""
    keeper = await scene.add("keeper", "keeper", Line(up=10 * HOME, down=HOME, latency_s=0.02))
    peers = [await scene.add(f"member {n % members}-device {n}") for n in range(places + 1)]
    found = await asyncio.gather(*(peer.states.obey(wanted) for peer in peers))
    rejected = [peer for peer, each in zip(peers, found, strict=True) if each in (None, Lack.BUSY)]
    assert len(rejected) == places + 1 - (OF_ONE_MEMBER if members == 1 else places)
    assert sum(each is Lack.BUSY for each in found) == (len(rejected) if wanted is MISSED else 0)
    assert keeper.turned_away == (len(rejected) if wanted is STATE else 0)
    assert all(each in (None, Lack.BUSY) or is_whole(each) for each in found)
    assert is_whole(await rejected[0].states.obey(wanted))


@pytest.mark.parametrize(("donor_role", "role"), [("keeper", "trainer"), ("trainer", "keeper")])
@played
async def test_a_device_whose_download_broke_off_is_turned_away_for_a_while(
    scene: Scene, donor_role: str, role: str
) -> None:
    """So that it finds the keeper's next checkpoint, which it can resume; a trainer writes none."""
    donor = await scene.add("donor", donor_role, Line(up=HOME, down=HOME, latency_s=0.02))
    laptop, desktop = await scene.add("ada-laptop", role), await scene.add("ada-desktop", role)
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(laptop.states.obey(STATE), 2 * SOON_S)
    assert (donor.copies, donor.turned_away) == (1, 0)  # it may never come back
    await asyncio.sleep(SOON_S)
    if donor_role == "keeper":
        assert await laptop.states.obey(STATE) is None
        assert donor.turned_away == 1
        assert is_whole(await desktop.states.obey(STATE))
        await asyncio.sleep(BROKEN_OFF_S)
    assert is_whole(await laptop.states.obey(STATE))


@played
async def test_states_leave_half_of_the_line_to_rounds(scene: Scene) -> None:
    """A round may begin at any moment, so the rest of the donor's line does not matter."""
    await scene.add("keeper", "keeper", FAST, Traffic.of_donor(HOME, scene.now))
    peers = [await scene.add(name, line=FAST) for name in ("ada", "bob")]
    began_at = scene.now()
    assert all([is_whole(await peer.states.obey(STATE)) for peer in peers])
    size_bytes = len(peers) * sum(len(each.buffer) for each in encoded(TENSORS, ROLES))
    assert (scene.now() - began_at + BURST_S) * HOME * STATES_SHARE == pytest.approx(size_bytes * HEADERS, rel=0.01)


@played
async def test_an_average_waits_for_no_state_and_a_state_makes_up_for_it(scene: Scene) -> None:
    """However many averages there were, a state comes faster than the least rate, so that nobody gives it up."""
    keeper = await scene.add("keeper", "keeper", FAST, Traffic.of_donor(HOME, scene.now))
    bob, began_at = await scene.add("bob", line=FAST), scene.now()
    for _ in range(40):
        assert is_whole(await bob.states.obey(MISSED))
    assert scene.now() - began_at < BURST_S
    chunk = torch.ones(STREAMING_CHUNK_SIZE_BYTES // 4)
    keeper.tensors = [chunk] * 8 + [torch.tensor(7.0)] * 100  # most tensors of an optimizer's state are small
    keeper.roles, began_at = [TensorRole.UNSPECIFIED] * len(keeper.tensors), scene.now()
    assert are_equal(await bob.states.obey(wanted_of(keeper.tensors)), keeper.tensors)
    assert scene.now() - began_at == pytest.approx(8 * STREAMING_CHUNK_SIZE_BYTES / LEAST_STATE_RATE, rel=0.05)
    assert STREAMING_CHUNK_SIZE_BYTES / LEAST_STATE_RATE < STALLED_S


@pytest.mark.parametrize(("speed", "is_taken"), [(1.2, True), (0.5, False)])
@played
async def test_a_donor_may_be_as_slow_as_the_least_rate(scene: Scene, speed: float, is_taken: bool) -> None:
    """The state of a slow donor takes longer than a peer's patience; a slower donor is left."""
    keeper = await scene.add("keeper", "keeper", Line(speed * LEAST_BYTES_PER_S, HOME, latency_s=0.02))
    keeper.tensors, keeper.roles = [torch.randn(500_000)], ROLES[:1]
    bob = await scene.add("bob")
    began_at = scene.now()
    found = await bob.states.obey(wanted_of(keeper.tensors))
    assert scene.now() - began_at > PATIENCE_S
    assert are_equal(found, keeper.tensors) if is_taken else found is None


@pytest.mark.parametrize("pause_s", [1.0, 0.0])
@pytest.mark.parametrize("wanted", [STATE, MISSED])
@played
async def test_a_donor_that_trickles_or_falls_silent_is_left(scene: Scene, wanted: StateOrder, pause_s: float) -> None:
    """For ever a few bytes a second, or an open stream without a word: the next donor is asked."""
    await scene.add_liar(*data({"step": STEP}, TENSOR), pause_s=pause_s, forever=True)
    await scene.add("honest", "keeper")
    bob, began_at = await scene.add("bob"), scene.now()
    assert is_whole(await bob.states.obey(wanted))
    assert PATIENCE_S < scene.now() - began_at < 3 * PATIENCE_S


@pytest.mark.parametrize(("role", "donor_role"), [("keeper", "trainer"), ("trainer", "keeper")])
@played
async def test_one_slow_donor_keeps_a_keeper_from_nobody(scene: Scene, role: str, donor_role: str) -> None:
    """A donor that may be a liar is left for others; the keeper, whom trainers ask, is waited for."""
    rate = 1.1 * LEAST_BYTES_PER_S
    tensors = [torch.zeros(int(1.5 * QUICK_S * rate / 4))]
    messages, pause_s = data(SOUND, serialize_torch_tensor(tensors[0])), STREAMING_CHUNK_SIZE_BYTES / rate
    asked = await scene.add_liar(*messages, role=donor_role, pause_s=pause_s)
    honest, joiner = await scene.add("honest", donor_role), await scene.add("joiner", role)
    honest.tensors, honest.roles = tensors, ROLES[:1]
    began_at = scene.now()
    found = await joiner.states.obey(wanted_of(tensors))
    assert isinstance(found, DonatedState)
    assert len(asked) == 1
    assert found.donor == (honest.peer_id if role == "keeper" else id_of("A liar"))
    assert scene.now() - began_at == pytest.approx(QUICK_S if role == "keeper" else 1.5 * QUICK_S, rel=0.05)


@played
async def test_refused_donors_are_not_asked_again(scene: Scene) -> None:
    """Once all have been refused, there is no state."""
    asked = await scene.add_liar(*data({"step": STEP}))
    honest, bob = await scene.add("honest", "keeper"), await scene.add("bob")
    assert is_whole(await bob.states.obey(replace(STATE, refused=[id_of("A liar")])))
    assert await bob.states.obey(replace(STATE, refused=[id_of("A liar"), honest.peer_id])) is None
    assert (len(asked), honest.copies) == (0, 1)


@played
async def test_one_copy_serves_all_that_wait_for_it(scene: Scene) -> None:
    """However long the trainer takes; if it takes too long, they retry, and the donor has not failed."""
    keeper = await scene.add("keeper", "keeper")
    keeper.copy_s = COPY_S / 2
    peers = [await scene.add(name) for name in ("ada", "bob", "carol")]
    assert all(map(is_whole, await asyncio.gather(*(peer.states.obey(STATE) for peer in peers))))
    assert keeper.copies == 1
    keeper.copy_s = 2 * COPY_S
    assert await scene.seconds_of(peers[0].states.obey(STATE)) == pytest.approx(COPY_S, rel=0.05)
    assert is_whole(await peers[0].states.obey(STATE))  # its donor was late, which is no fault of its own
    assert keeper.copies == 2


@played
async def test_who_waits_for_a_copy_keeps_its_place(scene: Scene) -> None:
    """A reader cannot take what is not there yet, so it has not stalled."""
    keeper = await scene.add("keeper", "keeper")
    keeper.copy_s = STALLED_S + 2 * SOON_S
    waiting = [asyncio.create_task((await scene.add(f"member {n}")).states.obey(STATE)) for n in range(AT_ONCE)]
    await asyncio.sleep(STALLED_S + SOON_S)
    assert await (await scene.add("late")).states.obey(STATE) is None
    assert all(map(is_whole, await asyncio.gather(*waiting)))


@played
async def test_who_reads_nothing_loses_its_place_and_its_copy(scene: Scene) -> None:
    """When another device needs the place: its stream then ends, although it waits for its reader."""
    keeper = await scene.add("keeper", "keeper")
    released = asyncio.Event()

    async def hold(peer: Peer) -> None:
        async with aclosing(peer.transport.stream(keeper.peer_id, f"{NAME}.state", nothing())) as responses:
            await anext(responses)
            await released.wait()

    async def nothing() -> AsyncIterator[bytes]:
        yield b""

    holders = [await scene.add(f"member {n}") for n in range(AT_ONCE)]
    tasks = [asyncio.create_task(hold(peer)) for peer in holders]
    await asyncio.sleep(STALLED_S + SOON_S)
    gc.collect()
    assert keeper.held_copies == AT_ONCE
    assert is_whole(await (await scene.add("honest")).states.obey(STATE))
    await asyncio.sleep(SOON_S)
    gc.collect()
    assert keeper.held_copies == 0
    released.set()
    await asyncio.gather(*tasks)


@played
async def test_a_trainer_gives_its_state_to_keepers_only(scene: Scene) -> None:
    """Others take the keeper's, which has places and turns devices away; a trainer would only be kept busy."""
    donor, observer = await scene.add("donor"), await scene.add("observer", "observer")
    assert await observer.raw(donor, "state", b"") == []
    assert donor.copies == 0
    assert is_whole(await (await scene.add("keeper", "keeper")).states.obey(STATE))


@played
async def test_a_stranger_gets_nothing(scene: Scene) -> None:
    """Not even a copy of the state is made for it."""
    keeper, mallory = await scene.add("keeper", "keeper"), await scene.add("mallory")
    del scene.directory.roles[mallory.peer_id]
    request = AverageAfter(era=ERA, step=STEP - 1).SerializeToString()
    for what in ("state", "average"):
        assert await mallory.raw(keeper, what, request) == []
    assert (keeper.copies, keeper.turned_away) == (0, 0)
    assert await mallory.states.obey(STATE) is None
    assert await mallory.states.obey(MISSED) is Lack.SILENT


@pytest.mark.parametrize(("wanted", "nothing"), [(STATE, None), (MISSED, Lack.SILENT)])
@played
async def test_a_revoked_members_download_ends(scene: Scene, wanted: StateOrder, nothing: Lack | None) -> None:
    """In the middle of a tensor."""
    await scene.add("keeper", "keeper", Line(up=HOME, down=HOME, latency_s=0.02))
    bob = await scene.add("bob")
    whole_s = await scene.seconds_of(bob.states.obey(wanted))
    began_at = scene.now()
    download = asyncio.create_task(bob.states.obey(wanted))
    await asyncio.sleep(SOON_S)
    del scene.directory.roles[bob.peer_id]
    assert await download is nothing
    assert scene.now() - began_at < whole_s


def malformed(**changes: Any) -> list[bytes]:
    """The messages of a donor whose only tensor is changed in this way."""
    changed = runtime_pb2.Tensor(compression=TENSOR.compression, buffer=TENSOR.buffer, size=[3], dtype="float32")
    changed.MergeFrom(runtime_pb2.Tensor(**changes))
    return data(SOUND, changed)


FAULTS: dict[str, list[bytes]] = {
    "silent": [],
    "negative step": data({"step": -1}, TENSOR),
    "step too high": data({"step": MAX_STEP + 1}, TENSOR),
    "step in words": data({"step": "7"}, TENSOR),
    "step true": data({"step": True}, TENSOR),
    "negative era": data({"step": STEP, "era": -1}, TENSOR),
    "era too high": data({"step": STEP, "era": MAX_ERA + 1}, TENSOR),
    "unknown lack": data({"lack": "everything"}),
    "too many voters": data(SOUND | {"voters": ["Qm1"] * (MOST_PEERS + 1)}, TENSOR),
    "voter with too long an ID": data(SOUND | {"voters": ["Qm1", "Q" * (MAX_ID_CHARS + 1)]}, TENSOR),
    "voter without an ID": data(SOUND | {"voters": [""]}, TENSOR),
    "voter in numbers": data(SOUND | {"voters": [7]}, TENSOR),
    "voters in one word": data(SOUND | {"voters": "Qm1"}, TENSOR),
    "no dict": data([STEP, ERA], TENSOR),
    "broken msgpack": [DownloadData(metadata=b"\xc1").SerializeToString(), *data(None, TENSOR)],
    "no facts": data(None, TENSOR),
    "garbage": [*data(SOUND, TENSOR), b"\xff\xff"],
    "not finite": data(SOUND, serialize_torch_tensor(torch.tensor([1.0, math.nan]))),
    "infinite": data(SOUND, serialize_torch_tensor(torch.tensor([math.inf]))),
    "infinite in 32 bits": data(SOUND, serialize_torch_tensor(torch.tensor([1e300], dtype=torch.float64))),
    "fewer bytes": malformed(size=[2]),
    "dtype": malformed(dtype="S1000"),
    "compression": malformed(compression=runtime_pb2.CompressionType.QUANTILE_8BIT),
    "part of nothing": [*data(SOUND), DownloadData(tensor_part=runtime_pb2.Tensor(buffer=b"12")).SerializeToString()],
    "too much": data(SOUND, serialize_torch_tensor(torch.ones(2 * OVERHEAD_BYTES))),
    "too much, said small": [
        DownloadData(tensor_part=runtime_pb2.Tensor(size=[3], dtype="float32")).SerializeToString(),
        *[DownloadData(tensor_part=runtime_pb2.Tensor(buffer=bytes(1 << 16))).SerializeToString()] * 100,
    ],
    "too many": data(SOUND, *[serialize_torch_tensor(torch.zeros(0))] * (FACTORS * len(TENSORS) + 1)),
    "other shapes": data(SOUND, *[serialize_torch_tensor(each.flatten()) for each in TENSORS]),
}


@pytest.mark.parametrize(
    ("fault", "wanted"),
    [*itertools.product([*FAULTS, "fails", "dead", "unknown"], [STATE, MISSED]), ("no tensors", STATE)],
)
@played
async def test_after_a_donors_fault_the_next_one_is_asked(scene: Scene, fault: str, wanted: StateOrder) -> None:
    """A donor can say whatever it likes."""
    asked = await scene.add_liar(
        *FAULTS.get(fault, data(SOUND, *[TENSOR] * (fault == "fails"))), fails=fault == "fails"
    )
    if fault == "dead":
        scene.network.kill(id_of("A liar"))
    elif fault == "unknown":
        scene.network._peers.pop(id_of("A liar"))
    await scene.add("honest", "keeper")
    bob = await scene.add("bob")
    assert is_whole(await bob.states.obey(wanted))
    assert len(asked) == (fault not in ("dead", "unknown"))
    assert bob.moves > 1


@played
async def test_a_sound_donor_of_that_form_is_believed(scene: Scene) -> None:
    """Else the test above would show nothing."""
    voters = ["Q" * MAX_ID_CHARS] * MOST_PEERS
    await scene.add_liar(*data(SOUND | {"voters": voters}), *malformed()[1:], pause_s=0.01)
    bob = await scene.add("bob")
    assert are_equal(await bob.states.obey(wanted_of([torch.ones(3)])), [torch.ones(3)], tuple(voters))
    assert are_equal(await bob.states.obey(MISSED), [torch.ones(3)], tuple(voters))


@played
async def test_a_peer_that_fell_behind_gets_the_first_average_that_it_missed(scene: Scene) -> None:
    """Bit by bit; the average may also be there in a moment, or never again."""
    keeper, bob = await scene.add("keeper", "keeper"), await scene.add("bob")
    await keeper.keep(3)
    kept: list[Any] = [average.encoded for average in keeper.states._history._averages]
    assert not any(tensor.is_shared() for tensor in kept)  # it is scarce
    for step in (STEP - 3, STEP - 2, STEP - 1):
        assert is_average(await bob.states.obey(replace(MISSED, step=step)), step)
    for era, step in ((ERA, STEP - 4), (ERA - 1, STEP - 2), (MAX_ERA, MAX_STEP)):
        assert await bob.states.obey(replace(MISSED, era=era, step=step)) is Lack.GONE
    for step in (STEP, MAX_STEP):
        assert await bob.states.obey(replace(MISSED, step=step)) is Lack.NOT_YET
    await keeper.keep(HELD_AVERAGES)
    assert await bob.states.obey(replace(MISSED, step=STEP - HELD_AVERAGES)) not in list(Lack)
    await keeper.states.obey(HistoryBegun(ERA, STEP))
    assert await bob.states.obey(MISSED) is Lack.GONE


@played
async def test_no_keeper_is_silence(scene: Scene) -> None:
    """It is no word on what a keeper holds; an unknown reason for a lack is none either."""
    bob = await scene.add("bob")
    assert (await bob.states.obey(STATE), await bob.states.obey(MISSED)) == (None, Lack.SILENT)
    await scene.add_liar(*FAULTS["unknown lack"])
    assert (await bob.states.obey(STATE), await bob.states.obey(MISSED)) == (None, Lack.SILENT)


@pytest.mark.parametrize("requests", [(b"\xff\xff",), (b"\x08" + b"\xff" * 10,)])
@played
async def test_a_malformed_request_harms_nobody_else(scene: Scene, requests: tuple[bytes, ...]) -> None:
    """Its sender is told of an error; others are served."""
    keeper, mallory, bob = await scene.add("keeper", "keeper"), await scene.add("mallory"), await scene.add("bob")
    for _ in range(FOLLOWERS_AT_ONCE):
        with pytest.raises(TransportError):
            await mallory.raw(keeper, "average", *requests)
    for wanted in (STATE, MISSED):
        assert is_whole(await bob.states.obey(wanted))
    state = await mallory.raw(keeper, "state", *requests)  # which has no parameters
    assert len(state) > len(TENSORS)
